"""TrainingPlan: its identity, what it derives, and everything that it refuses."""

import hashlib
import json
import math
import pickle
from itertools import combinations

import numpy as np
import pytest
from pydantic import ValidationError

from dirdp import TrainingPlan
from dirdp.methods import options
from dirdp.plan import Audit, Optimizer, Schedule, Validation

N = 1437
BASE = {
    "dataset": "digits",
    "model": "mlp",
    "epsilon": 1,
    "sampling_rate": 16 / N,
    "steps": 1500,
    "lr": 0.1,
}
FULL = BASE | {
    "method": "dirichlet",
    "delta": 1e-6,
    "alpha": 0.3,
    "optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-4, "nesterov": True},
    "augmentation": "crop-flip",
    "normalize": "expected",
    "validation": {"fraction": 0.1},
    "reports": 7,
    "randomness": "research",
    "seed": 3,
    "allow_large_delta": True,
    "norm": "group",
    "schedule": {"name": "step", "warmup": 0.1, "milestones": [0.5, 0.75], "decay": 0.2},
    "allow_unofficial": True,
    "bound": "exact",
    "audit": {"canaries": 30},
}
# One other value for each field; some need another field changed with them.
OTHERS = {
    "dataset": {"dataset": "mnist"},
    "model": {"model": "cnn"},
    "method": {"method": "nonprivate", "epsilon": math.inf, "bound": "lemma9"},
    "epsilon": {"epsilon": 1 + 1e-15},
    "delta": {"delta": 1e-7},
    "alpha": {"alpha": 0.31},
    "sampling_rate": {"sampling_rate": 17 / N},
    "steps": {"steps": 1501},
    "lr": {"lr": 0.11},
    "effective_lr": {"lr": None, "effective_lr": 0.1},
    "optimizer.name": {"optimizer": {"name": "adam", "weight_decay": 1e-4}},
    "optimizer.momentum": {"optimizer": FULL["optimizer"] | {"momentum": 0.8}},
    "optimizer.weight_decay": {"optimizer": FULL["optimizer"] | {"weight_decay": 0}},
    "optimizer.nesterov": {"optimizer": FULL["optimizer"] | {"nesterov": False}},
    "augmentation": {"augmentation": "none"},
    "normalize": {"normalize": "batch"},
    "validation": {"validation": None},
    "validation.fraction": {"validation": {"fraction": 0.2}},
    "reports": {"reports": 8},
    "randomness": {"randomness": "secure", "seed": None},
    "seed": {"seed": 4},
    "repeat": {"randomness": "secure", "seed": None, "repeat": 1},
    "allow_large_delta": {"allow_large_delta": False},
    "norm": {"norm": "batch"},
    "schedule.name": {"schedule": {"name": "constant", "warmup": 0.1}},
    "schedule.warmup": {"schedule": FULL["schedule"] | {"warmup": 0.2}},
    "schedule.final": {"schedule": {"name": "cosine", "final": 0.1}},
    "schedule.milestones": {"schedule": FULL["schedule"] | {"milestones": [0.5]}},
    "schedule.decay": {"schedule": FULL["schedule"] | {"decay": 0.3}},
    "allow_unofficial": {"allow_unofficial": False},
    "bound": {"bound": "lemma9"},
    "audit": {"audit": None},
    "audit.canaries": {"audit": FULL["audit"] | {"canaries": 20}},
    "audit.canary": {"audit": FULL["audit"] | {"canary": "mislabelled"}},
    "audit.guesses": {"audit": FULL["audit"] | {"guesses": 4}},
    "audit.confidence": {"audit": FULL["audit"] | {"confidence": 0.9}},
    "weight_ema": {"weight_ema": 0.99},
    "weight_standardization": {"weight_standardization": True},
}
# The options of a method need its method; each is told from the first.
OPTIONS = {
    "dpsgd": {"method": "dpsgd", "bound": "lemma9"},
    "dpsgd.clipping_norm": {"method": "dpsgd", "bound": "lemma9", "dpsgd": {"clipping_norm": 0.5}},
    "dpsgd.augmentation_multiplicity": {
        "method": "dpsgd",
        "bound": "lemma9",
        "dpsgd": {"augmentation_multiplicity": 4},
    },
    "tempered_sigmoid": {"method": "tempered_sigmoid", "bound": "lemma9"},
    "tempered_sigmoid.scale": {"method": "tempered_sigmoid", "bound": "lemma9", "tempered_sigmoid": {"scale": 1}},
    "tempered_sigmoid.temperature": {
        "method": "tempered_sigmoid",
        "bound": "lemma9",
        "tempered_sigmoid": {"temperature": 1},
    },
    "tempered_sigmoid.offset": {"method": "tempered_sigmoid", "bound": "lemma9", "tempered_sigmoid": {"offset": 0}},
    "gaussian_features": {"method": "gaussian_features", "bound": "lemma9"},
    "gaussian_features.clipping_norm": {
        "method": "gaussian_features",
        "bound": "lemma9",
        "gaussian_features": {"clipping_norm": 2},
    },
}
OTHERS |= OPTIONS


