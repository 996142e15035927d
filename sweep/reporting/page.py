"""One self-contained HTML page for an item: its setting, figures and tables; no other file is needed to read it."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweep.reporting.table import Table, html_text
from sweep.words import METHODS, SYMBOLS, cell, digits

if TYPE_CHECKING:
    from sweep.privacy import Statement

PRIVACY = (
    "What ε means here. Every ε of Algorithm 1 on this page is a nominal ε (Theorem 10). It covers an idealised "
    "release: each record owns a slot that emits one Dirichlet draw a step, nobody sees whose records were sampled, no "
    "layer mixes records, and all that is released is a function of those draws. It does not cover the trained "
    "weights: back-propagation multiplies the gradient of a draw by derivatives computed from the raw records, a "
    "minibatch shows who took part, and BatchNorm mixes records. It is also the ε of one trial, which leaves out that "
    "the trial was chosen among others. It is therefore no promise about what a trained model tells of its training "
    "data."
)

MOST_VALUES = 12  # listed of a field that varies
_UNTOLD = {"seed", "repeat"}

_CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin-bottom: 0; }
img { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; margin: 1rem 0 0.5rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.4rem; }
th, td { padding: 0.2rem 0.6rem; vertical-align: top; white-space: nowrap; }
td:has(span) { white-space: normal; } td span { white-space: nowrap; }
th.word, td.word { text-align: left; } th.number, td.number { text-align: right; }
thead { border-top: 2px solid #222; border-bottom: 1px solid #222; }
tbody { border-bottom: 1px solid #999; } tbody:last-of-type { border-bottom: 2px solid #222; }
.note { font-size: 0.85rem; color: #444; margin: 0.15rem 0; }
.privacy { border-left: 4px solid #d55e00; padding: 0.2rem 1rem; background: #fdf5ef; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.1rem 1.2rem; font-size: 0.9rem; }
dt { color: #555; } dd { margin: 0; }
"""


def page(
    *,
    title: str,
    plans: Sequence[Mapping[str, Any]],
    pictures: Mapping[str, bytes],
    tables: Mapping[str, Table],
    privacy: Statement | None = None,
) -> str:
    """The page as text. ``pictures`` are PNG files by name; ``plans`` the trials' plans, for the setting."""
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="privacy">{html.escape(PRIVACY)}</p>',
        *(_picture(name, data) for name, data in pictures.items()),
        *(f'<section id="{html.escape(name)}">\n{html_text(table)}\n</section>' for name, table in tables.items()),
        _statement(privacy) if privacy else "",
        _setting(plans),
    ]
    body = "\n".join(filter(None, sections))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def setting(plans: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Every field of the trials' plans with its values: the one they share, or those it takes; seeds left out.

    Of more than :data:`MOST_VALUES` numbers the least and the greatest.
    """
    fields = dict.fromkeys(name for plan in plans for name in plan if name not in _UNTOLD)
    taken = {name: _distinct(plan.get(name) for plan in plans) for name in fields}
    words = {"epsilon": _budget(taken.get("method", []))}
    return {words.get(name) or _name(name): _listed(values) for name, values in taken.items() if values}


def _statement(privacy: Statement) -> str:
    parts = [f"<h2>Privacy of {html.escape(privacy.title)}</h2>"]
    for section in privacy.sections:
        rows = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(said)}</dd>" for name, said in section.rows)
        parts.append("<h3>{}</h3>\n<dl>\n{}\n</dl>".format(html.escape(section.title), "\n".join(rows)))
    return '<section id="privacy">\n{}\n</section>'.format("\n".join(parts))


def _setting(plans: Sequence[Mapping[str, Any]]) -> str:
    if not plans:
        return ""
    items = "\n".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in setting(plans).items()
    )
    return f"<h2>Setting of the trials</h2>\n<dl>\n{items}\n</dl>"


def _picture(name: str, data: bytes) -> str:
    encoded = base64.b64encode(data).decode("ascii")
    return f'<p><img alt="{html.escape(name)}" src="data:image/png;base64,{encoded}"></p>'


def _name(field: str) -> str:
    return f"{field} {SYMBOLS[field]}" if field in SYMBOLS else field


def _budget(methods: Sequence[str]) -> str:
    ours = {"dirichlet", "nonprivate"}
    return "nominal ε (Theorem 10)" if ours.issuperset(methods) else "ε, nominal (Theorem 10) for Algorithm 1"


def _distinct(values: Any) -> list[Any]:
    """Each value once, None left out; numbers in their order, others as they come."""
    found = {json.dumps(value, sort_keys=True, default=str): value for value in values if value is not None}
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in found.values())
    return sorted(found.values()) if numbers else list(found.values())


def _listed(values: list[Any]) -> str:
    if len(values) > MOST_VALUES and not isinstance(values[0], str | Mapping):
        return f"{len(values)} values from {cell(values[0])} to {cell(values[-1])}"
    return ", ".join(_value(value) for value in values)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(entry)}" for name, entry in value.items() if entry not in (0, False, None))
    if isinstance(value, float):
        return "∞" if math.isinf(value) else digits(value) if len(digits(value)) < 8 else f"{value:.6g}"
    return METHODS.get(str(value), str(value))
