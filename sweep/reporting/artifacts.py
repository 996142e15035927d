"""What a view makes: tables and figures by name, not yet files."""

from __future__ import annotations

from dataclasses import dataclass, field

from matplotlib.figure import Figure

from sweep.reporting.table import Table


@dataclass(frozen=True, kw_only=True)
class Artifacts:
    """The tables and figures of one item, by the name of their files without suffix, in the order to be shown."""

    tables: dict[str, Table] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def __or__(self, more: Artifacts) -> Artifacts:
        """These artifacts, then those."""
        return Artifacts(tables=self.tables | more.tables, figures=self.figures | more.figures)