def plan_of(**changes):
    return TrainingPlan(**(BASE | changes))


def without(*keys, **changes):
    return {key: value for key, value in BASE.items() if key not in keys} | changes


def refusal(fields):
    with pytest.raises(ValueError) as caught:
        TrainingPlan(**fields)
    assert isinstance(caught.value, ValidationError)
    return caught.value


# Identity


def test_identities_are_pinned():
    """Changing one of these makes every finished trial of every user run again."""
    content = (
        '{"allow_large_delta": false, "allow_unofficial": false, "alpha": 3.0, '
        '"audit": null, "augmentation": "none", "bound": "lemma9", '
        '"dataset": "digits", "delta": 1e-05, "dpsgd": null, "effective_lr": null, "epsilon": 1.0, '
        '"gaussian_features": null, "lr": 0.1, "method": "dirichlet", "model": "mlp", '
        '"norm": "batch", "normalize": "batch", '
        '"optimizer": {"momentum": 0.0, "name": "sgd", "nesterov": false, "weight_decay": 0.0}, '
        '"randomness": "research", "repeat": 0, "reports": 20, "sampling_rate": 0.011134307585247043, '
        '"schedule": {"decay": 0.1, "final": 0.0, "milestones": [], "name": "constant", "warmup": 0.0}, '
        '"seed": 0, "steps": 1500, "tempered_sigmoid": null, "validation": null, '
        '"weight_ema": 0.0, "weight_standardization": false}'
    )
    assert plan_of().trial_id == hashlib.sha256(content.encode()).hexdigest()[:12]
    assert plan_of().trial_id == "f85c3462c99e"
    assert plan_of().point_id == "a00cb4dd2f93"
    assert TrainingPlan(**FULL).trial_id == "da568f3e44b6"
    assert plan_of(epsilon=math.inf).trial_id == "3eacf797bd54"


def test_the_identity_is_that_of_the_content():
    plan = plan_of()
    assert plan == plan_of() and hash(plan) == hash(plan_of())
    assert {plan: 1}[plan_of()] == 1
    assert plan.trial_id != plan_of(seed=1).trial_id
    spelled_out = plan_of(delta=1e-5, alpha=3, seed=0, optimizer=Optimizer(), reports=20, validation=None, repeat=0)
    assert spelled_out.trial_id == plan.trial_id
    assert plan_of(epsilon=1.0, steps=1500.0).trial_id == plan.trial_id
    assert plan_of(steps=np.int64(1500), lr=np.float64(0.1)).trial_id == plan.trial_id


def test_every_field_enters_the_identity():
    fields = {name.partition(".")[0] for name in OTHERS}
    assert fields == set(TrainingPlan.model_fields)
    parts = {
        "optimizer": Optimizer,
        "schedule": Schedule,
        "validation": Validation,
        "dpsgd": options.DpSgdOptions,
        "tempered_sigmoid": options.TemperedSigmoidOptions,
        "gaussian_features": options.GaussianFeaturesOptions,
    }
    for part, model in parts.items():
        assert {name.partition(".")[2] for name in OTHERS if name.startswith(f"{part}.")} == set(model.model_fields)
    varied = {name.partition(".")[2] for name in OTHERS if name.startswith("audit.")}
    assert varied == set(Audit.model_fields) - {"kind"}  # which has but one value
    plans = {"": TrainingPlan(**FULL)} | {name: TrainingPlan(**(FULL | changes)) for name, changes in OTHERS.items()}
    for (left, one), (right, other) in combinations(plans.items(), 2):
        assert one.trial_id != other.trial_id, (left, right)
        assert one != other
        same_point = {left, right} in ({"", "seed"}, {"randomness", "repeat"})
        assert (one.point_id == other.point_id) == same_point, (left, right)


