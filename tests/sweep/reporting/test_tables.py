"""The paper's tables with a sweep's rows in them."""

import math

import pytest

from sweep.reporting import VIEWS
from sweep.reporting.aggregate import points_frame, trials_frame
from sweep.reporting.table import csv_text, latex, markdown

CIFAR = {"dataset": "cifar10", "model": "resnet18", "sampling_rate": 0.005, "steps": 20_000}


def tables(item, records, *, seeds=2):
    trials = trials_frame(records, rung=None)
    return VIEWS[item](trials, points_frame(trials, seeds=seeds), title="Made", rung=None).tables


def lines(table):
    """The rows by their source, each a dictionary from column to cell."""
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def only(table, source):
    (line,) = [line for line in lines(table) if line["Source"] == source]
    return line


@pytest.fixture
def table1(record):
    """ε = 1 whole, 2 with one seed of two, 4 with none, 6 diverged, 8 infeasible, ∞ whole."""
    return [
        *[record(**CIFAR, epsilon=1.0, seed=seed, accuracy=a) for seed, a in [(0, 0.82), (1, 0.84)]],
        record(**CIFAR, epsilon=2.0, accuracy=0.86),
        record(**CIFAR, epsilon=2.0, seed=1, end="error"),
        record(**CIFAR, epsilon=4.0, end=None),
        record(**CIFAR, epsilon=6.0, end="diverged"),
        record(**CIFAR, epsilon=8.0, end="infeasible"),
        *[record(**CIFAR, epsilon=math.inf, seed=seed, accuracy=0.925) for seed in (0, 1)],
    ]


GOLDEN = """\
**Table 1: test accuracy (%) on CIFAR10; nominal ε (Theorem 10), δ = 1e-5**

| Method                   | Model     | Source     |                ε = 1 |          ε = 2 |            ε = 4 |             ε = 6 |        ε = 8 |                ε = ∞ |
| :----------------------- | :-------- | :--------- | -------------------: | -------------: | ---------------: | ----------------: | -----------: | -------------------: |
| DP-SGD (De et al. 2022)  | WRN-40-4  | quoted     |                 56.4 |           65.9 |             73.5 |              78.8 |         81.4 |                    – |
| Monir and Ghinita (2024) | ResNet-18 | quoted     |                    – |              – |            78.37 |   79.0 (ε = 4.46) |            – |               92.35† |
| Algorithm 1              | ResNet-18 | published  |         82.96 ± 1.46 |   86.34 ± 0.34 |     88.17 ± 0.33 |      88.54 ± 0.54 | 88.61 ± 0.34 |                92.35 |
| Algorithm 1              | resnet18  | this sweep | 83.00 ± 1.41 (n = 2) | 86.00 (1 of 2) | missing (0 of 2) | diverged (0 of 2) |   infeasible | 92.50 ± 0.00 (n = 2) |
|                          |           | difference |                 +0.0 |              – |                – |                 – |            – |                    – |

Mean ± sample standard deviation over n seeds, k of n where fewer finished than were asked.

Published: arXiv 2607.19580, over 5 runs.

Quoted: a baseline as that paper prints it, not run here; its ε is by its own accountant.

Difference: this sweep − the paper's number for the same method, in units of √(s²/5 + s′²/n), s the paper's and s′ this sweep's standard deviation; – where none is printed or n \\< 2.

† Reproduced by the paper's authors.

Infeasible: no usable r\\* (at least α/1000) within the budget.
"""  # noqa: E501


def test_table1_in_markdown(table1):
    (table,) = tables("table1", table1).values()
    assert markdown(table) == GOLDEN


def test_table1_in_latex(table1):
    (table,) = tables("table1", table1).values()
    found = latex(table, label="table1").splitlines()
    assert found[2] == (
        r"\caption{Table 1: test accuracy (\%) on CIFAR10; nominal $\varepsilon$ (Theorem 10), $\delta$ = 1e-5}"
        r"\label{tab:table1}"
    )
    assert found[8] == (
        r"Monir and Ghinita (2024) & ResNet-18 & quoted & -- & -- & 78.37 & 79.0 ($\varepsilon$ = 4.46) & -- & "
        r"92.35$^\dagger$ \\"
    )
    assert found[11] == (
        r"Algorithm 1 & resnet18 & this sweep & 83.00 $\pm$ 1.41 (n = 2) & 86.00 (1 of 2) & missing (0 of 2) & "
        r"diverged (0 of 2) & infeasible & 92.50 $\pm$ 0.00 (n = 2) \\"
    )
    assert "\n".join(found).isascii()


