"""The command line as a user meets it: what is printed, the exit status, and one line for a fault."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from dirdp import gaussian
from sweep import cli
from sweep.storage import Folder
from sweep.store import Store

from .spaces import TEXT

SWEEP = Path(sys.executable).with_name("sweep")


@pytest.fixture
def sweep(elsewhere, monkeypatch, capsys):
    """Call the command line in this process; give back exit status, stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["sweep", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


@pytest.fixture
def tiny(elsewhere):
    path = elsewhere / "tiny.yaml"
    path.write_text("# A tiny sweep.\n" + TEXT.replace("Tiny", "Tiny [draft]"))
    return path


@pytest.fixture(scope="module")
def ran(tmp_path_factory, empty_store):
    """The storage of a sweep that was run from the command line, with what was printed."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.yaml").write_text(TEXT + "seeds: 2\nsizes: {small: {seeds: 1}}\n")
    storage = folder / "results [1]"  # which looks like markup
    storage.mkdir()
    shutil.copy(empty_store, storage / "mlflow.db")
    printed = start("run", "tiny.yaml", "--local", "--storage", storage, cwd=folder)
    return storage, folder, printed


def start(*arguments, cwd, **more):
    """Run the installed command to its end; give back its result."""
    return subprocess.run(
        [SWEEP, *map(str, arguments)], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300, **more
    )


def environment():
    own = ("MLFLOW_TRACKING_URI", "SWEEP_STORAGE", "SWEEP_DEBUG", "DIRDP_DATA")
    return {name: value for name, value in os.environ.items() if name not in own}


def a_fault(result, *parts):
    status, out, err = result
    assert status == 2 and out == ""
    assert err.count("\n") == 1 and err.startswith("error: ") and "Traceback" not in err
    for part in parts:
        assert part in err


# list


def test_list(sweep):
    status, out, _ = sweep("list")
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert {"figure2", "quickstart"} <= lines.keys()
    assert "Figure 2 and Appendix C.2" in lines["figure2"] and "full, smoke" in lines["figure2"]


def test_the_installed_command_works_from_any_folder(tmp_path):
    done = start("list", cwd=tmp_path)
    assert done.returncode == 0 and "quickstart" in done.stdout and "figure2" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_command(sweep):
    status, out, _ = sweep("--help")
    assert status == 0
    for command in ("list", "plan", "run", "status", "report", "results", "ui", "calibrate"):
        assert command in out


# plan


def test_plan_quickstart(sweep):
    status, out, _ = sweep("plan", "quickstart")
    assert status == 0
    points = [line for line in out.splitlines() if re.match(r"\s*(0\.3|1|3)\s+[\d.]+", line)]
    assert len(points) == 24 and "infeasible" not in out
    assert "24 points, 24 feasible; 48 trials; 84,000 steps" in out and "ASHA may save about" in out
    assert re.search(r"the whole sweep, every trial at full length: 3\.8\d* at δ = 1e-5, nominal ε \(Theorem 10\)", out)
    # γ_eff of the first row is that of the file.
    γ, γ_eff, _, κ = map(float, points[0].split()[1:5])
    assert γ_eff == 0.003 and abs(γ * κ - 0.003) < 2e-5


def test_plan_starts_nothing(tmp_path):
    """Neither Ray nor MLflow is even imported, and no file is written."""
    code = (
        "import sys; from sweep import cli\nsys.argv = ['sweep', 'plan', 'quickstart']\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print([name for name in ('ray', 'mlflow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "48 trials" in done.stdout and done.stdout.splitlines()[-1] == "[]"
    assert list(tmp_path.iterdir()) == []


def test_plan_with_size_and_set(sweep):
    status, out, _ = sweep("plan", "figure2", "--size", "smoke", "--set", "alpha=[1, 3]", "--set", "seeds=4")
    assert status == 0 and "6 points, 6 feasible; 24 trials; 7,200 steps" in out and "no scheduler" in out


def test_plan_shows_what_is_infeasible(sweep, tiny):
    low = ("--set", "sampling_rate=0.04", "--set", "steps=20000", "--set", "alpha=3")
    status, out, _ = sweep("plan", tiny, *low, "--set", "epsilon=[4, 8]")
    assert status == 0 and "4 points, 2 feasible; 4 trials; 40,000 steps" in out
    assert "infeasible: epsilon = 4 is below the least usable budget" in out and "6.082" in out


def test_plan_shows_a_title_that_looks_like_markup(sweep, tiny):
    assert "Tiny [draft]" in sweep("plan", tiny)[1]


def test_plan_says_which_data_are_not_ready(sweep, tmp_path):
    status, out, _ = sweep("plan", "table2", "--data", tmp_path)
    assert status == 0 and out.splitlines()[-1].startswith("not ready: dataset 'mnist': expected the file")
    assert "not ready" not in sweep("plan", "table2")[1] + sweep("plan", "quickstart", "--data", tmp_path)[1]


def test_plan_of_what_needs_no_training(sweep):
    status, out, _ = sweep("plan", "table7")
    assert status == 0 and "23 points, 23 feasible; no training: `sweep run table7` writes the table at once" in out
    assert "the whole sweep" not in out and "scheduler" not in out


# calibrate


PAPER = ("--epsilon", 1, "--delta", 1e-5, "--alpha", 3, "--sampling-rate", 0.005, "--steps", 20000)


def test_calibrate(sweep):
    status, out, _ = sweep("calibrate", *PAPER)
    assert status == 0 and "nominal ε (Theorem 10)" in out
    header, row = (line.split() for line in out.splitlines() if "λ" in line or "0.23489" in line)
    assert header[:6] == ["ε", "δ", "α", "q", "T", "r*"] and "E[L]" not in header
    assert row[5].startswith("0.23489") and "12" in row and any(cell.startswith("0.0771") for cell in row)


def test_calibrate_as_json(sweep):
    status, out, _ = sweep("calibrate", *PAPER, "--json", "--classes", 10)
    (row,) = json.loads(out)
    assert status == 0
    assert f"{row['r']:.5f}" == "0.23489" and 0.999 <= row["achieved"] <= 1 and row["order"] == 12
    assert f"{row['kappa']:.4f}" == "0.0771" and row["floor"] < 1
    assert row["expected_loss"] > 0 and row["loss_variance"] > 0
    assert (row["epsilon"], row["delta"], row["alpha"], row["sampling_rate"], row["steps"]) == (
        1,
        1e-5,
        3,
        0.005,
        20000,
    )


def test_calibrate_several_values(sweep):
    values = ("--epsilon", 1, "--epsilon", 2, "--sampling-rate", "250/60000", "--steps", 9600)
    status, out, _ = sweep("calibrate", *values, "--alpha", 1, "--alpha", 3, "--alpha", 10, "--json")
    rows = json.loads(out)
    assert status == 0 and [(row["epsilon"], row["alpha"]) for row in rows] == [
        (e, a) for e in (1, 2) for a in (1, 3, 10)
    ]
    assert all(row["sampling_rate"] == 250 / 60000 for row in rows)
    rates = [row["r"] for row in rows]
    assert len(set(rates)) == 6 and all(low < high for low, high in zip(rates[:3], rates[3:], strict=True))
    table = sweep("calibrate", *values, "--alpha", 1, "--alpha", 3)[1]
    assert len([line for line in table.splitlines() if "9600" in line]) == 4


def test_calibrate_with_the_exact_bound(sweep):
    status, out, _ = sweep("calibrate", *PAPER, "--bound", "lemma9", "--bound", "exact")
    assert status == 0 and "0.23489" in out and "0.25689" in out and "exact" in out
    status, _, err = sweep("calibrate", *PAPER, "--bound", "tight")
    assert status == 2 and "'lemma9' or 'exact'" in err and "tight" in err


def test_calibrate_rivals(sweep):
    methods = ("--method", "dirichlet", "--method", "dpsgd", "--method", "tempered_sigmoid")
    status, out, _ = sweep("calibrate", *PAPER, *methods)
    assert status == 0 and "nominal ε (Theorem 10), ε (DP-SGD, Gaussian RDP)" in out
    sigma = gaussian.calibrate(epsilon=1, delta=1e-5, sampling_rate=0.005, steps=20_000).noise_multiplier
    rows = [json.loads(sweep("calibrate", *PAPER, "--json", "--method", name)[1])[0] for name in methods[1::2]]
    assert [row.get("noise_multiplier") for row in rows] == [None, sigma, sigma]
    assert [row["r"] is None for row in rows] == [False, True, True]
    alone = sweep("calibrate", *PAPER, "--method", "dpsgd")[1]
    assert "nominal" not in alone and not {"r*", "α", "κ"} & set(alone.split())


def test_calibrate_an_unknown_method(sweep):
    a_fault(sweep("calibrate", *PAPER, "--method", "sgd"), "unknown method 'sgd'", "gaussian_features")


def test_calibrate_no_mechanism(sweep):
    status, out, _ = sweep("calibrate", "--epsilon", "inf", "--sampling-rate", "0.01", "--steps", 100, "--json")
    (row,) = json.loads(out)
    assert status == 0 and row["epsilon"] == row["achieved"] == "inf" and row["kappa"] == 1 and row["r"] is None


def test_calibrate_below_the_floor(sweep):
    status, out, _ = sweep("calibrate", "--epsilon", 4, "--sampling-rate", 0.04, "--steps", 20000)
    assert status == 1 and "none" in out and "6.08" in out


@pytest.mark.parametrize(
    "option, value, said",
    [
        ("--epsilon", "-1", "epsilon"),
        ("--delta", "2", "delta"),
        ("--alpha", "0", "alpha"),
        ("--sampling-rate", "2", "sampling_rate"),
        ("--sampling-rate", "a", "'a' is not a number"),
        ("--sampling-rate", "1/0", "divides by zero"),
        ("--steps", "-5", "steps"),
    ],
)
def test_calibrate_refuses(sweep, option, value, said):
    setting = {"--epsilon": "1", "--sampling-rate": "0.01", "--steps": "100"} | {option: value}
    a_fault(sweep("calibrate", *(word for pair in setting.items() for word in pair)), said, value)


# run and what comes after it


def test_run(ran):
    storage, folder, done = ran
    assert done.returncode == 0, done.stderr
    assert "tiny: 8 trials: 8 new" in done.stdout
    assert "8 trials: 8 completed" in done.stdout and "4 of 4 points have all their seeds" in done.stdout
    for name in ("results.csv", "figure2.csv", "figure2.png", "figure2.pdf"):
        assert str(storage / "tiny" / name) in done.stdout, "the path is shown whole"
        assert (storage / "tiny" / name).is_file()
    assert f"sqlite:///{storage / 'mlflow.db'}" in done.stdout
    assert "nominal ε" in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["results [1]", "tiny.yaml"]


def test_run_again_is_quick_and_trains_nothing(ran, sweep):
    storage, folder, _ = ran
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (storage / "tiny").rglob("*.jsonl")}
    started = time.monotonic()
    status, out, _ = sweep("run", folder / "tiny.yaml", "--local", "--storage", storage)
    assert time.monotonic() - started < 30
    assert status == 0 and "tiny: 8 trials: 0 new, 8 finished before" in out
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    assert str(storage / "tiny" / "figure2.png") in out


def test_status(ran, sweep):
    status, out, _ = sweep("status", "tiny", "--storage", ran[0])
    assert status == 0 and "8 trials: 8 completed" in out and "Best points by test accuracy" in out


def test_report_writes_the_files_anew(ran, sweep):
    figure = ran[0] / "tiny" / "figure2.png"
    figure.unlink()
    status, out, _ = sweep("report", "tiny", "--storage", ran[0])
    assert status == 0 and str(figure) in out
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_results_as_csv(ran, sweep):
    status, out, _ = sweep("results", "tiny", "--storage", ran[0])
    rows = list(csv.DictReader(io.StringIO(out)))
    stored = Store(Folder(ran[0] / "tiny")).read()
    assert status == 0 and {row["trial_id"] for row in rows} == stored.keys()
    assert all(float(row["test_accuracy"]) == stored[row["trial_id"]].reports[-1]["test_accuracy"] for row in rows)
    assert out == (ran[0] / "tiny" / "results.csv").read_text()


def test_results_as_json(ran, sweep):
    status, out, _ = sweep("results", "tiny", "--storage", ran[0], "--format", "json")
    rows = json.loads(out)
    assert status == 0 and len(rows) == 8
    assert {row["end_reason"] for row in rows} == {"completed"} and all(row["epsilon_spent"] <= 1 for row in rows)


def test_storage_from_the_environment(ran, sweep, monkeypatch):
    monkeypatch.setenv("SWEEP_STORAGE", str(ran[0]))
    assert "8 completed" in sweep("status", "tiny")[1]


def test_a_size_is_a_sweep_of_its_own(ran, sweep):
    storage, folder, _ = ran
    status, out, _ = sweep("run", folder / "tiny.yaml", "--size", "small", "--local", "--storage", storage)
    assert status == 0 and "tiny-small: 4 trials: 4 new" in out
    assert "4 completed" in sweep("status", "tiny", "--size", "small", "--storage", storage)[1]
    assert "8 completed" in sweep("status", "tiny", "--storage", storage)[1]


def test_a_variation_with_a_name_keeps_its_results_apart(ran, sweep):
    storage, folder, _ = ran
    variation = ("--name", "mine", "--set", "alpha=1", "--set", "seeds=1")
    status, out, _ = sweep("run", folder / "tiny.yaml", *variation, "--local", "--storage", storage)
    assert status == 0 and "mine: 2 trials: 2 new" in out
    assert "2 completed" in sweep("status", "mine", "--storage", storage)[1]
    assert "8 completed" in sweep("status", "tiny", "--storage", storage)[1]
    a_fault(sweep("run", folder / "tiny.yaml", "--name", "../up"), "--name '../up'", "expected letters, digits")
    a_fault(sweep("run", folder / "tiny.yaml", "--name", "ledger"), "ledger", "folder of the storage itself")


def test_a_report_goes_to_mlflow_too(ran, sweep):
    storage = ran[0]
    client = MlflowClient(tracking_uri=f"sqlite:///{storage / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    (parent,) = client.search_runs([experiment.experiment_id], "tags.`sweep.kind` = 'sweep'")
    kept = storage / "mlartifacts" / parent.info.run_id / "artifacts" / "figure2.html"
    kept.unlink()
    assert sweep("report", "tiny", "--storage", storage)[0] == 0 and kept.read_bytes().startswith(b"<!DOCTYPE html>")


def test_what_needs_no_training_is_computed_without_a_run(sweep):
    status, out, _ = sweep("report", "table6", "--storage", "st")
    assert status == 0 and "0.234894" in out and Path("st/table6/table6.tex").is_file()
    status, out, _ = sweep("run", "table6", "--name", "mine", "--set", "epsilon=2", "--storage", "st")
    assert status == 0 and "0.403462" in out and out == sweep("report", "mine", "--storage", "st")[1]
    assert not list(Path("st").rglob("mlflow*")) and "0.403462" not in sweep("report", "table6", "--storage", "st")[1]


def test_no_picture_of_a_single_point_and_why(sweep, tiny, empty_store):
    shutil.copy(empty_store, "mlflow.db")
    status, out, _ = sweep("run", tiny, "--local", "--storage", ".", "--set", "alpha=1", "--set", "lr=1")
    assert status == 0 and out.count("No figure: it takes results at two learning rates or more") == 1
    assert "No figure" in Path("tiny/figure2.md").read_text(encoding="utf-8")


def test_an_infeasible_point_is_said_and_the_others_run(sweep, tiny, empty_store):
    shutil.copy(empty_store, "mlflow.db")
    tiny.write_text(TEXT.replace("[1, 3]", "3").replace("lr: [0.1, 1]", "lr: 1") + "seeds: 1\n")
    grids = "space=[{lr: 1, alpha: 3, delta: 1e-5}, {lr: 1, alpha: 3, delta: 1e-300}]"
    status, out, _ = sweep("run", tiny, "--local", "--storage", ".", "--set", grids, "--set", "epsilon=0.5")
    assert status == 0
    assert out.splitlines()[0].startswith("infeasible: epsilon = 0.5 is below the least usable budget")
    assert "1 completed, 1 infeasible" in out


def test_a_failed_trial_is_exit_status_1(sweep, tiny, empty_store, monkeypatch):
    shutil.copy(empty_store, "mlflow.db")

    def broken(*args, **kwargs):
        yield {"end_reason": "error", "message": "RuntimeError: the [/layer] is broken"}

    monkeypatch.setattr("sweep.running.run_trial", broken)
    status, out, _ = sweep("run", tiny, "--local", "--storage", ".")
    assert status == 1 and "4 trials: 4 failed" in out and "RuntimeError: the [/layer] is broken" in out


# Faults: one line and exit status 2


def test_unknown_names(sweep, tiny):
    a_fault(sweep("plan", "figure3x"), "unknown search space 'figure3x'", "figure2, ", "quickstart")
    a_fault(sweep("run", "figure3x"), "unknown search space 'figure3x'")
    a_fault(sweep("plan", "missing.yaml"), "no such file: missing.yaml")
    a_fault(sweep("plan", tiny, "--size", "smoke"), "tiny.yaml", "unknown size 'smoke'", "none")
    a_fault(sweep("plan", tiny, "--set", "lrr=1"), "--set lrr=1", "did you mean lr?")
    a_fault(sweep("plan", tiny, "--set", "lr"), "--set lr", "key=value")
    a_fault(sweep("plan", tiny, "--set", "dataset=digit"), "'digit'", "digits, mnist")
    for command in ("status", "report", "results"):
        a_fault(sweep(command, "tinny"), "no sweep 'tinny'", "there: none")


def test_a_fault_keeps_its_brackets(sweep, tiny):
    result = sweep("plan", tiny, "--set", "lr={uniform: [2, 1]}", "--set", "samples=2")
    a_fault(result, "space[0]: lr={'uniform': [2, 1]}", "[low, high] with low < high")
    a_fault(sweep("plan", "[/no]/such [red].yaml"), "no such file: [/no]/such [red].yaml")


def test_a_value_of_another_type(sweep, tiny):
    a_fault(sweep("plan", tiny, "--set", "epsilon=high"), "epsilon: expected a number, got 'high'")
    a_fault(sweep("plan", tiny, "--set", "optimizer=adam"), "optimizer: expected a mapping with keys of name, momentum")
    a_fault(sweep("plan", tiny, "--set", "training=1"), "training: expected true or false, got 1")


def test_an_unknown_format(ran, sweep):
    a_fault(sweep("results", "tiny", "--storage", ran[0], "--format", "xml"), "'xml'", "csv or json")


def test_missing_data(sweep, tiny, elsewhere):
    result = sweep("run", tiny, "--local", "--storage", "st", "--set", "dataset=mnist", "--set", "delta=1e-6")
    assert result[0] == 2 and result[2].startswith("error: ") and "mnist" in result[2] and "Traceback" not in result[2]


def test_an_impossible_tracking_uri(sweep, tiny):
    result = sweep("run", tiny, "--local", "--storage", "st", "--tracking-uri", "./mlruns")
    assert result[0] == 2 and result[2].startswith("error: ") and "sqlite:///" in result[2]
    assert not Path("mlruns").exists()


def test_an_impossible_storage(sweep, tiny):
    Path("file").write_text("")
    result = sweep("run", tiny, "--local", "--storage", "file/below")
    a_fault(result, "file/below", "Not a directory")


def test_a_wrong_option_is_exit_status_2(sweep, tiny):
    for arguments in (["run", tiny, "--max-concurrent", "0"], ["run"], ["fly"], ["plan", tiny, "--sise", "x"]):
        status, _, err = sweep(*arguments)
        assert status == 2 and "Traceback" not in err and err


def test_a_fault_can_be_debugged(sweep, monkeypatch):
    monkeypatch.setenv("SWEEP_DEBUG", "1")
    with pytest.raises(ValueError, match="unknown search space"):
        sweep("plan", "figure3x")


# Ctrl-C on Ray


@pytest.mark.cluster
def test_ctrl_c_keeps_the_results_and_a_second_run_finishes_the_rest(tmp_path, empty_store):
    """Ctrl-C goes to the whole foreground group: the driver and all that it has started."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    longer = TEXT.replace("steps: 40", "steps: 600").replace("reports: 4", "reports: 20")
    (tmp_path / "tiny.yaml").write_text(longer.replace("[0.1, 1]", "1") + "seeds: 3\n")
    command = ["run", "tiny.yaml", "--storage", str(tmp_path)]
    driver = subprocess.Popen(
        [SWEEP, *command, "--max-concurrent", "1"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 240
        while not begun(tmp_path / "tiny"):
            assert driver.poll() is None and time.monotonic() < deadline, driver.communicate(timeout=60)
            time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGINT)
        out, err = driver.communicate(timeout=120)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 1, err
    assert "Traceback" not in err and "Traceback" not in out
    ends = [record.end_reason for record in Store(Folder(tmp_path / "tiny")).read().values()]
    assert ends.count("completed") >= 1 and ends.count("interrupted") == 1
    assert len(ends) == ends.count("completed") + 1 < 6
    assert f"{ends.count('completed')} completed, 1 interrupted" in out
    assert str(tmp_path / "tiny" / "results.csv") in out and "MLflow" in out

    done = start(*command, "--local", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    finished = ends.count("completed")
    assert (
        f"tiny: 6 trials: {5 - finished} new, {finished} finished before, 1 unfinished, 1 of them from" in done.stdout
    )
    assert "6 trials: 6 completed" in done.stdout


def begun(folder):
    """Whether a trial has completed and another one is under way."""
    records = Store(Folder(folder)).read().values()
    return {"completed"} == {r.end_reason for r in records if r.end_reason} and any(
        r.reports and not r.end_reason for r in records
    )


def test_audit(ran, sweep):
    status, out, _ = sweep("audit", "tiny", "--storage", ran[0], "--local", "--canaries", 60)
    assert status == 0 and "tiny-audit-noise: 3 trials: 3 new" in out
    assert "ε claimed" in out and "not refuted" in out
    assert "control DP-SGD: not caught" in out and "control without a mechanism" in out
    assert (ran[0] / "tiny-audit-noise" / "audit.png").is_file()