def test_the_order_of_the_keys_is_no_matter():
    backwards = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value
        for key, value in reversed(FULL.items())
    }
    assert list(backwards) != list(FULL)
    assert TrainingPlan(**backwards).trial_id == TrainingPlan(**FULL).trial_id


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
def test_a_plan_survives_the_way_to_a_worker(changes):
    plan = TrainingPlan(**(FULL | changes))
    for copy in (
        TrainingPlan.model_validate_json(plan.model_dump_json()),
        TrainingPlan(**json.loads(json.dumps(plan.model_dump(mode="json")))),
        TrainingPlan(**plan.model_dump()),
        pickle.loads(pickle.dumps(plan)),
    ):
        assert copy == plan and copy.trial_id == plan.trial_id


@pytest.mark.parametrize("name", TrainingPlan.model_fields)
def test_a_plan_is_frozen(name):
    plan = plan_of()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(plan, name, getattr(plan, name))
    with pytest.raises(ValidationError, match="frozen"):
        plan.optimizer.momentum = 0.5


# What follows from the fields


def test_batch_sizes_and_epochs_stand_for_rate_and_steps():
    plan = TrainingPlan(**without("sampling_rate", "steps", expected_batch_size=16, epochs=10))
    assert plan.sampling_rate == 16 / N
    assert plan.steps == round(10 * N / 16) == 898
    assert plan.trial_id == plan_of(steps=898).trial_id
    assert TrainingPlan(**without("steps", epochs=2.5)).steps == round(2.5 * N / 16)
    assert TrainingPlan(**without("sampling_rate", expected_batch_size=N)).sampling_rate == 1


@pytest.mark.parametrize("validation", [{"fraction": 0.1}, Validation(fraction=0.1)], ids=["mapping", "model"])
def test_batch_sizes_count_the_records_trained_on(validation):
    plan = TrainingPlan(**without("sampling_rate", expected_batch_size=16, validation=validation))
    assert plan.training_size == N - 144
    assert plan.sampling_rate == 16 / (N - 144)
    whole = TrainingPlan(**without("sampling_rate", expected_batch_size=N - 144, validation=validation))
    assert whole.sampling_rate == 1
    message = str(refusal(without("sampling_rate", expected_batch_size=N - 143, validation=validation)))
    assert f"expected_batch_size={N - 143} is more than the {N - 144} records trained on" in message


@pytest.mark.parametrize(
    ("steps", "reports", "expected"),
    [
        (10, 5, [2, 4, 6, 8, 10]),
        (10, 3, [4, 7, 10]),
        (7, 7, [1, 2, 3, 4, 5, 6, 7]),
        (9, 1, [9]),
        (10**15 + 1, 2, [5 * 10**14 + 1, 10**15 + 1]),
    ],
)
def test_reports_are_evenly_spaced_and_the_last_is_at_the_end(steps, reports, expected):
    assert plan_of(steps=steps, reports=reports).report_steps == expected


def test_decisions_look_at_the_held_out_part_where_there_is_one():
    assert plan_of().score == "test_accuracy"
    assert plan_of(validation={"fraction": 0.1}).score == "validation_accuracy"


def test_defaults_are_the_papers():
    plan = plan_of()
    assert (plan.method, plan.delta, plan.alpha, plan.normalize) == ("dirichlet", 1e-5, 3.0, "batch")
    assert plan.optimizer == Optimizer(name="sgd", momentum=0, weight_decay=0, nesterov=False)
    assert (plan.augmentation, plan.validation, plan.randomness, plan.seed) == ("none", None, "research", 0)
    assert plan_of(seed=None).seed == 0
    secure = plan_of(randomness="secure", repeat=2)
    assert (secure.seed, secure.repeat) == (None, 2)


# δ and the size of the data set


@pytest.mark.parametrize("delta", [1 / N, 1e-3, 0.5])
def test_a_delta_that_publishes_a_record_is_refused_unless_allowed_by_name(delta):
    assert f"delta={delta} is not below 1/n = 0.000696" in str(refusal(BASE | {"delta": delta}))
    assert plan_of(delta=delta, allow_large_delta=True).delta == delta
    assert plan_of(delta=delta, epsilon=math.inf).delta == delta  # where there is no claim, δ means nothing
    assert plan_of(delta=math.nextafter(1 / N, 0)).delta < 1 / N


def test_n_in_that_rule_is_the_number_of_records_trained_on():
    delta = 1 / (N - 700)
    assert_names(refusal(BASE | {"delta": delta}), "delta", delta)
    assert plan_of(delta=delta, validation={"fraction": 0.9}).training_size == 144
    assert_names(refusal(BASE | {"delta": 1 / 144, "validation": {"fraction": 0.9}}), "delta", 1 / 144)


