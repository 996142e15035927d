"""Tables 6 and 7: computed, beside the printed digits."""

import pandas as pd
import pytest

from sweep.reporting import write_computed
from sweep.reporting.computed import _agreement, table6, table7


def test_table6_agrees_with_the_paper_and_says_where_a_ratio_does_not():
    (table,) = table6().tables.values()
    assert table.rows[0] == ["0.1", "0.008667", "0.0087", "0.0867", "0.0870"]
    assert table.rows[-1] == ["3", "0.234894", "0.2349", "0.0783", "0.0783"]
    assert table.notes[0] == "6 of 6 computed values round to the printed digits."
    assert [row[0] for row in table.rows if row[3] != row[4]] == ["0.1", "0.3"]


def test_table7_has_every_printed_value_in_its_place():
    (table,) = table7().tables.values()
    assert [block[0][0] for block in table.blocks] == ["CIFAR10", "MNIST", "DermaMNIST", "SVHN", "FashionMNIST"]
    derma = dict(zip(table.header, table.blocks[2][0], strict=True))
    assert (derma["ε = 4"], derma["ε = 8"], derma["ε = 0.5"]) == ("0.644663", "0.855797", "–")
    assert table.blocks[2][1][-1] == "0.856 (ε = 7.42)"
    assert len(table.data) == 23
    assert list(table.data.loc[~table.data["agrees"], "printed"]) == ["0.404", "0.825"]
    assert "0.403462 printed as 0.404, 0.824477 printed as 0.825" in table.notes[0]


def test_a_value_that_does_not_agree_is_not_explained_away():
    data = pd.DataFrame({"r_star": [0.5], "printed": ["0.4"], "agrees": [False]})
    assert _agreement(data) == "0 of 1 computed values round to the printed digits."


@pytest.mark.parametrize("item", ["table6", "table7"])
def test_a_computed_item_needs_no_sweep(tmp_path, item):
    artifacts, paths = write_computed(tmp_path / item, item=item)
    assert [path.name for path in paths] == [f"{item}.{suffix}" for suffix in ("csv", "md", "tex", "html")]
    assert list(artifacts.tables) == [item]
    assert "nominal ε (Theorem 10)" in paths[-1].read_text(encoding="utf-8")
