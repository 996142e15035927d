"""Two sweeps side by side: which points are the same, and the error of their difference."""

import math
from types import SimpleNamespace

import pytest

from sweep.reporting import compare


def results(name, records, *, seeds=2):
    return SimpleNamespace(sweep=SimpleNamespace(name=name, seeds=seeds), records=records, rung=None)


def seeds_of(record, accuracies, **plan):
    return [record(seed=seed, accuracy=a, **plan) for seed, a in enumerate(accuracies)]


def test_the_difference_and_its_standard_error_by_hand(record):
    """A: 0.80, 0.82, mean 0.81, s² = 2e-4; B: 0.85, 0.87, 0.89, mean 0.87, s² = 4e-4. The error is
    √(2e-4/2 + 4e-4/3) = 0.0152753."""
    table = compare(
        results("first", seeds_of(record, [0.80, 0.82])),
        results("second", seeds_of(record, [0.85, 0.87, 0.89]), seeds=4),
    )
    assert table.caption == "Test accuracy (%): A = first, B = second"
    assert table.header == ["A", "n", "B", "n", "B − A"]
    assert table.rows == [["81.00 ± 1.41", "2/2", "87.00 ± 2.00", "3/4", "+6.00 ± 1.53"]]
    (row,) = table.data.to_dict(orient="records")
    assert row["difference"] == pytest.approx(0.06)
    assert row["standard_error"] == pytest.approx(0.0152753, abs=1e-7)


def test_a_single_seed_has_no_error_and_so_no_difference_is_shown(record):
    table = compare(results("a", [record()]), results("b", seeds_of(record, [0.8, 0.9])))
    assert table.rows[0][-1] == "–"
    assert math.isnan(table.data["standard_error"].iloc[0])


def test_points_pair_by_identity_or_setting_and_the_others_come_last(record):
    a = [record(lr=lr) for lr in (0.1, 0.2, 0.3)]
    b = [record(lr=0.3), record(lr=0.2, reports=7), record(lr=0.4, reports=7)]
    table = compare(results("a", a), results("b", b))
    assert table.header[:2] == ["variant", "γ"]
    pairs, single = ([row[:2] for row in block] for block in table.blocks)
    assert pairs == [["", "0.3"]]
    assert single == [["", "0.1"], ["", "0.2"], ["reports=7", "0.2"], ["reports=7", "0.4"]]
    assert table.blocks[1][0][-5:] == ["90.00", "1/2", "–", "–", "–"]


def test_points_that_differ_in_a_field_without_a_column_are_not_taken_for_one(record):
    a = [record(reports=5), record(reports=7)]
    b = [record(reports=7), record(reports=9)]
    table = compare(results("a", a), results("b", b))
    assert [row[0] for row in table.blocks[0]] == ["reports=7"]
    assert [row[0] for row in table.blocks[1]] == ["reports=5", "reports=9"]


def test_what_each_sweep_holds_fixed_may_differ_and_is_said(record):
    a = [record(lr=lr, model="mlp", epsilon=1.0) for lr in (0.1, 0.2)]
    b = [record(lr=lr, model="cnn", epsilon=1.0) for lr in (0.2, 0.1)]
    table = compare(results("a", a), results("b", b))
    assert [row[0] for row in table.rows] == ["0.1", "0.2"]
    assert len(table.blocks) == 1
    assert table.notes[0] == "model: A mlp, B cnn."


def test_effective_rates_pair_where_gamma_does_not(record):
    a = [record(alpha=1.0, lr=1 / 0.11475), record(alpha=3.0, lr=1 / 0.07712)]
    b = [record(alpha=1.0, lr=2 / 0.11475), record(alpha=3.0, lr=1 / 0.07712)]
    for made in (a[0], b[0]):
        made.info["effective_learning_rate"] = 1.0
    assert len(compare(results("a", a), results("b", b)).blocks) == 1


def test_an_empty_sweep_is_compared_too(record):
    table = compare(results("a", []), results("b", [record()]))
    assert table.rows[0][:2] == ["–", "–"]
    assert compare(results("a", []), results("b", [])).rows == []