# Refusals: each names the field and its value

NAN, INF = math.nan, math.inf
NO_NUMBERS = [True, False, "1", "abc", "1e-5", [1], {"a": 1}, 1j]
POSITIVE = [0, -1, NAN, -INF, None, *NO_NUMBERS]
WRONG = {
    "epsilon": POSITIVE,
    "delta": [0, 1, -1e-5, 1.5, NAN, INF, -INF, None, *NO_NUMBERS],
    "alpha": [*POSITIVE, INF],
    "sampling_rate": [0, -0.1, 1.0001, NAN, INF, -INF, None, *NO_NUMBERS],
    "steps": [0, -1, 1.5, NAN, INF, None, *NO_NUMBERS],
    "lr": [0, -1, NAN, INF, -INF, 1e31, 1e300, *NO_NUMBERS],
    "reports": [0, -1, 1.5, 1501, NAN, INF, None, *NO_NUMBERS],
    "seed": [-1, 1.5, 2**63, 2**70, NAN, INF, *NO_NUMBERS],
    "repeat": [-1, 1, 1.5, NAN, INF, None, *NO_NUMBERS],
    "dataset": ["imagenet", "MNIST", "", "medmnist:nope", "medmnist:chestmnist", None, 1, True, ["digits"]],
    "model": ["vgg", "MLP", "", None, 1, True, ["mlp"]],
    "method": ["dp-sgd", "", None, 1, True],
    "augmentation": ["flip", "", None, 1, True, False],
    "normalize": ["sum", None, 1, True],
    "randomness": ["entropy", None, 1, True],
    "allow_large_delta": [1, 0, "true", "yes", None, 1.0],
    "allow_unofficial": [1, 0, "true", "yes", None, 1.0],
    "norm": ["layer", None, 1, True],
    "optimizer": ["adam", None, 1, True, ["sgd"]],
    "validation": [0.1, "0.1", True, 1, [0.1]],
}
WRONG_INSIDE = {
    ("optimizer", "name"): ["lion", "", None, 1, True],
    ("optimizer", "momentum"): [-0.1, 1, 2, NAN, INF, None, *NO_NUMBERS],
    ("optimizer", "weight_decay"): [-0.1, NAN, INF, None, *NO_NUMBERS],
    ("optimizer", "nesterov"): [1, 0, "yes", None],
    ("validation", "fraction"): [0, 1, -0.1, 1.5, NAN, INF, None, 1e-6, 1 - 1e-6, *NO_NUMBERS],
}


def assert_names(error, name, value):
    """Pydantic names field and input itself; where the fault is one of the whole plan, the message has to."""
    first = error.errors()[0]
    if first["loc"]:
        assert ".".join(first["loc"]) == name
        assert first["input"] is value or first["input"] == value
    else:
        assert name in first["msg"] and repr(value) in first["msg"]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_refused_by_name(name, value):
    fields = BASE | {name: value}
    if name == "method" and value is not None:
        fields["epsilon"] = math.inf
    assert_names(refusal(fields), name, value)


@pytest.mark.parametrize(("name", "value"), [("effective_lr", value) for value in WRONG["lr"]])
def test_a_wrong_effective_rate_is_refused_by_name(name, value):
    assert_names(refusal(without("lr", effective_lr=value)), name, value)


@pytest.mark.parametrize(
    ("name", "inner", "value"), [(*names, value) for names, values in WRONG_INSIDE.items() for value in values]
)
def test_a_wrong_value_inside_is_refused_by_name(name, inner, value):
    assert_names(refusal(BASE | {name: {inner: value}}), f"{name}.{inner}", value)


@pytest.mark.parametrize("value", [0, -1, NAN, INF, None, pytest.param(10**400, id="huge"), *NO_NUMBERS])
@pytest.mark.parametrize(("name", "replaced"), [("expected_batch_size", "sampling_rate"), ("epochs", "steps")])
def test_a_wrong_substitute_is_refused_by_its_own_name(name, replaced, value):
    assert_names(refusal(without(replaced, **{name: value})), name, value)


@pytest.mark.parametrize("value", [0, -1, 2, NAN, INF, None, "0.1", True])
def test_a_wrong_rate_beside_epochs_is_refused_by_name(value):
    assert_names(refusal(without("steps", epochs=1, sampling_rate=value)), "sampling_rate", value)


