"""Reading a search space: numbers, the one-line faults, `--set`, sizes, and the spaces that ship."""

import math
import re

import pytest

from sweep.expand import expand
from sweep.planning import plan
from sweep.spec import TRIAL_KEYS, Asha, SpecError, load, number

from .spaces import RATE, TEXT


@pytest.fixture
def read(tmp_path):
    """Write a search space to tiny.yaml and load it."""

    def write_and_load(text=TEXT, *overrides, size=None):
        path = tmp_path / "tiny.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(str(path), size=size, overrides=overrides)

    return write_and_load


def spaced(space):
    """The file with another space."""
    return re.sub("space: .*", f"space: {space}", TEXT)


def fault(read, *args, **kwargs):
    with pytest.raises(SpecError) as caught:
        expand(read(*args, **kwargs))
    text = str(caught.value)
    assert "\n" not in text and text == text.strip()
    return text


# Numbers


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("-2.5e+3", -2500),
        (".5", 0.5),
        ("5.", 5),
        ("3", 3),
        ("16/1437", RATE),
        ("250/60000", 250 / 60000),
        ("0.5/2", 0.25),
        ("inf", math.inf),
        (".inf", math.inf),
        (".Inf", math.inf),
        ("+inf", math.inf),
        ("-inf", -math.inf),
    ],
)
def test_number(text, value):
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "abc", "true", "[1]", "1/x", "info", "1e-5x", "nan", "2001-02-03"])
def test_what_is_no_number(text):
    with pytest.raises(SpecError, match=re.escape(repr(text)) + " is not a number"):
        number(text)


@pytest.mark.parametrize("text, reason", [("1/0", "divides by zero"), ("2001-13-45", "month"), ("1:30.5", "float")])
def test_a_number_that_cannot_be(text, reason):
    with pytest.raises(SpecError, match=reason):
        number(text)


def test_numbers_in_a_file(read):
    sweep = read(TEXT.replace("epsilon: 1", "epsilon: inf, delta: 1e-6").replace("steps: 40", "steps: 1e3"))
    assert sweep.trial["delta"] == 1e-6
    assert sweep.trial["epsilon"] == math.inf
    assert sweep.trial["sampling_rate"] == RATE
    assert expand(sweep)[0].plan.steps == 1000


def test_words_stay_words(read):
    assert read(TEXT.replace("title: Tiny", "title: 16/1437 of infinity, 1e-5x")).title == "16/1437 of infinity, 1e-5x"


# A file as a whole


def test_name_and_defaults(read):
    sweep = read("title: T\ntrial: {}\n")
    assert (sweep.name, sweep.space, sweep.seeds, sweep.samples, sweep.asha) == ("tiny", [{}], 1, None, None)
    assert (sweep.resources.cpu, sweep.resources.gpu) == (1, 0)


def test_yml_is_yaml(tmp_path):
    (tmp_path / "tiny.yml").write_text(TEXT)
    assert load(str(tmp_path / "tiny.yml")).name == "tiny"


def test_one_grid_or_a_list_of_grids(read):
    assert read().space == [{"alpha": [1, 3], "lr": [0.1, 1]}]
    assert read(spaced("\n  - {alpha: [1, 3], lr: [0.1, 1]}")).space == read().space


def test_asha_defaults(read):
    assert read(TEXT + "scheduler: {asha: {}}\n").asha == Asha(metric=None, grace=0.1, reduction_factor=3)


# Faults: one line each, naming file, key, value and what is valid


