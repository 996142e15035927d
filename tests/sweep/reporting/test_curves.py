"""Figures 1b and 3 as objects: whose curve is dashed, what the bands are, where ∞ lies, and that nothing is clipped."""

import itertools
import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from sweep.reporting import VIEWS
from sweep.reporting.aggregate import points_frame, trials_frame

CIFAR = {"dataset": "cifar10", "model": "resnet18"}


def made(item, records, *, seeds=2, title="Made"):
    trials = trials_frame(records, rung=None)
    artifacts = VIEWS[item](trials, points_frame(trials, seeds=seeds), title=title, rung=None)
    (figure,) = artifacts.figures.values()
    return artifacts, figure


def drawn(ax):
    return {line.get_gid(): line for line in ax.lines if line.get_gid()}


def band(ax, name):
    (found,) = [area for area in ax.collections if area.get_gid() == f"{name} band"]
    return found.get_paths()[0].vertices


def labels(figure):
    return [text.get_text().replace("\n", " ") for text in figure.axes[-1].get_legend().get_texts()]


def caption(figure):
    return figure.get_supxlabel().replace("\u00a0", " ").replace("\n", " ")


@pytest.fixture
def figure1b(record):
    def records(**more):
        budgets = (1.0, 4.0, 8.0, math.inf)
        at = CIFAR | more
        return [
            record(**at, epsilon=epsilon, seed=seed, accuracy=0.8 + 0.01 * place + 0.002 * seed)
            for place, epsilon in enumerate(budgets)
            for seed in (0, 1)
        ]

    return records


def test_figure1b_is_solid_for_this_sweep_and_dashed_for_the_paper(figure1b):
    artifacts, figure = made("figure1b", figure1b())
    assert list(artifacts.tables) == ["table1"]
    assert labels(figure) == [
        "Algorithm 1, this sweep",
        "Algorithm 1, published",
        "DP-SGD (De et al. 2022), quoted",
        "Monir and Ghinita (2024), quoted",
    ]
    (ax,) = figure.axes
    lines = drawn(ax)
    styles = {name: lines[name].get_linestyle() for name in labels(figure)}
    assert list(styles.values()) == ["-", "--", "--", "--"]
    ours, published = (lines[f"Algorithm 1, {source}"] for source in ("this sweep", "published"))
    assert to_hex(ours.get_color()) == to_hex(published.get_color())
    np.testing.assert_allclose(ours.get_xdata(), [1, 4, 8])
    np.testing.assert_allclose(ours.get_ydata(), [80.1, 81.1, 82.1])
    np.testing.assert_allclose(lines["Monir and Ghinita (2024), quoted"].get_xdata(), [4, 4.46])


def test_the_axis_is_logarithmic_with_infinity_at_its_end(figure1b):
    _, figure = made("figure1b", figure1b())
    (ax,) = figure.axes
    assert ax.get_xscale() == "log"
    ticks = ax.xaxis.get_major_locator()()
    names = [ax.xaxis.get_major_formatter()(tick, None) for tick in ticks]
    assert names == ["1", "2", "4", "6", "8", "∞"]
    end = drawn(ax)["Algorithm 1, this sweep at infinity"]
    assert end.get_xdata()[0] == ticks[-1] > 8
    assert end.get_ydata()[0] == pytest.approx(83.1)


def test_a_band_is_one_standard_deviation(figure1b):
    _, figure = made("figure1b", figure1b())
    half = 0.2 / math.sqrt(2)  # of 80.0 and 80.2
    vertices = band(figure.axes[0], "Algorithm 1, this sweep")
    at_one = vertices[vertices[:, 0] == 1][:, 1]
    assert (at_one.min(), at_one.max()) == pytest.approx((80.1 - half, 80.1 + half))
    published = band(figure.axes[0], "Algorithm 1, published")
    at_one = published[published[:, 0] == 1][:, 1]
    assert (at_one.min(), at_one.max()) == pytest.approx((82.96 - 1.46, 82.96 + 1.46))


def test_what_did_not_finish_breaks_the_line_and_is_counted(record):
    ends = {1.0: "completed", 2.0: "diverged", 4.0: "completed", 6.0: "infeasible"}
    _, figure = made("figure1b", [record(**CIFAR, epsilon=e, end=end) for e, end in ends.items()])
    lines = drawn(figure.axes[0])
    np.testing.assert_equal(lines["Algorithm 1, this sweep"].get_ydata(), [90, math.nan, 90, math.nan])
    partial = lines["Algorithm 1, this sweep partial"]
    assert list(partial.get_xdata()) == [1, 4] and partial.get_fillstyle() == "bottom"
    assert "Half-filled: fewer seeds finished (2 points)." in caption(figure)
    assert caption(figure).endswith("Not drawn: 1 diverged, 1 infeasible.")


