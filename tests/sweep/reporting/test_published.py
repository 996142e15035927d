"""The paper's numbers as package data."""

import math
from importlib import resources

import pytest

from sweep.reporting import published


def test_the_numbers_ship_with_the_package_and_keep_their_digits():
    assert (resources.files("sweep.reporting") / "paper_values.csv").is_file()
    rows = published.values("table2")
    ours = rows[rows["method"] == "dirichlet"]
    assert list(ours["value"]) == [0.5, 1, 2, 4, math.inf]
    assert list(ours["printed"]) == ["99.28", "99.37", "99.40", "99.44", "99.51"]
    assert list(ours["printed_std"]) == ["0.072", "0.059", "0.058", "0.038", ""]
    assert ours["mean"].iloc[2] == 99.4 and math.isnan(ours["std"].iloc[-1])
    assert set(ours["n"].dropna()) == {published.SEEDS}


def test_every_table_is_there_and_another_names_them():
    for number in range(1, 11):
        assert len(published.values(f"table{number}")) > 3
    with pytest.raises(ValueError, match="'table11' is unknown; choose from table1, table2"):
        published.values("table11")


def test_what_is_read_is_the_callers_own():
    mine = published.values("table1")
    mine.loc[:, "mean"] = 0.0
    assert published.values("table1")["mean"].iloc[0] == 56.4


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("table1", ("cifar10", "resnet18", 0.005, 20000, 0.1)),
        ("table3", ("dermamnist", "resnet9", 70 / 7007, 6006, 0.05)),
        ("table9", ("cifar10", "resnet18", None, 20000, 0.1)),
        ("table10", ("cifar10", "resnet18", 0.005, 20000, 0.001)),
    ],
)
def test_a_table_has_the_setting_that_the_paper_states(table, expected):
    setting = published.setting(table)
    found = (setting.dataset, setting.model, setting.sampling_rate, setting.steps, setting.learning_rate)
    assert found == expected