FAULTS = {
    "twice, at the top": ("title: Tiny\n" + TEXT, ["tiny.yaml", "line 1", "'title' is given twice"]),
    "twice, below": (TEXT.replace("steps: 40", "steps: 40, steps: 50"), ["tiny.yaml", "'steps' is given twice"]),
    "unknown at the top": (TEXT + "schedular: {}\n", ["tiny.yaml", "'schedular'", "did you mean scheduler?", "seeds"]),
    "misspelt and hence missing": (TEXT.replace("trial:", "trail:"), ["unknown key 'trail'", "did you mean trial?"]),
    "unknown in asha": (
        TEXT + "scheduler: {asha: {gracee: 0.1}}\n",
        ["tiny.yaml", "scheduler.asha.gracee", "did you mean grace?", "metric, grace, reduction_factor"],
    ),
    "unknown in scheduler": (TEXT + "scheduler: {asah: {}}\n", ["scheduler.asah", "did you mean asha?", "from asha"]),
    "unknown in resources": (TEXT + "resources: {gpus: 1}\n", ["resources.gpus", "did you mean gpu?", "cpu, gpu"]),
    "unknown in trial": (
        TEXT.replace("epsilon: 1", "epsilon: 1, epsilom: 2"),
        ["tiny.yaml", "trial", "'epsilom'", "did you mean epsilon?", ", ".join(TRIAL_KEYS)],
    ),
    "unknown in space": (
        spaced("[{lr: 1}, {lrr: 1}]"),
        ["tiny.yaml", "space[1]", "'lrr'", "did you mean lr?", ", ".join(TRIAL_KEYS)],
    ),
    "unknown in the optimizer": (
        TEXT.replace("steps: 40", "steps: 40, optimizer: {nam: sgd}"),
        ["tiny", "optimizer.nam", "did you mean name?", "name, momentum, weight_decay, nesterov"],
    ),
    "seed is no key": (TEXT.replace("steps: 40", "steps: 40, seed: 1"), ["unknown key 'seed'"]),
    "missing": ("title: T\n", ["tiny.yaml", "trial is missing"]),
    "no mapping": ("- 1\n", ["tiny.yaml", "expected a mapping with keys title"]),
    "empty": ("", ["tiny.yaml", "expected a mapping"]),
    "no YAML": ("a: b: c\n", ["tiny.yaml", "line 1"]),
    "no text": (b"title: \xff\n", ["tiny.yaml", "UTF-8"]),
    "forbidden character": ("title: \0\n", ["tiny.yaml", "not allowed"]),
    "impossible date": (TEXT.replace("Tiny", "2001-13-45"), ["tiny.yaml", "month"]),
    "division by zero": (TEXT.replace("16/1437", "16/0"), ["tiny.yaml", "line 2", "16/0 divides by zero"]),
    "own name": (TEXT + "name: other\n", ["tiny.yaml", "'name'"]),
    "key that is no text": (TEXT + "1: 2\n", ["tiny.yaml", "1"]),
    "key that is a list": (TEXT + "? [a]\n: 2\n", ["tiny.yaml", "line 4", "key"]),
    "trial is no mapping": ("title: T\ntrial: 3\n", ["tiny.yaml", "trial=3"]),
    "space is a number": (spaced("3"), ["tiny.yaml", "space=3"]),
    "space holds a number": (spaced("[3]"), ["tiny.yaml", "space.0=3"]),
    "space is empty": (spaced("[]"), ["tiny.yaml", "space=[]"]),
    "seeds of the wrong type": (TEXT + "seeds: many\n", ["tiny.yaml", "seeds='many'", "integer"]),
    "seeds is a truth value": (TEXT + "seeds: true\n", ["tiny.yaml", "seeds", "truth value", "True"]),
    "half a seed": (TEXT + "seeds: 2.5\n", ["tiny.yaml", "seeds=2.5", "integer"]),
    "no seed": (TEXT + "seeds: 0\n", ["tiny.yaml", "seeds=0", "greater than or equal to 1"]),
    "grace of all": (TEXT + "scheduler: {asha: {grace: 1}}\n", ["scheduler.asha.grace=1", "less than 1"]),
    "reduction by nothing": (
        TEXT + "scheduler: {asha: {reduction_factor: 1}}\n",
        ["scheduler.asha.reduction_factor=1", "greater than 1"],
    ),
    "unknown metric": (
        TEXT + "scheduler: {asha: {metric: accuracy}}\n",
        ["scheduler.asha.metric='accuracy'", "'validation_accuracy' or 'test_accuracy'"],
    ),
    "asha is nothing": (TEXT + "scheduler: {asha: null}\n", ["tiny.yaml", "scheduler.asha"]),
    "no cpu": (TEXT + "resources: {cpu: 0}\n", ["resources.cpu=0", "greater than or equal to 1"]),
    "negative gpu": (TEXT + "resources: {gpu: -1}\n", ["resources.gpu=-1", "greater than or equal to 0"]),
    "sizes is a list": (TEXT + "sizes: [smoke]\n", ["tiny.yaml", "sizes", "smoke"]),
    "size is a number": (TEXT + "sizes: {smoke: 3}\n", ["tiny.yaml", "sizes.smoke=3"]),
    "size is nothing": (TEXT + "sizes: {smoke: null}\n", ["tiny.yaml", "sizes.smoke=None"]),
    "unknown dataset": (TEXT.replace("digits", "digit"), ["tiny", "dataset", "'digit'", "digits, mnist"]),
    "unknown model": (TEXT.replace("mlp", "mpl"), ["tiny", "model", "'mpl'", "mlp, cnn"]),
    "rate above 1": (TEXT.replace("16/1437", "2"), ["tiny", "sampling_rate=2"]),
    "steps of the wrong type": (TEXT.replace("steps: 40", "steps: many"), ["tiny", "steps", "'many'"]),
    "lr is a word": (TEXT.replace("[0.1, 1]", "[0.1, fast]"), ["tiny", "lr", "'fast'", "alpha=1"]),
    "two rates": (TEXT.replace("epsilon: 1", "epsilon: 1, effective_lr: 1"), ["tiny", "lr", "effective_lr"]),
    "in trial and in space": (
        TEXT.replace("epsilon: 1", "epsilon: 1, lr: 1"),
        ["tiny", "space[0]", "lr", "trial", "space"],
    ),
    "axis without a value": (TEXT.replace("[0.1, 1]", "[]"), ["tiny", "space[0]", "lr has no value"]),
    "distribution in trial": (
        TEXT.replace("epsilon: 1", "epsilon: 1, delta: {uniform: [0, 1]}"),
        ["tiny.yaml", "trial", "delta={'uniform': [0, 1]}", "uniform, loguniform, randint, choice"],
    ),
    "unknown distribution": (
        TEXT.replace("[0.1, 1]", "{lognormal: [0.1, 1]}"),
        ["tiny.yaml", "space[0]", "lr={'lognormal': [0.1, 1]}", "uniform, loguniform, randint, choice"],
    ),
    "two distributions": (TEXT.replace("[0.1, 1]", "{uniform: [0, 1], choice: [1]}"), ["tiny.yaml", "space[0]", "lr="]),
}


