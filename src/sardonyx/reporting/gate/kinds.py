"""The gate names of a kind of record: their meaning, and how their numbers are read from it.

The meanings are shown by the help and the documentation. A name that two kinds have in `common` means the same in both,
so that a record of one can be the baseline of the other; all other names are compared within a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.records.base import Record
from sardonyx.reporting.gate.expressions import Gate, parse
from sardonyx.reporting.gate.metric import Measure

Measures = dict[str, Measure]


@dataclass(frozen=True, eq=False)
class RecordKind:
    """One kind of record with its gate names."""

    record: type[Record]
    measures: Callable[[Any], Measures]
    names: Mapping[str, str]  # name -> meaning
    shares: Collection[str] = ()  # names that may have a percentage as limit
    alone: Collection[str] = ()  # names of numbers that should be zero: they need no limit
    forms: Sequence[str] = ()  # prefixes of names: form.name
    common: Collection[str] = ()  # names that mean the same in other kinds

    @property
    def title(self) -> str:
        """The name of a record of this kind in messages, with the article."""
        return self.record.title

    def parse(self, text: str, *, baseline: bool = False) -> Gate:
        """Return a parsed expression about a record of this kind; `baseline`: whether there is one."""
        return parse(text, tuple(self.names), shares=self.shares, forms=self.forms, alone=self.alone, baseline=baseline)

    def help(self) -> str:
        """Return the paragraph about gates in the help of a command."""
        return (
            f"--fail-if knows {', '.join(self.names)}. With --baseline FILE, a record that was written before, a limit "
            "may be 'baseline', 'baseline + 1%' or '1.05 * baseline'; docs/gates.md explains each name."
        )
