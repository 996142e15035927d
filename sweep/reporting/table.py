"""A table as an object, and its four texts: CSV, Markdown, LaTeX (booktabs) and HTML.

Cells are plain Unicode (``82.96 ± 1.46``, ``∞``); each writer escapes what its format would read otherwise.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from sweep.reporting.aggregate import differing
from sweep.words import point_cells, point_header, setting_cell

LONGEST_FLOAT = 40  # rows that fit a page; beyond, LaTeX gets a longtable

# What LaTeX writes otherwise. Longer keys win.
_LATEX = {
    "γ_eff": r"$\gamma_{\mathrm{eff}}$",
    "r*": r"$r^*$",
    "√(s²/5 + s′²/n)": r"$\sqrt{s^2/5 + s'^2/n}$",
    "√(s_A²/n_A + s_B²/n_B)": r"$\sqrt{s_A^2/n_A + s_B^2/n_B}$",
    "s′": r"$s'$",
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "α": r"$\alpha$",
    "γ": r"$\gamma$",
    "κ": r"$\kappa$",
    "∞": r"$\infty$",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "<": r"$<$",
    ">": r"$>$",
    "²": r"$^2$",
    "†": r"$^\dagger$",
    "–": "--",
    "·": r"$\cdot$",
    "\u00a0": "~",
}
_LATEX_TOKEN = re.compile("|".join(re.escape(token) for token in sorted(_LATEX, key=len, reverse=True)))


@dataclass(frozen=True, kw_only=True)
class Table:
    """``header`` over ``blocks`` of rows, a rule between blocks; ``notes`` stand below, a sentence or two each.

    The first ``text_columns`` columns are words, flush left; the others flush right. ``data`` is what the CSV
    holds: the same numbers unrounded, one a row.
    """

    caption: str
    header: list[str]
    blocks: list[list[list[str]]]
    data: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    text_columns: int = 1

    @property
    def rows(self) -> list[list[str]]:
        """All rows, block after block."""
        return [row for block in self.blocks for row in block]


def points_table(points: pd.DataFrame) -> Table:
    """All points, one a row, under :func:`~sweep.words.point_header` and before it the parts of the
    setting in which they differ. The CSV has all columns of ``points_frame``, accuracies as fractions."""
    parts = [name for name in differing(points) if name != "steps"]
    rows = [[*(setting_cell(point, name) for name in parts), *point_cells(point)] for _, point in points.iterrows()]
    return Table(
        caption="Test accuracy of every point: mean ± sample standard deviation over its finished seeds",
        header=[*parts, *point_header(points)],
        blocks=[rows],
        data=points,
        notes=["γ_eff = γκ at s_y = 0.9. Seeds: finished/asked. The (nominal) ε is what one trial has spent, at most."],
        text_columns=len(parts),
    )


def csv_text(frame: pd.DataFrame) -> str:
    """Comma-separated, a header line, numbers with all their digits, nothing for what is missing."""
    return frame.to_csv(index=False, lineterminator="\n")


def markdown(table: Table) -> str:
    """A pipe table under its caption, aligned for readers of the plain text."""
    cells = [[_markdown(text) for text in row] for row in [table.header, *table.rows]]
    widths = [max(3, *(len(row[place]) for row in cells)) for place in range(len(table.header))]
    words = [place < table.text_columns for place in range(len(widths))]
    rule = [
        ":" + "-" * (width - 1) if word else "-" * (width - 1) + ":" for word, width in zip(words, widths, strict=True)
    ]
    header, *rows = [
        [text.ljust(width) if word else text.rjust(width) for text, word, width in zip(row, words, widths, strict=True)]
        for row in cells
    ]
    lines = [f"| {' | '.join(row)} |" for row in [header, rule, *rows]]
    notes = [f"\n{_markdown(note)}" for note in table.notes]
    return "\n".join([f"**{_markdown(table.caption)}**", "", *lines, *notes]) + "\n"


def latex(table: Table, *, label: str) -> str:
    """A table to ``\\input``; it needs the packages booktabs and, above :data:`LONGEST_FLOAT` rows, longtable.

    It is labelled ``tab:label``; columns may be many: set it in ``\\small`` or turn it where they do not fit.
    """
    columns = "l" * table.text_columns + "r" * (len(table.header) - table.text_columns)
    header = _latex_row(table.header)
    blocks = "\\midrule\n".join("".join(map(_latex_row, block)) for block in table.blocks if block)
    caption = f"\\caption{{{_latex(table.caption)}}}\\label{{tab:{label}}}"
    notes = "".join(f"\n\n{_latex(note)}" for note in table.notes)
    if len(table.rows) > LONGEST_FLOAT:
        head = f"{caption}\\\\\n\\toprule\n{header}\\midrule\n\\endhead\n"
        return f"\\begin{{longtable}}{{{columns}}}\n{head}{blocks}\\bottomrule\n\\end{{longtable}}{notes}\n"
    return (
        f"\\begin{{table}}\n\\centering\n{caption}\n\\begin{{tabular}}{{{columns}}}\n"
        f"\\toprule\n{header}\\midrule\n{blocks}\\bottomrule\n\\end{{tabular}}\n"
        f"\\par\\footnotesize\\raggedright{notes}\n\\end{{table}}\n"
    )


def html_text(table: Table) -> str:
    """A ``<table>`` with its caption, one ``<tbody>`` a block, and its notes as paragraphs."""

    def row(cells: Iterable[str], tag: str) -> str:
        kinds = ["word" if place < table.text_columns else "number" for place in range(len(table.header))]
        pairs = zip(kinds, cells, strict=True)
        inner = "".join(f'<{tag} class="{kind}">{_html(text)}</{tag}>' for kind, text in pairs)
        return f"<tr>{inner}</tr>"

    bodies = "\n".join(
        "<tbody>\n" + "\n".join(row(cells, "td") for cells in block) + "\n</tbody>" for block in table.blocks
    )
    head = f"<caption>{html.escape(table.caption)}</caption>\n<thead>{row(table.header, 'th')}</thead>"
    notes = "".join(f'\n<p class="note">{html.escape(note)}</p>' for note in table.notes)
    return f'<div class="wide"><table>\n{head}\n{bodies}\n</table></div>{notes}'


SUFFIXES = {"csv": "csv", "markdown": "md", "latex": "tex"}
"""A table's formats and how their files end."""


def text(table: Table, fmt: str, *, name: str) -> str:
    """A table in one of :data:`SUFFIXES`' formats; ``name`` is its LaTeX label. ``ValueError`` for another."""
    if fmt == "csv":
        return csv_text(table.data)
    if fmt == "markdown":
        return markdown(table)
    if fmt == "latex":
        return latex(table, label=name)
    raise ValueError(f"unknown format {fmt!r}; choose {', '.join(SUFFIXES)}")


def _html(text: str) -> str:
    """Escaped; a cell may break before a parenthesis, nowhere else."""
    pieces = re.split(r" (?=\()", text)
    return " ".join(f"<span>{html.escape(piece)}</span>" for piece in pieces) if len(pieces) > 1 else html.escape(text)


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_<`])", r"\\\1", text)


def _latex(text: str) -> str:
    return _LATEX_TOKEN.sub(lambda found: _LATEX[found[0]], text)


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\" + "\n"