@pytest.mark.parametrize("case", FAULTS)
def test_fault_is_one_line(read, case):
    text, parts = FAULTS[case]
    said = fault(read, text)
    for part in parts:
        assert part in said


def test_the_choices_do_not_offer_what_is_refused(read):
    assert "choose from title, reproduces" in fault(read, TEXT + "nam: x\n")


@pytest.mark.parametrize(
    "name, parts",
    [
        ("quickstarte", ["unknown search space 'quickstarte'", "figure2", "quickstart", "path of a .yaml file"]),
        ("nowhere/missing.yaml", ["no such file: nowhere/missing.yaml"]),
        ("missing.yml", ["no such file: missing.yml"]),
        ("", ["unknown search space ''"]),
    ],
)
def test_missing_file(name, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert all(part in fault(lambda: load(name)) for part in parts)


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "space.yaml").mkdir()
    assert "no such file" in fault(lambda: load(str(tmp_path / "space.yaml")))


# Sizes


def test_a_size_lies_over_the_file(read):
    sizes = """\
scheduler: {asha: {grace: 0.25}}
sizes:
  smoke:
    trial: {epochs: 2, optimizer: {momentum: 0.5}}
    space: {alpha: 2, effective_lr: 0.1}
    seeds: 2
    scheduler: null
"""
    text = TEXT.replace("epsilon: 1", "epsilon: 1, optimizer: {name: sgd}") + sizes
    full, smoke = read(text), read(text, size="smoke")
    assert (full.name, smoke.name) == ("tiny", "tiny-smoke")
    assert full.asha and smoke.asha is None
    assert smoke.trial.pop("epochs") == 2 and full.trial.pop("steps") == 40
    assert smoke.trial == full.trial | {"optimizer": {"name": "sgd", "momentum": 0.5}}
    assert smoke.space == [{"alpha": 2, "effective_lr": 0.1}]
    assert smoke.seeds == 2


