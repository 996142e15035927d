"""The run loop, in this process: what it prints, writes and tells MLflow, and how it ends."""

import contextlib
import csv
import io
import math
import shutil
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient
from numpy.testing import assert_allclose
from rich.console import Console

from dirdp.datasets import DataError
from sweep import running
from sweep.campaign import Campaign
from sweep.lock import Lock
from sweep.planning import plan
from sweep.results import Results
from sweep.running import RunOptions, run
from sweep.spec import SpecError, Sweep
from sweep.storage import Folder, StoreError, open_storage
from sweep.store import Store
from sweep.tracking import TrackingError, default_uri

from .spaces import RATE, a_sweep, train

pytestmark = pytest.mark.usefixtures("elsewhere")

GRID = {"alpha": [1, 3], "lr": [0.1, 1]}
ASHA = {"asha": {"grace": 0.25, "reduction_factor": 2}}


@pytest.fixture
def storage(tmp_path, empty_store):
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory, empty_store):
    """A sweep of four points with two seeds, run once for the tests that look at what it left."""
    folder = tmp_path_factory.mktemp("results")
    shutil.copy(empty_store, folder / "mlflow.db")
    sweep = a_sweep(GRID, seeds=2, title="A [draft] of it")
    outcome, printed = run_here(sweep, folder)
    return folder, plan(sweep), outcome, printed


def run_here(sweep, storage, **options):
    screen = io.StringIO()
    place = Folder(storage) if isinstance(storage, Path) else storage
    options = {"storage": place, "local": True} | options
    outcome = run(plan(sweep), RunOptions(**options), console=Console(file=screen, width=200))
    return outcome, screen.getvalue()


