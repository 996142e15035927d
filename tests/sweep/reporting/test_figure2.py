"""Figure 2 as objects (its marks, lines and labels, and that none is clipped) and its number R."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.legend import Legend

from sweep.reporting.aggregate import points_frame, trials_frame
from sweep.reporting.colors import alpha_colors
from sweep.reporting.figure2 import collapse, figure2, view

KAPPA = {0.1: 0.7, 1.0: 0.12, 10.0: 0.05}


def points_of(records, *, seeds=2, rung=None):
    return points_frame(trials_frame(records, rung=rung), seeds=seeds)


def draw(records, *, seeds=2, rung=None, title="Made"):
    return figure2(points_of(records, seeds=seeds, rung=rung), title=title, rung=rung)


def drawn(ax):
    """The lines and rows of marks in a panel, by their names."""
    return {line.get_gid(): line for line in ax.lines if line.get_gid()}  # the rest are caps of bars


def legends(figure):
    return [child for ax in figure.axes for child in ax.get_children() if isinstance(child, Legend)]


def labels(figure):
    return [text.get_text() for legend in legends(figure) for text in legend.get_texts()]


def caption(figure):
    return figure.get_supxlabel().replace("\u00a0", " ").replace("\n", " ")


# --- the picture -------------------------------------------------------------------------------------------


def test_every_alpha_has_its_line_and_marks_in_both_panels(sweep):
    records = sweep()
    points = points_of(records)
    figure = draw(records)
    for ax, rate in zip(figure.axes, ["learning_rate", "effective_learning_rate"], strict=True):
        assert ax.get_xscale() == "log"
        lines = drawn(ax)
        assert set(lines) == {f"alpha={a} {kind}" for a in ("0.3", "1", "3") for kind in ("line", "finished")}
        for alpha, color in alpha_colors([0.3, 1, 3]).items():
            curve = points[points["alpha"] == alpha].sort_values(rate)
            marks = lines[f"alpha={alpha:g} finished"]
            assert to_hex(marks.get_color()) == color
            assert marks.get_fillstyle() == "full"
            np.testing.assert_allclose(marks.get_xdata(), curve[rate])
            np.testing.assert_allclose(marks.get_ydata(), 100 * curve["mean"])
    left, right = figure.axes
    assert left.get_ylabel() == "Test accuracy (%)"
    assert left.get_shared_y_axes().joined(left, right)
    assert labels(figure) == ["α = 0.3", "α = 1", "α = 3", "all seeds finished"]


def test_bars_are_one_sample_standard_deviation(record):
    figure = draw([record(seed=seed, lr=lr, accuracy=a) for lr in (0.1, 1) for seed, a in [(0, 0.5), (1, 0.7)]])
    (bars,) = [found for found in figure.axes[0].collections if found.get_gid() == "alpha=3 deviation"]
    for (_, low), (_, high) in bars.get_segments():
        assert (low, high) == pytest.approx((60 - 20 / math.sqrt(2), 60 + 20 / math.sqrt(2)))


def test_a_point_short_of_seeds_is_half_filled_and_counted(sweep):
    figure = draw(sweep()[1:])
    marks = drawn(figure.axes[1])["alpha=0.3 partial"]
    assert marks.get_fillstyle() == "bottom" and len(marks.get_xdata()) == 1
    assert len(drawn(figure.axes[1])["alpha=0.3 finished"].get_xdata()) == 7
    assert "fewer finished" in labels(figure)
    assert "fewer seeds finished (1 point)" in caption(figure)


def test_under_asha_all_points_are_hollow_at_the_rung_and_finished_ones_filled_too(sweep):
    records = sweep(asha=True)
    points = points_of(records, rung=0.1)
    figure = draw(records, rung=0.1)
    for ax, alpha in itertools.product(figure.axes, [0.3, 1.0, 3.0]):
        rung, finished = (drawn(ax)[f"alpha={alpha:g} {kind}"] for kind in ("rung", "finished"))
        curve = points[points["alpha"] == alpha]
        assert (rung.get_markerfacecolor(), rung.get_linestyle()) == ("white", ":")
        np.testing.assert_allclose(rung.get_ydata(), 100 * curve["rung_mean"])
        assert 0 < len(finished.get_xdata()) == (curve["n"] == 2).sum() < len(rung.get_xdata()) == 8
    assert labels(figure)[-2:] == ["all seeds finished", "first rung, 0.1 T"]
    assert "all trials that reached the first rung (0.1 T), stopped or not" in caption(figure)
    assert "(first rung): share" in caption(figure)


def test_the_line_breaks_at_a_point_that_did_not_finish_and_a_cross_says_it_diverged(record):
    records = [
        record(lr=0.1),
        record(lr=0.2, end="diverged"),
        record(lr=0.3),
        record(lr=0.4, end="infeasible"),
    ]
    figure = draw(records, seeds=1)
    left = drawn(figure.axes[0])
    np.testing.assert_equal(left["alpha=3 line"].get_ydata(), [90, math.nan, 90, math.nan])
    assert left["alpha=3 diverged"].get_xdata() == pytest.approx([0.2])
    assert labels(figure) == ["α = 3", "finished", "diverged"]
    assert "Crosses: diverged (1 point). Not drawn: 1 point without a usable r*." in caption(figure)


def test_a_method_without_alpha_gets_a_curve_of_its_own(record):
    rates = (0.1, 0.2, 0.4)
    figure = draw(
        [record(lr=lr, epsilon=math.inf, delta=None, method="nonprivate") for lr in rates],
        seeds=1,
    )
    assert labels(figure) == ["no α", "finished"]
    assert "nonprivate, no privacy mechanism (ε = ∞)" in caption(figure)
    assert "Collapse" not in caption(figure)


def test_with_many_alphas_a_colour_bar_takes_the_place_of_their_names(record):
    figure = draw([record(alpha=0.1 * 1.2**k, lr=0.1 * 1.1**k) for k in range(20)], seeds=1)
    assert len(figure.axes) == 3
    assert labels(figure) == ["finished"]
    assert figure.axes[2].get_ylim() == pytest.approx((0.1, 0.1 * 1.2**19))


# --- its words ---------------------------------------------------------------------------------------------


def test_the_caption_states_the_setting_in_the_words_of_the_house(sweep):
    text = caption(draw(sweep(epsilon=1.23456789, sampling_rate=0.0123456)))
    assert text.startswith(
        "digits, mlp, nominal ε (Theorem 10) = 1.23456789 per trial, δ = 1e-5, q = 0.01235, T = 100. "
        "Test accuracy: mean over 2 seeds, bars ± one standard deviation. Filled: all seeds finished."
    )
    assert "private" not in text


def test_the_caption_prints_the_number_of_the_trials_it_names(sweep):
    records = sweep(asha=True)
    for record in records:
        record.reports[0]["test_accuracy"] += 0.05 * record.plan["alpha"]  # less collapsed at the rung
    points = points_of(records, rung=0.1)
    at_rung, at_end = (f"R = {collapse(points, accuracy=name):.3f}" for name in ("rung_mean", "mean"))
    assert at_rung != at_end
    assert f"Collapse {at_rung} (first rung)" in caption(draw(records, rung=0.1))
    assert f"Collapse {at_end} (finished points)" in caption(draw(records))


def test_another_method_does_not_borrow_theorem_10(record):
    text = caption(draw([record(lr=lr, method="dpsgd") for lr in (0.1, 0.2)]))
    assert "ε (DP-SGD, Gaussian RDP) = 1 per trial" in text
    assert "Theorem" not in text


def test_points_of_several_settings_are_refused(record):
    with pytest.raises(ValueError, match="here differ: epsilon"):
        draw([record(epsilon=1.0), record(epsilon=2.0)])


@pytest.mark.parametrize("case", ["plain", "asha", "ten", "many"])
def test_no_text_is_clipped_and_nothing_lies_on_anything(sweep, record, case):
    long = "A title that goes on and on about $money$ and α, " * 4
    if case == "ten":
        ten = [0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10, 20]
        records = [record(alpha=a, lr=lr * a, seed=s) for a in ten for lr in (0.1, 1) for s in (0, 1)][1:]
        records += [record(alpha=a, lr=7 * a, end="diverged") for a in ten]
        figure = draw(records, rung=0.1, title=long)
    elif case == "many":
        figure = draw([record(alpha=0.1 * 1.2**k, lr=0.1 * 1.1**k) for k in range(20)], rung=0.1, title=long)
    else:
        figure = draw(sweep(asha=case == "asha"), rung=0.1 if case == "asha" else None)
    FigureCanvasAgg(figure).draw()
    used = figure.get_tightbbox()  # in inches, of all that is drawn
    assert used.x0 >= 0 and used.y0 >= 0
    assert used.x1 <= figure.get_figwidth() and used.y1 <= figure.get_figheight()
    solid = [legend.get_window_extent() for legend in legends(figure)]
    solid += [ax.get_window_extent() for ax in figure.axes]
    solid += [text.get_window_extent() for text in (figure._supxlabel, figure._suptitle)]
    assert not [pair for pair in itertools.combinations(solid, 2) if pair[0].overlaps(pair[1])]


# --- files -------------------------------------------------------------------------------------------------


def names(records, *, rung=None):
    trials = trials_frame(records, rung=rung)
    made = view(trials, points_frame(trials, seeds=1), title="Made", rung=rung)
    assert list(made.tables) == ["figure2"]
    return list(made.figures)


def test_a_figure_for_every_setting_that_makes_a_curve(record):
    two = [record(epsilon=epsilon, lr=lr) for epsilon in (1.0, 2.0) for lr in (0.1, 0.2)]
    assert names(two) == ["figure2-1", "figure2-2"]
    assert names([*two[:2], record(epsilon=3.0)]) == ["figure2"]
    assert names([record(epsilon=epsilon) for epsilon in (1.0, 2.0)]) == []
    stopped = [record(lr=lr, end="early_stopped") for lr in (0.1, 0.2)]
    assert names(stopped) == []
    assert names(stopped, rung=0.1) == ["figure2"]


# --- R -----------------------------------------------------------------------------------------------------


def table(accuracy, *, rates, alphas=tuple(KAPPA)):
    """Points with ``mean = accuracy(γ, κ)`` at the learning rates ``rates(α)``."""
    rows = [(alpha, rate, KAPPA[alpha]) for alpha in alphas for rate in rates(alpha)]
    return pd.DataFrame(
        {
            "alpha": [alpha for alpha, _, _ in rows],
            "learning_rate": [rate for _, rate, _ in rows],
            "effective_learning_rate": [rate * kappa for _, rate, kappa in rows],
            "mean": [accuracy(rate, kappa) for _, rate, kappa in rows],
        }
    )


def span(low, high, count):
    return [float(rate) for rate in np.logspace(low, high, count)]


def bump(rate):
    return 0.9 * math.exp(-(math.log10(rate) ** 2))


def test_a_perfect_collapse_is_one():
    at_same_effective_rates = table(
        lambda rate, kappa: bump(rate * kappa), rates=lambda a: [x / KAPPA[a] for x in span(-2, 1, 9)]
    )
    assert collapse(at_same_effective_rates) == pytest.approx(1, abs=1e-12)
    at_same_rates = table(lambda rate, kappa: bump(rate * kappa), rates=lambda _: span(-2, 2, 30))
    assert 0.999 < collapse(at_same_rates) < 1


def test_accuracy_that_ignores_kappa_is_not_explained_by_it():
    counts = {0.1: 7, 1.0: 9, 10.0: 11}  # straight pieces between different places: V_γ is small, not zero
    assert collapse(table(lambda rate, _: bump(rate), rates=lambda a: span(-2, 2, counts[a]))) < -1
    assert collapse(table(lambda rate, _: bump(rate), rates=lambda _: span(-2, 2, 9))) is None


@pytest.mark.parametrize(("share", "expected"), [(1, 1), (0.75, 8 / 9), (0.5, 0), (0.4, -1.25)])
def test_a_partial_collapse_has_the_share_worked_out_by_hand(share, expected):
    """Two curves, accuracy = log γ + c·log κ: V_γ ∝ c², V_eff ∝ (1 − c)², so R = 1 − ((1 − c)/c)²."""
    points = table(
        lambda rate, kappa: 0.1 * (math.log10(rate) + share * math.log10(kappa)),
        rates=lambda _: span(-2, 2, 5),
        alphas=(0.1, 1.0),
    )
    assert collapse(points) == pytest.approx(expected, abs=1e-9)


def test_no_number_without_enough_overlap():
    law = {"accuracy": lambda rate, kappa: bump(rate * kappa)}
    assert collapse(table(**law, rates=lambda _: span(-2, 2, 9), alphas=(1.0,))) is None
    assert collapse(table(**law, rates=lambda a: span(-2, -1, 5) if a < 1 else span(1, 2, 5))) is not None
    apart = table(**law, rates=lambda a: span(-2, -1, 5) if a < 1 else span(1, 2, 5), alphas=(0.1, 1.0))
    assert collapse(apart) is None
    assert collapse(table(**law, rates=lambda _: [0.1])) is None
    assert collapse(apart.iloc[:0]) is None


def test_points_without_accuracy_leave_the_curve_and_the_rung_has_a_number_of_its_own(sweep):
    points = points_of(sweep(asha=True, noise=0), rung=0.1)
    assert points["mean"].isna().any()
    assert collapse(points) == pytest.approx(1, abs=1e-9)
    assert collapse(points, accuracy="rung_mean") == pytest.approx(1, abs=1e-9)
    spoiled = points.assign(rung_mean=points["rung_mean"].where(points["alpha"] != 3, 0.3))
    assert collapse(spoiled, accuracy="rung_mean") < 0.9
    assert collapse(spoiled) == pytest.approx(1, abs=1e-9)


def test_seed_noise_keeps_a_true_law_a_little_below_one(sweep):
    assert 0.98 < collapse(points_of(sweep())) < 1