def test_unknown_size(read):
    text = TEXT + "sizes: {smoke: {seeds: 2}, big: {seeds: 9}}\n"
    said = fault(read, text, size="smok")
    assert "tiny.yaml" in said and "'smok'" in said and "smoke, big" in said
    assert "choose from none" in fault(read, TEXT, size="smoke")


def test_unknown_key_in_a_size(read):
    said = fault(read, TEXT + "sizes: {smoke: {sedes: 2}}\n", size="smoke")
    assert "tiny.yaml" in said and "size smoke" in said and "'sedes'" in said and "did you mean seeds?" in said


# --set


def test_set_a_number_moves_into_trial(read):
    sweep = read(TEXT, "lr=0.5")
    assert sweep.trial["lr"] == 0.5
    assert sweep.space == [{"alpha": [1, 3]}]


def test_set_a_list_becomes_an_axis_of_every_grid(read):
    text = spaced("[{alpha: 1}, {alpha: 3, delta: 1e-6}]")
    sweep = read(text.replace("epsilon: 1", "epsilon: 1, lr: 1"), "lr=[0.1, 0.2]")
    assert "lr" not in sweep.trial
    assert sweep.space == [{"alpha": 1, "lr": [0.1, 0.2]}, {"alpha": 3, "delta": 1e-6, "lr": [0.1, 0.2]}]


def test_set_merges_grids_that_have_become_equal(read):
    text = spaced("[{alpha: 1, lr: 1}, {alpha: 3, lr: 1}]")
    assert read(text, "alpha=[1, 3]").space == [{"lr": 1, "alpha": [1, 3]}]


def test_set_a_distribution(read):
    sweep = read(TEXT, "lr={loguniform: [1e-3, 1]}", "samples=5")
    assert sweep.space == [{"alpha": [1, 3], "lr": {"loguniform": [1e-3, 1]}}]
    assert len(expand(sweep)) == 10


@pytest.mark.parametrize(
    "override, gone",
    [
        ("epochs=2", "steps"),
        ("expected_batch_size=32", "sampling_rate"),
        ("effective_lr=0.1", "lr"),
        ("effective_lr=[0.1, 0.3]", "lr"),
    ],
)
def test_set_replaces_the_synonym(read, override, gone):
    sweep = read(TEXT, override)
    assert not any(gone in place for place in [sweep.trial, *sweep.space])
    assert override.split("=")[0] in sweep.trial | sweep.space[0]
    assert expand(sweep)


def test_set_the_synonym_and_back(read):
    assert read(TEXT, "epochs=2", "steps=40", "effective_lr=1", "lr=[0.1, 1]") == read()


def test_set_of_trial_itself_replaces_the_synonym(read):
    sweep = read(TEXT, "trial.epochs=2")
    assert sweep.trial["epochs"] == 2 and "steps" not in sweep.trial


