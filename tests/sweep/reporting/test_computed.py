"""Tables 6 and 7: computed from their search spaces, beside the printed digits."""

import pandas as pd
import pytest

from sweep.planning import plan
from sweep.reporting import published, write_computed
from sweep.reporting.computed import COMPUTED, _agreement, calibrations_frame
from sweep.spec import load


def calibrated(item, *overrides):
    """The plans of a search space's points and their r*."""
    points = plan(load(item, overrides=overrides)).points
    return [point.trials[0].plan.model_dump() for point in points], [
        point.method and point.method.r for point in points
    ]


def the_table(item, *overrides):
    (table,) = COMPUTED[item](calibrations_frame(*calibrated(item, *overrides))).tables.values()
    return table


def test_table6_agrees_with_the_paper_and_says_where_a_ratio_does_not():
    table = the_table("table6")
    assert table.caption == "Table 6: r* on CIFAR10 (q = 0.005, T = 20000) at nominal ε (Theorem 10) = 1, δ = 1e-5"
    assert table.rows[0] == ["0.1", "0.008667", "0.0087", "0.0867", "0.0870"]
    assert table.rows[-1] == ["3", "0.234894", "0.2349", "0.0783", "0.0783"]
    assert table.notes[0] == "6 of 6 computed values round to the printed digits."
    assert [row[0] for row in table.rows if row[3] != row[4]] == ["0.1", "0.3"]


def test_table7_has_every_printed_value_in_its_place():
    table = the_table("table7")
    assert [block[0][0] for block in table.blocks] == ["CIFAR10", "MNIST", "DermaMNIST", "SVHN", "FashionMNIST"]
    derma = dict(zip(table.header, table.blocks[2][0], strict=True))
    assert (derma["nominal ε = 4"], derma["nominal ε = 8"], derma["nominal ε = 0.5"]) == ("0.644663", "0.855797", "–")
    assert table.blocks[2][1][-1] == "0.856 (nominal ε = 7.42)"
    assert len(table.data) == 23
    assert list(table.data.loc[~table.data["agrees"], "printed"]) == ["0.404", "0.825"]
    assert "0.403462 printed as 0.404, 0.824477 printed as 0.825" in table.notes[0]


@pytest.mark.parametrize("item", ["table6", "table7"])
def test_the_search_space_has_a_point_for_every_printed_value(item):
    data = the_table(item).data
    assert list(data["printed"]) == list(published.values(item)["printed"])


def test_a_variation_is_not_set_beside_the_papers_setting():
    table = the_table("table6", "delta=1e-6")
    assert set(table.data["printed"]) == {""} and not table.data["agrees"].any()
    assert table.notes[0] == "The paper has no values at this setting."
    assert table.caption.endswith("δ = 1e-6")


def test_a_budget_without_a_usable_r_star_says_so():
    table = the_table("table7", "sampling_rate=0.04", "steps=20000", "epsilon=[4, 8]")
    first = dict(zip(table.header, table.blocks[0][0], strict=True))
    assert first["nominal ε = 4"] == "infeasible" and float(first["nominal ε = 8"]) > 0


def test_a_value_that_does_not_agree_is_not_explained_away():
    data = pd.DataFrame({"r_star": [0.5, 0.6], "printed": ["0.4", ""], "agrees": [False, False]})
    assert _agreement(data) == "0 of 1 computed values round to the printed digits."


@pytest.mark.parametrize("item", ["table6", "table7"])
def test_a_computed_item_needs_no_sweep(tmp_path, item):
    plans, r_stars = calibrated(item)
    artifacts, paths = write_computed(tmp_path / item, item=item, title="Made", plans=plans, r_stars=r_stars)
    assert [path.name for path in paths] == [f"{item}.{suffix}" for suffix in ("csv", "md", "tex", "html")]
    assert list(artifacts.tables) == [item]
    assert "nominal ε (Theorem 10)" in paths[-1].read_text(encoding="utf-8")


def test_only_what_needs_no_training_is_computed(tmp_path):
    with pytest.raises(
        ValueError, match="training: false leaves results to table6, table7 only, got reproduces: table1"
    ):
        write_computed(tmp_path, item="table1", title="Made", plans=[], r_stars=[])