def test_figure3_has_a_panel_and_a_table_for_each_data_set(record):
    records = [record(dataset=name, epsilon=e) for name in ("svhn", "fashionmnist") for e in (1.0, 2.0)]
    records.append(record(dataset="svhn", epsilon=1.0, method="dpsgd"))
    artifacts, figure = made("figure3", records, seeds=1)
    assert list(artifacts.tables) == ["table4", "table5"]
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["FashionMNIST", "SVHN"]
    left, right = (drawn(ax) for ax in figure.axes)
    np.testing.assert_allclose(left["DP-SGD (Opacus), quoted"].get_ydata(), [77.37, 80.60, 82.63, 84.18])
    assert right["DP-SGD, this sweep"].get_color() == right["DP-SGD (Opacus), quoted"].get_color()
    assert "Tempered Sigmoid (Papernot et al. 2021), quoted" in left.keys() - right.keys()


def test_many_curves_leave_room_for_the_panel(record):
    records = [record(**CIFAR, lr=lr, alpha=alpha) for lr in (0.1, 0.2, 0.4) for alpha in (1.0, 2.0, 3.0, 4.0)]
    _, figure = made("figure1b", records)
    FigureCanvasAgg(figure).draw()
    assert len(labels(figure)) == 12 + 3
    assert figure.get_tightbbox().y0 >= 0 and figure.get_tightbbox().y1 <= figure.get_figheight()
    assert figure.axes[0].get_window_extent().height > 0.6 * figure.bbox.height


def test_a_sweep_on_other_data_stands_alone(figure1b):
    artifacts, figure = made("figure1b", figure1b(dataset="digits"))
    assert list(artifacts.tables) == ["figure1b-digits"]
    assert artifacts.tables["figure1b-digits"].notes == ["The paper has no numbers for digits here."]
    assert labels(figure) == ["Algorithm 1, this sweep"]
    assert not [words for words in ("paper", "own accountants") if words in caption(figure)]
    assert ("no mechanism" in caption(figure)) == any(
        math.isinf(x) for x in artifacts.tables["figure1b-digits"].data["value"]
    )


def test_a_sweep_without_a_trial_shows_the_paper(figure1b):
    _, figure = made("figure3", [])
    assert len(figure.axes) == 2
    assert caption(figure).startswith("No trials of this sweep. Dashed: as the paper prints it")


@pytest.mark.parametrize("item", ["figure1b", "figure3"])
def test_no_text_is_clipped_and_nothing_lies_on_anything(figure1b, item):
    long = "A title that goes on and on about $money$ and ε, " * 4
    records = figure1b() if item == "figure1b" else [*figure1b(dataset="svhn"), *figure1b(dataset="fashionmnist")]
    _, figure = made(item, records[1:], title=long)
    FigureCanvasAgg(figure).draw()
    used = figure.get_tightbbox()
    assert used.x0 >= 0 and used.y0 >= 0
    assert used.x1 <= figure.get_figwidth() and used.y1 <= figure.get_figheight()
    solid = [figure.axes[-1].get_legend().get_window_extent(), *(ax.get_window_extent() for ax in figure.axes)]
    solid += [text.get_window_extent() for text in (figure._supxlabel, figure._suptitle)]
    assert not [pair for pair in itertools.combinations(solid, 2) if pair[0].overlaps(pair[1])]
    for ax in figure.axes:
        ticks = [label.get_window_extent() for label in ax.get_xticklabels()]
        assert not [pair for pair in itertools.pairwise(ticks) if pair[0].overlaps(pair[1])]


def test_a_measured_rival_is_solid_beside_the_dashed_numbers_the_paper_quotes_for_it(record):
    at = {"dataset": "svhn", "model": "resnet18", "sampling_rate": 250 / 73_257}
    records = [
        record(**at, method=method, epsilon=epsilon, seed=seed, accuracy=0.8 + seed / 100)
        for method in ("dirichlet", "dpsgd")
        for epsilon in (1.0, 4.0)
        for seed in (0, 1)
    ]
    artifacts, figure = made("figure3", records)
    lines = drawn(figure.axes[0])
    styles = {name: lines[name].get_linestyle() for name in lines if "infinity" not in name and "partial" not in name}
    assert styles == {
        "Algorithm 1, this sweep": "-",
        "DP-SGD, this sweep": "-",
        "Algorithm 1, published": "--",
        "DP-SGD (Opacus), quoted": "--",
    }
    assert lines["DP-SGD, this sweep"].get_color() == lines["DP-SGD (Opacus), quoted"].get_color()
    assert "for Algorithm 1 nominal" in figure.axes[0].get_xlabel()
    assert "own accountants" in caption(figure)
    table = artifacts.tables["table5"]
    rows = {tuple(row[:3]): row for block in table.blocks for row in block}
    assert ("DP-SGD", "resnet18", "this sweep") in rows and ("DP-SGD (Opacus)", "ResNet-18", "quoted") in rows
    assert "ε, nominal (Theorem 10) for Algorithm 1" in table.caption
    assert any(note.startswith("DP-SGD, this sweep: ε (DP-SGD") for note in table.notes)