@pytest.mark.parametrize(
    "override, value",
    [
        ("seeds=3", lambda s: s.seeds == 3),
        ("title=Another, longer title", lambda s: s.title == "Another, longer title"),
        ("resources.gpu=0.25", lambda s: (s.resources.gpu, s.resources.cpu) == (0.25, 2)),
        ("scheduler=null", lambda s: s.asha is None),
        ("scheduler.asha.grace=0.5", lambda s: (s.asha.grace, s.asha.reduction_factor) == (0.5, 2)),
        ("optimizer.momentum=0.9", lambda s: s.trial["optimizer"] == {"name": "sgd", "momentum": 0.9}),
        ("optimizer={name: adam}", lambda s: s.trial["optimizer"] == {"name": "adam"}),
        ("validation.fraction=0.1", lambda s: s.trial.get("validation") == {"fraction": 0.1}),
        ("epsilon=inf", lambda s: s.trial["epsilon"] == math.inf),
        ("sampling_rate=8/1437", lambda s: s.trial["sampling_rate"] == 8 / 1437),
        ("space={alpha: 1, lr: 1}", lambda s: s.space == [{"alpha": 1, "lr": 1}]),
    ],
)
def test_set(read, override, value):
    text = TEXT.replace("epsilon: 1", "epsilon: 1, optimizer: {name: sgd}")
    text += "resources: {cpu: 2}\nscheduler: {asha: {grace: 0.25, reduction_factor: 2}}\n"
    assert not value(read(text))
    assert value(read(text, override))


def test_set_a_scheduler_where_there_is_none(read):
    assert read(TEXT, "scheduler.asha.grace=0.5").asha.grace == 0.5


def test_set_after_the_size(read):
    assert read(TEXT + "sizes: {smoke: {seeds: 2}}\n", "seeds=5", size="smoke").seeds == 5


def test_set_in_order(read):
    assert read(TEXT, "seeds=5", "seeds=6").seeds == 6


@pytest.mark.parametrize(
    "override, parts",
    [
        ("lr", ["--set lr", "key=value"]),
        ("=3", ["--set =3", "unknown key ''"]),
        ("learning_rate=1", ["--set learning_rate=1", "'learning_rate'", "lr", "seeds"]),
        ("seed=1", ["--set seed=1", "'seed'", "did you mean seeds?"]),
        ("name=x", ["--set name=x", "'name'"]),
        ("sizes.smoke={}", ["--set sizes.smoke={}", "'sizes'"]),
        ("seeds=0", ["tiny.yaml", "--set seeds=0", "greater than or equal to 1"]),
        ("seeds=true", ["tiny.yaml", "--set seeds=true", "truth value"]),
        ("trial=3", ["tiny.yaml", "--set trial=3"]),
        ("space=3", ["tiny.yaml", "--set space=3"]),
        ("scheduler.asha.gracee=1", ["--set scheduler.asha.gracee=1", "did you mean grace?"]),
        ("scheduler.asha=null", ["--set scheduler.asha=null", "scheduler.asha"]),
        ("optimizer.momentum.x=0.5", ["optimizer.momentum={'x': 0.5}"]),
        ("optimizer.nam=sgd", ["optimizer.nam", "did you mean name?"]),
        ("alpha=[1", ["--set alpha=[1"]),
        ("alpha={a: 1, a: 2}", ["--set alpha={a: 1, a: 2}", "given twice"]),
        ("delta=1/0", ["--set delta=1/0", "divides by zero"]),
        ("alpha={lognormal: [0, 1]}", ["--set alpha", "uniform, loguniform, randint, choice"]),
        ("lr=", ["lr", "effective_lr"]),
    ],
)
def test_bad_set_is_one_line(read, override, parts):
    said = fault(read, TEXT, override)
    for part in parts:
        assert part in said


def test_a_second_set_does_not_hide_the_fault_of_the_first(read):
    assert "--set trial=3" in fault(read, TEXT, "trial=3", "steps=3")


# What ships


def test_figure2_is_the_paper_s():
    laid_out = plan(load("figure2"))
    assert len(laid_out.points) == 105 and len(laid_out.trials) == 1050
    assert all(point.feasible for point in laid_out.points)
    assert {point.trials[0].plan.alpha for point in laid_out.points} == {0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10}
    assert laid_out.sweep.asha is None
