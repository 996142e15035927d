"""A table's texts, word for word."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.reporting.table import LONGEST_FLOAT, Table, html_text, latex, markdown, points_table, text

MADE = Table(
    caption="50% of x_y & r* | nominal ε",
    header=["Method", "ε = 1", "ε = ∞"],
    blocks=[[["A_b (2024)", "82.96 ± 1.46", "92.35†"]], [["C <d>", "−1.2", "–"]]],
    data=pd.DataFrame({"epsilon": [1.0, math.inf, math.nan], "mean": [0.1, 0.25, 1.0]}),
    notes=["γ_eff in units of √(s²/5 + s′²/n)."],
)


def test_markdown():
    assert markdown(MADE) == (
        "**50% of x\\_y & r\\* \\| nominal ε**\n"
        "\n"
        "| Method      |        ε = 1 |  ε = ∞ |\n"
        "| :---------- | -----------: | -----: |\n"
        "| A\\_b (2024) | 82.96 ± 1.46 | 92.35† |\n"
        "| C \\<d>      |         −1.2 |      – |\n"
        "\n"
        "γ\\_eff in units of √(s²/5 + s′²/n).\n"
    )


def test_latex():
    assert latex(MADE, label="made") == (
        "\\begin{table}\n"
        "\\centering\n"
        "\\caption{50\\% of x\\_y \\& $r^*$ | nominal $\\varepsilon$}\\label{tab:made}\n"
        "\\begin{tabular}{lrr}\n"
        "\\toprule\n"
        "Method & $\\varepsilon$ = 1 & $\\varepsilon$ = $\\infty$ \\\\\n"
        "\\midrule\n"
        "A\\_b (2024) & 82.96 $\\pm$ 1.46 & 92.35$^\\dagger$ \\\\\n"
        "\\midrule\n"
        "C $<$d$>$ & $-$1.2 & -- \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\par\\footnotesize\\raggedright\n"
        "\n"
        "$\\gamma_{\\mathrm{eff}}$ in units of $\\sqrt{s^2/5 + s'^2/n}$.\n"
        "\\end{table}\n"
    )


def test_csv_has_the_numbers_and_not_their_rounding():
    assert text(MADE, "csv", name="made") == "epsilon,mean\n1.0,0.1\ninf,0.25\n,1.0\n"


def test_html_is_escaped_and_breaks_before_a_parenthesis_only():
    found = html_text(MADE)
    assert "<caption>50% of x_y &amp; r* | nominal ε</caption>" in found
    assert '<td class="word">C &lt;d&gt;</td><td class="number">−1.2</td>' in found
    assert '<td class="word"><span>A_b</span> <span>(2024)</span></td>' in found
    assert found.count("<tbody>") == 2
    assert '<p class="note">γ_eff in units of √(s²/5 + s′²/n).</p>' in found


def test_a_long_table_may_break_over_pages():
    long = Table(caption="c", header=["a"], blocks=[[["1"]] * (LONGEST_FLOAT + 1)], data=pd.DataFrame())
    found = latex(long, label="long")
    assert found.startswith(
        "\\begin{longtable}{l}\n\\caption{c}\\label{tab:long}\\\\\n\\toprule\na \\\\\n\\midrule\n\\endhead\n"
    )
    assert found.endswith("1 \\\\\n\\bottomrule\n\\end{longtable}\n")


@given(st.text(alphabet="a\\~^&%$#_{}|", max_size=30))
def test_latex_gets_no_bare_special_character(cell):
    (row,) = [
        line
        for line in latex(
            Table(caption="", header=["h"], blocks=[[["x" + cell]]], data=pd.DataFrame()), label="l"
        ).splitlines()
        if line.startswith("x")
    ]
    bare = row.removesuffix(" \\\\")
    for word in ("\\textbackslash{}", "\\textasciitilde{}", "\\textasciicircum{}", *(f"\\{c}" for c in "&%$#_{}")):
        bare = bare.replace(word, "")
    assert not set(bare) - set("xa|")


def test_an_unknown_format_names_the_known_ones():
    with pytest.raises(ValueError, match="'docx'; choose csv, markdown, latex"):
        text(MADE, "docx", name="made")


def test_the_table_of_points_shows_what_differs_and_counts_seeds(record):
    from sweep.reporting.aggregate import points_frame, trials_frame

    records = [record(lr=0.25, seed=seed, accuracy=a) for seed, a in [(0, 0.9), (1, 0.92)]]
    records.append(record(lr=0.5, end="diverged", epsilon=2.0))
    table = points_table(points_frame(trials_frame(records, rung=None), seeds=2))
    assert table.header == ["epsilon", "α", "γ", "γ_eff", "r*", "seeds", "test accuracy %", "steps", "nominal ε"]
    assert table.rows == [
        ["1", "3", "0.25", "0.01928", "0.24", "2/2", "91.00 ± 1.41", "100", "0.9999"],
        ["2", "3", "0.5", "0.03856", "0.24", "0/2", "–", "100", "–"],
    ]