def test_table1_in_csv(table1):
    (table,) = tables("table1", table1).values()
    rows = csv_text(table.data).splitlines()
    assert rows[0] == (
        "source,method,model,dataset,split,variable,value,mean,std,n,n_expected,outcome,published_mean,published_std,"
        "published_n,difference,printed,note"
    )
    assert rows[9] == "published,Algorithm 1,ResNet-18,cifar10,test,epsilon,1.0,82.96,1.46,5,,,,,,,82.96 ± 1.46,"
    assert rows[-2] == "this sweep,Algorithm 1,resnet18,cifar10,test,epsilon,8.0,,,0,2,infeasible,88.61,0.34,5,,,"
    assert rows[-1].startswith("this sweep,Algorithm 1,resnet18,cifar10,test,epsilon,inf,92.5,0.0,2,2,,92.35,,,,,")


def test_a_sweep_on_other_data_is_shown_and_not_compared(record):
    (table,) = tables("table2", [record(seed=seed) for seed in (0, 1)]).values()
    assert only(table, "this sweep")["ε = 1"] == "90.00 ± 0.00 (n = 2)"
    assert only(table, "this sweep")["ε = 4"] == "not run"
    assert not [line for line in lines(table) if line["Source"] == "difference"]
    assert table.notes[-1].startswith("Not the paper's setting: dataset = digits (paper: mnist); model = mlp")


def test_numbers_off_the_grid_stand_where_the_paper_has_them():
    table2, table4 = (tables(name, [])[name] for name in ("table2", "table4"))
    found = {line["Method"]: line for line in [*lines(table2), *lines(table4)]}
    assert found["Papernot et al. (2021)"]["ε = 4"] == "98.1 (ε = 2.93)"
    assert found["Cheng et al. (2022)"]["ε = 4"] == "98.57 (ε = 3)"
    assert found["Tempered Sigmoid (Papernot et al. 2021)"]["ε = 2"] == "86.1 (ε = 2.7)"


def test_two_data_sets_have_a_row_each(record):
    records = [record(dataset="mnist", accuracy=0.99), record(accuracy=0.9)]
    (table,) = tables("table2", records, seeds=1).values()
    found = {line["Method"]: line["ε = 1"] for line in lines(table) if line["Source"] == "this sweep"}
    assert found == {"Algorithm 1, dataset = mnist": "99.00 (n = 1)", "Algorithm 1, dataset = digits": "90.00 (n = 1)"}


def test_a_budget_of_ones_own_gets_a_column(record):
    (table,) = tables("table2", [record(epsilon=0.7)]).values()
    assert table.header[3:] == [f"ε = {value}" for value in ("0.5", "0.7", "1", "2", "4", "∞")]


def test_table3_has_table8_beside_it_with_the_validation_accuracy(record):
    at = {"dataset": "dermamnist", "model": "resnet9", "epsilon": 4.0, "validation": {"fraction": 0.1}}
    found = tables("table3", [record(**at, seed=seed, accuracy=a) for seed, a in [(0, 0.75), (1, 0.76)]])
    assert list(found) == ["table3", "table8"] == list(tables("table8", []))
    assert only(found["table3"], "this sweep")["ε = 4"] == "75.50 ± 0.71 (n = 2)"
    assert only(found["table8"], "this sweep")["ε = 4"] == "74.50 ± 0.71 (n = 2)"
    assert only(found["table8"], "published")["ε = 4"] == "76.27 ± 1.22"


@pytest.mark.parametrize("item", ["appendix_f", "appendix_f_epochs", "table9"])
def test_appendix_f_is_by_sampling_rate_and_shows_both_lists_of_r(record, item):
    rates = {0.001: "completed", 0.04: "infeasible"}
    steps = {rate: round(100 / rate) if item == "appendix_f_epochs" else 20_000 for rate in rates}
    at = {"dataset": "cifar10", "model": "resnet18", "epsilon": 4.0, "accuracy": 0.9}
    records = [record(**at, sampling_rate=q, steps=steps[q], end=end) for q, end in rates.items()]
    found = tables(item, records, seeds=1)
    row = only(found["table9"], "this sweep")
    assert (row["q = 0.001"], row["q = 0.04"]) == ("90.00 (n = 1)", "infeasible")
    assert only(found["table9"], "published")["q = 0.04"] == "56.49 ± 3.51"
    assert found["appendix_f_r_star"].rows == [
        ["0.001", "0.7528", "100000", "0.7407"],
        ["0.01", "0.5046", "10000", "0.5688"],
        ["0.02", "0.2192", "5000", "0.4734"],
        ["0.04", "infeasible (least usable ε: 6.082)", "2500", "0.2858"],
    ]


@pytest.mark.parametrize("item", ["table10", "appendix_g"])
def test_table10_says_where_its_last_number_comes_from(record, item):
    (table,) = tables(item, [record(dataset="cifar10", lr=0.001)]).values()
    assert only(table, "published")["ε = ∞"] == "94.58"
    assert "Table 1 has 92.35" in table.notes[-1]


def test_the_words_promise_no_privacy():
    for item in ("table1", "table2", "table3", "table4", "table5", "table10"):
        for table in tables(item, []).values():
            assert "nominal ε (Theorem 10)" in table.caption
            assert "private" not in markdown(table)