@pytest.mark.parametrize("value", [0, 1, 2.0, NAN, "0.1", True, None])
def test_a_wrong_fraction_beside_a_batch_size_is_refused_by_name(value):
    fields = without("sampling_rate", expected_batch_size=16, validation={"fraction": value})
    assert_names(refusal(fields), "validation.fraction", value)


@pytest.mark.parametrize("value", [0.1, [0.1], "0.1", True, 1])
def test_a_wrong_validation_beside_a_batch_size_is_refused_by_name(value):
    assert_names(refusal(without("sampling_rate", expected_batch_size=16, validation=value)), "validation", value)


def test_too_many_or_too_few_steps_from_epochs_are_refused():
    assert_names(refusal(without("steps", epochs=1e308, sampling_rate=1e-5)), "epochs / sampling_rate", INF)
    assert_names(refusal(without("steps", epochs=1e-9)), "steps", 0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (BASE | {"effective_lr": 0.2}, "exactly one of lr and effective_lr, got 0.1 and 0.2"),
        (without("lr"), "exactly one of lr and effective_lr, got None and None"),
        (BASE | {"epochs": 3}, "steps or epochs, not both, got 1500 and 3"),
        (BASE | {"expected_batch_size": 16}, "sampling_rate or expected_batch_size, not both, got 0.011"),
        (without("sampling_rate", expected_batch_size=1438), "expected_batch_size=1438 is more than the 1437 records"),
        (BASE | {"method": "nonprivate"}, "method nonprivate has epsilon=inf, got epsilon=1"),
        (BASE | {"randomness": "secure", "seed": 0}, "randomness=secure .* takes no seed, got 0"),
        (BASE | {"randomness": "secure", "seed": 5}, "randomness=secure .* takes no seed, got 5"),
        (BASE | {"repeat": 1}, "repeat=1 is for randomness=secure"),
        (BASE | {"reports": 1501}, "reports=1501 is more than steps=1500"),
        (BASE | {"optimizer": {"name": "adam", "momentum": 0.9}}, "momentum=0.9 .* belong to sgd, got name=adam"),
        (BASE | {"optimizer": {"name": "adamw", "nesterov": True}}, "nesterov=True belong to sgd, got name=adamw"),
        (BASE | {"optimizer": {"nesterov": True}}, "nesterov=True needs momentum above 0"),
        (BASE | {"validation": {"fraction": 1e-6}}, "fraction=1e-06 holds out 0 of the 1437"),
        (BASE | {"validation": {"fraction": 0.9999}}, "fraction=0.9999 holds out 1437 of the 1437"),
        (BASE | {"learning_rate": 0.1}, r"learning_rate\s+Extra inputs are not permitted"),
        (BASE | {"optimizer": {"beta": 0.1}}, r"optimizer.beta\s+Extra inputs are not permitted"),
        (BASE | {"validation": {}}, r"validation.fraction\s+Field required"),
    ],
)
def test_an_impossible_combination_is_refused(fields, expected):
    with pytest.raises(ValidationError, match=expected):
        TrainingPlan(**fields)


@pytest.mark.parametrize("name", BASE)
def test_what_is_missing_is_named(name):
    error = refusal(without(name))
    assert error.errors()[0]["loc"] == (name,) or (name == "lr" and "lr" in error.errors()[0]["msg"])


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("dataset", ["digits", "mnist", "fashionmnist", "cifar10", "medmnist:NAME"]),
        ("norm", ["batch", "group"]),
        ("model", ["mlp", "cnn", "inception", "resnet18"]),
        ("method", ["dirichlet", "nonprivate", "dpsgd", "tempered_sigmoid", "gaussian_features"]),
        ("augmentation", ["none", "crop-flip"]),
        ("normalize", ["batch", "expected"]),
        ("randomness", ["research", "secure"]),
    ],
)
def test_an_unknown_name_lists_the_choices(name, choices):
    message = str(refusal(BASE | {name: "nonsense"}))
    assert "nonsense" in message
    assert all(choice in message for choice in choices)


def test_an_ordinal_or_multi_label_set_is_refused_with_the_reason():
    assert "multi-label" in str(refusal(BASE | {"dataset": "medmnist:chestmnist"}))
    assert "ordinal" in str(refusal(BASE | {"dataset": "medmnist:retinamnist"}))


@pytest.mark.parametrize("content", [None, 3, "digits", [BASE]])
def test_only_a_mapping_makes_a_plan(content):
    with pytest.raises(ValidationError):
        TrainingPlan.model_validate(content)
    assert TrainingPlan.model_validate(BASE) == plan_of()
