"""The table at the end of a sweep: the right points first; and those of a report."""

import io

import pytest
from rich.console import Console

from sweep.reporting.aggregate import points_frame, trials_frame
from sweep.reporting.table import Table
from sweep.reporting.terminal import counts_line, rich_table, summary_table


def frames(records, *, seeds=2):
    trials = trials_frame(records, rung=None)
    return trials, points_frame(trials, seeds=seeds)


def lines(records, *, seeds=2, **options):
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(summary_table(*frames(records, seeds=seeds), **options))
    return console.export_text().splitlines()


def cells(line):
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_the_best_points_come_first_with_their_seeds_counted(record):
    records = [
        *[record(alpha=0.3, lr=0.5, seed=seed, accuracy=a) for seed, a in [(0, 0.94), (1, 0.96)]],
        record(alpha=3.0, lr=0.25, accuracy=0.97),
        *[record(alpha=1.0, lr=lr, accuracy=lr) for lr in (0.1, 0.2)],
        record(alpha=1.0, lr=0.7, accuracy=0.99, end="early_stopped"),
    ]
    text = lines(records, top=2)
    assert text[0].strip() == "Best points by test accuracy"
    assert cells(text[2].replace("┃", "│")) == [
        *["α", "γ", "γ_eff", "r*", "seeds", "test accuracy %", "steps", "nominal ε"]
    ]
    assert [cells(line) for line in text if line.startswith("│")] == [
        ["3", "0.25", "0.01928", "0.24", "1/2", "97.00", "100", "0.9999"],
        ["0.3", "0.5", "0.18", "0.024", "2/2", "95.00 ± 1.41", "100", "0.9999"],
    ]
    assert "6 trials: 5 completed, 1 early stopped · 1 of 5 points have all their seeds" in text[-1]


def test_where_data_is_held_out_the_choice_never_looks_at_the_test_set(record):
    chosen, lucky = (record(lr=lr, accuracy=0.9, validation={"fraction": 0.1}) for lr in (0.1, 0.2))
    chosen.reports[-1]["validation_accuracy"] = 0.95
    lucky.reports[-1]["test_accuracy"] = 0.99
    text = lines([lucky, chosen])
    assert text[0].strip() == "Best points by validation accuracy"
    assert [cells(line)[1] for line in text if line.startswith("│")] == ["0.1", "0.2"]


def test_the_parts_of_the_setting_that_differ_are_columns(record):
    text = lines([record(epsilon=1.00001, augmentation="[bold]"), record(epsilon=2.0, augmentation="none")])
    assert cells(text[2].replace("┃", "│"))[:2] == ["epsilon", "variant"]
    assert {tuple(cells(line)[:2]) for line in text if line.startswith("│")} == {
        ("1.0001", 'augmentation="[bold]"'),
        ("2", 'augmentation="none"'),
    }


def test_every_end_is_counted(record):
    ends = ["completed", "early_stopped", "diverged", "infeasible", "interrupted", "error", None, "lost"]
    counted = counts_line(*frames([record(lr=1 + place, end=end) for place, end in enumerate(ends)], seeds=1))
    assert counted.startswith(
        "8 trials: 1 completed, 1 early stopped, 1 diverged, 1 infeasible, 1 interrupted, 1 failed, 1 running, 1 lost"
    )


@pytest.mark.parametrize("records", [0, 1])
def test_a_sweep_without_a_finished_trial_has_a_table_without_rows(record, records):
    text = lines([record(end="infeasible")] * records)
    assert not any(line.startswith("│") for line in text)
    assert "1 infeasible" in text[-1] if records else "no trials" in text[-1]


def test_a_table_of_a_report_is_shown_with_its_notes_and_without_markup():
    table = Table(
        caption="[bold]", header=["Method", "[b]"], blocks=[[["a", "[x]"]], [["b", "−1.2"]]], data=None, notes=["[red]"]
    )
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(rich_table(table))
    text = console.export_text()
    assert [cells(line) for line in text.splitlines() if line.startswith("│")] == [["a", "[x]"], ["b", "−1.2"]]
    assert all(word in text for word in ("[bold]", "[b]", "[red]"))
