"""The live view: what it counts, and that it says so on a terminal and elsewhere."""

import io
import math

import pytest
from rich.console import Console

from sweep import live
from sweep.campaign import Campaign
from sweep.live import LiveView
from sweep.planning import plan
from sweep.storage import Folder
from sweep.store import Store

from .spaces import RATE, a_sweep, message, simulate

ASHA = {"asha": {"grace": 0.25, "reduction_factor": 2}}


class Watch:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def watch(monkeypatch):
    watch = Watch()
    monkeypatch.setattr(live, "time", watch)
    return watch


@pytest.fixture
def viewed(tmp_path, watch):
    """A campaign with its view; what the view prints is in `screen`."""

    def begin(sweep, *, terminal=False):
        laid_out = plan(sweep)
        screen = io.StringIO()
        console = Console(file=screen, width=200, force_terminal=terminal)
        labels = {trial.id: f"lr={trial.plan.lr:g} [draft] seed={trial.replicate}" for trial in laid_out.trials}
        view = LiveView(laid_out, console=console, labels=labels)
        campaign = Campaign(laid_out, Store(Folder(tmp_path)), listeners=[view])
        view.attach(campaign)
        return campaign, view, screen

    return begin


def cells(view, *names):
    return tuple(view._cells()[name] for name in names)


COUNTS = ("done", "running", "stopped early", "failed")


def test_nothing_is_known_at_first(viewed):
    _, view, _ = viewed(a_sweep())
    assert cells(view, *COUNTS) == ("0", "0", "0", "0")
    assert cells(view, "time left at most", "best so far") == ("…", "…") and view.seconds_left is None


def test_counts(viewed):
    campaign, view, _ = viewed(a_sweep({"lr": [1, 2, 3, 4]}))
    first, second, third, fourth = (campaign.next() for _ in range(4))
    for step in (10, 20, 30, 40):
        campaign.report(first.id, message(first, step, 0.5))
    campaign.report(second.id, message(second, 10, 0.4))
    campaign.report(third.id, message(third, 10, None, diverged=True))
    assert cells(view, *COUNTS) == ("1", "1", "0", "1")
    campaign.report(fourth.id, {"end_reason": "infeasible", "message": "no r*"})
    campaign.lost(second.id, "its process died")
    assert cells(view, *COUNTS) == ("1", "0", "0", "3")


def test_early_stops(viewed, watch):
    campaign, view, _ = viewed(a_sweep({"lr": [1, 2, 3, 4]}, seeds=2, scheduler=ASHA))
    simulate(campaign, lambda trial, step: trial.plan.lr / 10)
    done, running, stopped, failed = map(int, cells(view, *COUNTS))
    assert done + stopped == len(campaign.records) and stopped > 0 and (running, failed) == (0, 0)
    watch.now += 10
    assert view.seconds_left == 0, "skipped seeds cost no time"


def test_best_is_of_completed_trials_alone(viewed):
    campaign, view, _ = viewed(a_sweep({"lr": [1, 2, 3, 4]}))
    lost, *trials = (campaign.next() for _ in range(4))
    campaign.report(lost.id, message(lost, 10, 0.99))
    assert cells(view, "best so far") == ("…",)
    campaign.lost(lost.id, "its process died")
    assert cells(view, "best so far") == ("…",)
    for trial, accuracy in zip(trials, (0.5, 0.7, 0.6), strict=True):
        for step in (10, 20, 30, 40):
            campaign.report(trial.id, message(trial, step, accuracy))
    assert cells(view, "best so far") == (f"lr={trials[1].plan.lr:g} [draft] seed=0: test accuracy 70.00%",)


def test_best_is_by_the_plan_s_own_score(viewed):
    """The better one in validation has the worse test accuracy: it is the best, and its test accuracy is shown."""
    campaign, view, _ = viewed(a_sweep({"lr": [1, 2]}, trial={"validation": {"fraction": 0.1}}))
    for score, test in ((0.9, 0.6), (0.8, 0.7)):
        trial = campaign.next()
        for step in (10, 20, 30, 40):
            said = message(trial, step, score)
            said["report"]["test_accuracy"] = test
            campaign.report(trial.id, said)
    assert "60.00%" in view._cells()["best so far"]


def test_time_left(viewed, watch):
    """One of four trials in 20 s: three more take 60 s, if none is stopped early."""
    campaign, view, _ = viewed(a_sweep({"lr": [1, 2, 3, 4]}))
    trial = campaign.next()
    for step in (10, 20, 30, 40):
        watch.now += 5
        campaign.report(trial.id, message(trial, step, 0.5))
        assert (view.seconds_left is None) == (step == 10)  # until then, start-up would count most
    assert view.seconds_left == 60 and cells(view, "time left at most") == ("1 min 0 s",)
    watch.now -= 0.1
    assert view.seconds_left < 60 and cells(view, "time left at most") == ("1 min 0 s",), "not 0 min 60 s"
    watch.now += 0.1
    trial = campaign.next()
    watch.now += 5
    campaign.report(trial.id, message(trial, 10, 0.5))
    assert view.seconds_left == pytest.approx(25 * 110 / 50)


def test_time_left_leaves_out_what_is_not_run(viewed, watch):
    sweep = a_sweep({"lr": [1, 2]})
    simulate(viewed(sweep)[0], lambda trial, step: 0.5)
    campaign, view, _ = viewed(
        a_sweep([{"lr": [1, 2, 3], "epsilon": 1, "sampling_rate": RATE, "steps": 40}, INFEASIBLE])
    )
    assert view._steps_left == {campaign.next().id: 40} or sum(view._steps_left.values()) == 40
    assert "50.00%" in view._cells()["best so far"], "of the earlier run"


INFEASIBLE = {"epsilon": 4, "sampling_rate": 0.04, "steps": 20_000, "lr": 1}


def test_elsewhere_a_line_now_and_then(viewed, watch):
    campaign, view, screen = viewed(a_sweep({"lr": [1, 2]}))
    with view:
        trial = campaign.next()
        for step in (10, 20, 30):
            watch.now += 4
            campaign.report(trial.id, message(trial, step, 0.5))
        lines = screen.getvalue().splitlines()
        assert len(lines) == 1 and lines[0].startswith("done: 0, running: 1, stopped early: 0, failed: 0, time left")
        watch.now += 4
        campaign.report(trial.id, message(trial, 40, 0.5))
    assert len(screen.getvalue().splitlines()) == 2
    assert "\x1b" not in screen.getvalue()


def test_on_a_terminal_a_table_that_goes_away(viewed):
    campaign, view, screen = viewed(a_sweep({"lr": [1, 2]}), terminal=True)
    with view:
        simulate(campaign, lambda trial, step: 0.5)
        view._live.refresh()
        shown = screen.getvalue()
    assert "time left at most" in shown and "stopped early" in shown and "[draft]" in shown
    assert screen.getvalue().endswith("\x1b[2K") or "\x1b[1A" in screen.getvalue()[len(shown) :]


def test_the_view_ends_with_an_error_too(viewed):
    _, view, _ = viewed(a_sweep(), terminal=True)
    with pytest.raises(KeyboardInterrupt), view:
        raise KeyboardInterrupt
    assert not view._live.is_started


def test_infinite_epsilon_is_no_trouble(viewed):
    campaign, view, _ = viewed(a_sweep(trial={"epsilon": math.inf}))
    simulate(campaign, lambda trial, step: 0.5)
    assert cells(view, *COUNTS) == ("1", "0", "0", "0")