class Tracked:
    """What MLflow holds of one sweep."""

    def __init__(self, uri, name="tiny"):
        self.client = MlflowClient(tracking_uri=uri)
        self.experiment = self.client.get_experiment_by_name(name)
        runs = self.client.search_runs([self.experiment.experiment_id], max_results=1000)
        (self.parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
        self.trials = {run.data.tags["sweep.trial_id"]: run for run in runs if run is not self.parent}

    def curve(self, trial_id, metric):
        history = self.client.get_metric_history(self.trials[trial_id].info.run_id, metric)
        return sorted((point.step, point.value) for point in history)

    def ends(self):
        return sorted(run.data.tags["sweep.end_reason"] for run in self.trials.values())


def test_names_of_trials_hold_what_varies_and_is_given():
    sweep = a_sweep([{"lr": [0.1, 1], "audit": {"canaries": 50}}, {"effective_lr": 0.1, "audit": {"canaries": 60}}])
    plans = {trial.id: trial.plan.model_dump() for trial in plan(sweep).trials}
    assert list(running._labels(plans).values()) == [
        "lr=0.1 audit.canaries=50 seed=0",
        "lr=1 audit.canaries=50 seed=0",
        "effective_lr=0.1 audit.canaries=60 seed=0",
    ]


# What a run that died leaves behind


@pytest.mark.parametrize("left", ["nothing", "a trial"], ids=lambda left: f"{left} left to run")
def test_what_a_driver_that_died_had_not_told_mlflow_is_told_by_the_next_run(storage, left):
    """Killed between the store and MLflow: runs that are open, of which the store knows the end, or not there."""
    sweep = a_sweep({"lr": [0.1, 0.5, 1]})
    run_here(sweep, storage)
    told = Tracked(default_uri(storage))
    curves = {trial: told.curve(trial, "test_accuracy") for trial in told.trials}
    torn, missing, untouched = told.trials
    told.client.update_run(told.trials[torn].info.run_id, status="RUNNING")
    told.client.update_run(told.parent.info.run_id, status="RUNNING")
    told.client.delete_run(told.trials[missing].info.run_id)
    (storage / "tiny" / "mlflow-open").touch()
    ended = told.trials[untouched].info.end_time

    space = [0.1, 0.5, 1] if left == "nothing" else [0.1, 0.5, 1, 2]
    run_here(a_sweep({"lr": space}), storage)
    again = Tracked(default_uri(storage))
    assert {run.info.status for run in [again.parent, *again.trials.values()]} == {"FINISHED"}
    assert again.ends() == ["completed"] * len(space)
    assert {trial: again.curve(trial, "test_accuracy") for trial in curves} == curves
    assert again.trials[untouched].info.end_time == ended
    assert not (storage / "tiny" / "mlflow-open").exists()


# What a run does not start


def test_trials_that_the_budget_has_no_room_for_are_counted_at_the_end_and_before_the_next_run(storage):
    sweep = a_sweep({"lr": [0.1, 1, 2, 4]}, trial={"epsilon": 8}, budget={"sweep_epsilon": 10})
    outcome, printed = run_here(sweep, storage)
    said = f"{4 - len(outcome.results.records)} trials that the budget has no room for"
    assert 0 < len(outcome.results.records) < 3 and outcome.complete
    assert said not in printed.splitlines()[0] and said in printed.splitlines()[-1]
    again, printed = run_here(sweep, storage)
    assert said in printed.splitlines()[0] and again.results.records == outcome.results.records


def test_a_run_that_cannot_start_hides_no_earlier_results(storage, tmp_path):
    run_here(a_sweep({"lr": [0.1, 1]}), storage)
    before = {path.name: path.read_bytes() for path in (storage / "tiny").glob("*.*")}
    with pytest.raises(DataError):
        run_here(a_sweep({"lr": [2]}, trial={"dataset": "mnist"}), storage, data_root=tmp_path)
    assert {path.name: path.read_bytes() for path in (storage / "tiny").glob("*.*")} == before
    assert len(Results.read(Folder(storage), "tiny").records) == 2


def test_a_sweep_that_runs_is_not_run_a_second_time(storage):
    refused = pytest.raises(StoreError, match=r"is being run by process .* --force-unlock")
    with Lock(Folder(storage / "tiny")), refused:
        run_here(a_sweep(), storage)
    assert run_here(a_sweep(), storage)[0].complete


def test_trials_outside_the_space_are_not_passed_over_in_silence(storage):
    run_here(a_sweep({"lr": [0.1, 1]}), storage)
    outcome, _ = run_here(a_sweep({"lr": [2]}), storage)
    assert outcome.results.removed == Results.read(Folder(storage), "tiny").removed == 2
    tag = Tracked(default_uri(storage)).parent.data.tags["sweep.sweep_epsilon_planned"]
    assert "over 2 earlier trials of this name" in tag


def test_a_sweep_on_a_bucket(s3, tmp_path, empty_store, monkeypatch):
    """The same results as in a folder; what people open lies beside it, and a second run finds all done."""
    local = tmp_path / "sweep-results"
    local.mkdir()
    shutil.copy(empty_store, local / "mlflow.db")
    bucket, sweep = open_storage(s3()), a_sweep({"lr": [0.1, 1]})
    with interrupting(monkeypatch, after=3):
        assert not run_here(sweep, bucket)[0].complete
    outcome, printed = run_here(sweep, bucket)
    assert outcome.complete and "1 of them from their last checkpoint" in printed
    assert bucket.names() == ["ledger", "tiny"] and {"sweep.yaml", "trials"} <= set(bucket.names("tiny"))
    assert bucket.names("tiny/checkpoints") == [] and bucket.read("tiny/lock.json") is None
    assert (local / "tiny" / "figure2.png").is_file() and Tracked(default_uri(local)).ends() == ["completed"] * 2
    again = run_here(sweep, bucket)[0].results
    assert again.records == Results.read(bucket, "tiny").records
    here = Store(Folder(tmp_path / "here"))
    campaign = Campaign(plan(sweep), here, listeners=[])
    train(campaign)
    accuracies = {name: [one["test_accuracy"] for one in record.reports] for name, record in here.read().items()}
    assert accuracies == {one.trial_id: [r["test_accuracy"] for r in one.reports] for one in again.records}


# What a run leaves


def test_outcome(ran):
    folder, laid_out, outcome, _ = ran
    assert outcome.complete
    assert [record.trial_id for record in outcome.results.records] == [trial.id for trial in laid_out.trials]
    assert {path.name for path in outcome.files} >= {"results.csv", "figure2.csv", "figure2.png", "figure2.pdf"}
    assert all(path.parent == folder / "tiny" and path.stat().st_size for path in outcome.files)


def test_results_are_those_of_the_store(ran):
    folder, _, outcome, _ = ran
    stored = Store(Folder(folder / "tiny")).read()
    assert {record.trial_id: record for record in outcome.results.records} == stored
    assert Results.read(Folder(folder), "tiny").records == outcome.results.records
    with (folder / "tiny" / "results.csv").open() as file:
        rows = {row["trial_id"]: row for row in csv.DictReader(file)}
    assert rows.keys() == stored.keys()
    for name, row in rows.items():
        assert row["end_reason"] == "completed"
        assert float(row["test_accuracy"]) == stored[name].reports[-1]["test_accuracy"]
        assert float(row["r_star"]) == stored[name].info["r"]


def test_the_spec_is_written_down_and_read_back(ran):
    folder, laid_out, _, _ = ran
    content = yaml.safe_load((folder / "tiny" / "sweep.yaml").read_text())
    assert Sweep.model_validate(content) == laid_out.sweep == Results.read(Folder(folder), "tiny").sweep


def test_it_says_what_is_new(ran):
    assert ran[3].splitlines()[0] == "tiny: 8 trials: 8 new"


def test_nothing_is_written_outside_the_storage(ran, tmp_path):
    assert list(tmp_path.iterdir()) == []
    assert {path.name for path in ran[0].iterdir()} <= {
        "tiny",
        "ledger",
        "mlflow.db",
        "mlflow.db-wal",
        "mlflow.db-shm",
        "mlartifacts",
    }


# MLflow's side


@pytest.fixture(scope="module")
def tracked(ran):
    return Tracked(default_uri(ran[0]))


def test_one_parent_and_a_child_for_each_trial(ran, tracked):
    assert tracked.trials.keys() == {trial.id for trial in ran[1].trials}
    assert {run.data.tags["mlflow.parentRunId"] for run in tracked.trials.values()} == {tracked.parent.info.run_id}
    assert {run.info.status for run in [tracked.parent, *tracked.trials.values()]} == {"FINISHED"}


def test_tags_of_a_trial(ran, tracked):
    for trial in ran[1].trials:
        tags = tracked.trials[trial.id].data.tags
        assert tags["sweep.end_reason"] == "completed" and tags["sweep.kind"] == "trial"
        assert tags["sweep.point_id"] == trial.point_id and tags["sweep.claim"] == "nominal ε (Theorem 10)"
        assert tags["sweep.release"].startswith("not for release")
        assert tags["sweep.device"] == "cpu" and tags["sweep.threads"] == "1"
    colors = {(run.data.params["alpha"], run.data.tags["mlflow.runColor"]) for run in tracked.trials.values()}
    assert len(colors) == 2 and len({color for _, color in colors}) == 2, "one colour for each α"


def test_params_of_a_trial(ran, tracked):
    for point in ran[1].points:
        for trial in point.trials:
            params = tracked.trials[trial.id].data.params
            assert float(params["r_star"]) == point.method.r
            assert float(params["attenuation"]) == point.method.attenuation
            for key, value in trial.plan.model_dump().items():
                if value is not None:
                    assert key in params
            assert (params["lr"], params["seed"], params["dataset"]) == (
                str(trial.plan.lr),
                str(trial.plan.seed),
                "digits",
            )


@pytest.mark.parametrize("metric", ["test_accuracy", "train_loss", "epsilon_spent", "effective_learning_rate"])
def test_metrics_by_training_step(ran, tracked, metric):
    for record in ran[2].results.records:
        # Final values lie at the last step too.
        expected = [(report["step"], report[metric]) for report in record.reports]
        assert sorted(set(tracked.curve(record.trial_id, metric))) == expected
        assert [step for step, _ in expected] == [10, 20, 30, 40]


def test_no_metric_that_there_is_not(tracked):
    assert all("validation_accuracy" not in run.data.metrics for run in tracked.trials.values())


def test_final_metrics(ran, tracked):
    for record in ran[2].results.records:
        metrics = tracked.trials[record.trial_id].data.metrics
        assert metrics["final_accuracy"] == record.reports[-1]["test_accuracy"]
        assert metrics["r_star"] == record.info["r"] and metrics["attenuation"] == record.info["attenuation"]
        rate, attenuation = record.info["learning_rate"], record.info["attenuation"]
        assert_allclose(metrics["log10_learning_rate"], math.log10(rate))
        assert_allclose(metrics["log10_effective_learning_rate"], math.log10(rate * attenuation))


def test_the_parent_has_the_whole_sweep_s_epsilon(ran, tracked):
    planned = ran[1].sweep_epsilon
    assert tracked.parent.data.metrics["sweep_epsilon_planned"] == planned > 1
    tag = tracked.parent.data.tags["sweep.sweep_epsilon_planned"]
    shown = float(tag.partition("length: ")[2].partition(" ")[0])
    assert planned <= shown < planned + 1e-4  # rounded up, never down
    assert "nominal" in tag and "1e-5" in tag
    assert tracked.parent.data.params == {"trials": "8", "points": "4", "seeds": "2"}
    assert tracked.parent.data.tags["sweep.title"] == "A [draft] of it"


def test_the_parent_has_spec_results_and_figure(ran, tracked):
    found = {file.path for file in tracked.client.list_artifacts(tracked.parent.info.run_id)}
    assert found >= {"sweep.yaml", "results.csv", "figure2.csv", "figure2.png", "figure2.pdf"}
    copied = tracked.client.download_artifacts(tracked.parent.info.run_id, "results.csv", str(ran[0]))
    with open(copied) as copy:
        assert copy.read() == (ran[0] / "tiny" / "results.csv").read_text()


def test_no_mechanism_is_a_tag_and_no_number(storage):
    outcome, _ = run_here(a_sweep({"lr": 1, "epsilon": [1, math.inf]}), storage)
    tracked = Tracked(default_uri(storage))
    private, plain = (tracked.trials[record.trial_id] for record in outcome.results.records)
    assert plain.data.tags["sweep.epsilon"] == "inf" and "sweep.epsilon" not in private.data.tags
    assert "epsilon_spent" not in plain.data.metrics and private.data.metrics["epsilon_spent"] <= 1
    assert "sweep_epsilon_planned" not in tracked.parent.data.metrics
    assert tracked.parent.data.tags["sweep.sweep_epsilon_planned"].partition("length: ")[2].startswith("∞ at δ")
    assert all(math.isfinite(value) for run in tracked.trials.values() for value in run.data.metrics.values())


def test_every_end_reason_reaches_mlflow(storage):
    """One point of each kind; the early-stopped one comes second at the rung, and its second seed is skipped."""
    base = {"epsilon": 1, "sampling_rate": RATE, "steps": 40}
    grids = [
        base | {"lr": [0.001, 1]},
        base | {"lr": 1e30},
        {"epsilon": 4, "sampling_rate": 0.04, "steps": 20_000, "lr": 1},
    ]
    outcome, _ = run_here(a_sweep(grids, scheduler=ASHA, seeds=1), storage)
    tracked = Tracked(default_uri(storage))
    stored = {record.trial_id: record.end_reason for record in outcome.results.records}
    assert {name: run.data.tags["sweep.end_reason"] for name, run in tracked.trials.items()} == stored
    assert {"completed", "diverged", "infeasible"} <= set(stored.values())
    infeasible = next(run for run in tracked.trials.values() if run.data.tags["sweep.end_reason"] == "infeasible")
    assert "6.08" in infeasible.data.tags["sweep.message"] and infeasible.data.params["alpha"] == "3.0"
    assert outcome.complete, "to end for good is to be complete"


def test_another_store(storage, tmp_path, empty_store):
    shutil.copy(empty_store, tmp_path / "other.db")
    uri = f"sqlite:///{tmp_path / 'other.db'}"
    run_here(a_sweep(), storage, tracking_uri=uri)
    assert len(Tracked(uri).trials) == 1
    assert MlflowClient(tracking_uri=default_uri(storage)).get_experiment_by_name("tiny") is None


# Again


def test_run_again_is_no_work(storage, monkeypatch):
    sweep = a_sweep(GRID)
    first, _ = run_here(sweep, storage)
    before = {path: path.read_bytes() for path in (storage / "tiny").rglob("*.jsonl")}

    def never(*args, **kwargs):
        raise AssertionError("nothing is to be trained, and MLflow has nothing to hear")

    monkeypatch.setattr(running, "run_trial", never)
    monkeypatch.setattr(running, "Tracker", never)
    again, printed = run_here(sweep, storage)
    assert again.complete and again.results.records == first.results.records
    assert printed.splitlines()[0] == "tiny: 4 trials: 0 new, 4 finished before"
    assert {path: path.read_bytes() for path in (storage / "tiny").rglob("*.jsonl")} == before


def test_enlarged_and_reduced(storage):
    run_here(a_sweep({"lr": [0.1, 1]}), storage)
    outcome, printed = run_here(a_sweep({"lr": [1, 3]}), storage)
    assert printed.splitlines()[:2] == [
        "tiny: 2 trials: 1 new, 1 finished before",
        "kept, though no longer in the space (--name keeps a variation apart): lr=0.1 seed=0",
    ]
    assert [record.plan["lr"] for record in outcome.results.records] == [1, 3]
    assert len(Store(Folder(storage / "tiny")).read()) == 3
    tracked = Tracked(default_uri(storage))
    assert len(tracked.trials) == 3 and tracked.parent.info.status == "FINISHED"


def test_the_scheduler_taken_away(storage):
    rates = {"effective_lr": [1e-4, 0.1, 0.3, 100]}
    first, _ = run_here(a_sweep(rates, scheduler=ASHA), storage)
    stopped = sum(record.end_reason == "early_stopped" for record in first.results.records)
    assert stopped
    second, printed = run_here(a_sweep(rates), storage)
    assert printed.splitlines()[0].endswith(f"0 new, {4 - stopped} finished before, {stopped} unfinished")
    assert {record.end_reason for record in second.results.records} == {"completed"}
    tracked = Tracked(default_uri(storage))
    assert tracked.ends() == ["completed"] * 4
    for record in second.results.records:
        assert [step for step, _ in sorted(set(tracked.curve(record.trial_id, "test_accuracy")))] == [10, 20, 30, 40]


def test_skipped_seeds_are_counted_when_run_again(storage):
    rates = {"effective_lr": [1e-4, 0.3, 100]}
    sweep = a_sweep(rates, scheduler=ASHA, seeds=3)
    first, _ = run_here(sweep, storage)
    skipped = 9 - len(first.results.records)
    assert skipped and first.complete
    _, printed = run_here(sweep, storage)
    assert printed.splitlines()[0] == (
        f"tiny: 9 trials: 0 new, {9 - skipped} finished before, {skipped} further seeds of points that were stopped"
    )


# Ctrl-C and failures


@contextlib.contextmanager
def interrupting(monkeypatch, after):
    """Ctrl-C comes when a trial wants to send its message number `after` (of all trials)."""
    real, sent = running.run_trial, []

    def run_trial(*args, **kwargs):
        for said in real(*args, **kwargs):
            if len(sent) >= after:
                raise KeyboardInterrupt
            sent.append(said)
            yield said

    with monkeypatch.context() as patch:
        patch.setattr(running, "run_trial", run_trial)
        yield


def test_ctrl_c_keeps_the_results_and_the_rest_is_run_later(storage, monkeypatch):
    sweep = a_sweep({"lr": [0.1, 1, 2]})
    with interrupting(monkeypatch, after=6):
        first, _ = run_here(sweep, storage)
    assert not first.complete
    assert [record.end_reason for record in first.results.records].count("completed") == 1
    assert [record.end_reason for record in first.results.records].count("interrupted") == 1
    tracked = Tracked(default_uri(storage))
    assert tracked.ends() == ["completed", "interrupted"] and tracked.parent.info.status == "KILLED"
    assert {file.path for file in tracked.client.list_artifacts(tracked.parent.info.run_id)} >= {"results.csv"}

    second, printed = run_here(sweep, storage)
    assert second.complete and {record.end_reason for record in second.results.records} == {"completed"}
    assert (
        printed.splitlines()[0]
        == "tiny: 3 trials: 1 new, 1 finished before, 1 unfinished, 1 of them from their last checkpoint"
    )
    tracked = Tracked(default_uri(storage))
    assert tracked.ends() == ["completed"] * 3 and tracked.parent.info.status == "FINISHED"


def test_ctrl_c_before_the_first_report_is_no_success(storage, monkeypatch):
    with interrupting(monkeypatch, after=0):
        outcome, _ = run_here(a_sweep(), storage)
    assert not outcome.complete and outcome.results.records == []


def test_an_error_in_a_trial_is_kept_and_tried_again(storage, monkeypatch):
    def broken(*args, **kwargs):
        yield {"end_reason": "error", "message": "RuntimeError: [/broken] layer"}

    with monkeypatch.context() as patch:
        patch.setattr(running, "run_trial", broken)
        outcome, _ = run_here(a_sweep(), storage)
    assert not outcome.complete and outcome.results.records[0].message == "RuntimeError: [/broken] layer"
    assert Tracked(default_uri(storage)).ends() == ["error"]
    outcome, printed = run_here(a_sweep(), storage)
    assert outcome.complete and "1 failed before, tried again" in printed


def test_missing_data_are_an_error_before_anything_starts(storage, tmp_path):
    with pytest.raises(DataError, match="mnist"):
        run_here(a_sweep(trial={"dataset": "mnist", "delta": 1e-6}), storage, data_root=tmp_path)
    assert Store(Folder(storage / "tiny")).read() == {}
    assert MlflowClient(tracking_uri=default_uri(storage)).get_experiment_by_name("tiny") is None


def test_a_tracking_uri_that_cannot_work_is_an_error_before_anything_starts(storage, tmp_path):
    with pytest.raises(TrackingError, match="sqlite:///"):
        run_here(a_sweep(), storage, tracking_uri=str(tmp_path / "mlruns"))
    assert Store(Folder(storage / "tiny")).read() == {}


def test_a_storage_that_cannot_be_written_is_an_error_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Not a directory"):
        run_here(a_sweep(), tmp_path / "file")


def test_a_report_that_cannot_be_drawn_does_not_leave_mlflow_open(storage, monkeypatch):
    def broken(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Results, "write_report", broken)
    with pytest.raises(OSError, match="No space left"):
        run_here(a_sweep(), storage)
    tracked = Tracked(default_uri(storage))
    assert tracked.ends() == ["completed"] and tracked.parent.info.status == "FINISHED"


# Results


def test_no_such_sweep_names_those_there_are(ran):
    with pytest.raises(SpecError) as caught:
        Results.read(Folder(ran[0]), "tinny")
    assert str(caught.value) == f"no sweep 'tinny' under {ran[0]}; there: tiny"


def test_no_sweep_at_all(tmp_path):
    with pytest.raises(SpecError, match="there: none"):
        Results.read(Folder(tmp_path), "tiny")


def test_a_spec_that_was_spoilt(storage):
    (storage / "tiny").mkdir()
    (storage / "tiny" / "sweep.yaml").write_text("title: T\n")
    with pytest.raises(SpecError, match=r"sweep\.yaml of .*tiny: name is missing"):
        Results.read(Folder(storage), "tiny")


@pytest.mark.parametrize("sweep", [a_sweep(GRID), a_sweep(GRID, scheduler=ASHA)])
def test_the_rung_is_the_scheduler_s(sweep, tmp_path):
    assert Results(tmp_path, sweep, []).rung == (0.25 if sweep.asha else None)


def labels_of(laid_out):
    return running._labels({trial.id: trial.plan.model_dump() for trial in laid_out.trials})


def test_labels_say_what_varies():
    laid_out = plan(a_sweep({"lr": [0.1, 1], "epsilon": [1, math.inf]}, seeds=2))
    labels = labels_of(laid_out)
    assert len(set(labels.values())) == 8
    assert labels[laid_out.trials[0].id] == "epsilon=1 lr=0.1 seed=0"
    assert labels_of(plan(a_sweep())).popitem()[1] == "seed=0"
