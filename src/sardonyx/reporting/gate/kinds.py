"""What may be asked of a kind of record: the names, what they mean, and how their numbers are read from it.

The words are those that help and documentation show. A name that two kinds have in `common` means the same in
both, so that a record of one can be the baseline of the other; all other names are compared within a kind.
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
    """One kind of record, and what may be asked of it."""

    record: type[Record]
    measures: Callable[[Any], Measures]
    names: Mapping[str, str]  # name -> what it is
    shares: Collection[str] = ()  # names that may be asked for in percent
    alone: Collection[str] = ()  # names of which there should be none: they need no limit
    forms: Sequence[str] = ()  # a name after one of these and a dot asks of that form
    common: Collection[str] = ()  # names that mean the same in other kinds

    @property
    def title(self) -> str:
        """What messages call a record of this kind, with the article."""
        return self.record.title

    def parse(self, text: str, *, baseline: bool = False) -> Gate:
        """An expression about a record of this kind; `baseline`: whether there is one to ask for."""
        return parse(text, tuple(self.names), shares=self.shares, forms=self.forms, alone=self.alone, baseline=baseline)

    def help(self) -> str:
        """The paragraph that a command's help has about its gates."""
        return (
            f"--fail-if knows {', '.join(self.names)}. With --baseline FILE, a record that was written before, a limit "
            "may be 'baseline', 'baseline + 1%' or '1.05 * baseline'; docs/gates.md says what each is."
        )
