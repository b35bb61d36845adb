"""A number of a record, declared once: its name and meaning, where it lies, its unit, and which way it improves.

`record_kinds.py` declares those of every kind of record. Gates, the CI summary, the history, changes between two runs,
the fleet table and the Markdown of a pull request are views of them. A name that two kinds have as `common` means the
same in both, so that a record of one can be the baseline of the other. A number that a record does not have is NaN, so
that a gate on it is not met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from operator import attrgetter
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from sardonyx.records.base import Record
from sardonyx.records.expressions import Gate, Number, Wording, parse, shown
from sardonyx.reporting import formatting as fmt

_FAIL_IF = Wording(
    "--fail-if",
    "write a name, a comparison and a limit: --fail-if 'nodes>120', --fail-if 'bytes > baseline + 1%'",
    "give an earlier record: --baseline FILE",
)


Better: TypeAlias = Literal["lower", "higher", ""]


class Unit(Struct, frozen=True, eq=False):
    """How a number is written."""

    write: Callable[[float], str]
    is_share: bool = False  # a part of 1, which a gate may compare in percent
    is_time: bool = False  # comparable only under the same conditions


COUNT = Unit(lambda number: fmt.count(round(number)))
BYTES = Unit(lambda number: fmt.size(round(number)))
MEGABYTES = Unit(lambda number: f"{shown(number)} MB")
SECONDS = Unit(fmt.seconds, is_time=True)
MILLISECONDS = Unit(lambda number: f"{fmt.milliseconds(number)} ms", is_time=True)
DIFFERENCE = Unit(fmt.difference)
PLAIN = Unit(shown)
SHARE = Unit(lambda number: f"{100 * number:{'.2g' if 0 < abs(number) < 0.01 else '.1f'}} %", is_share=True)
RATIO = Unit(lambda number: f"{number:.3f}", is_share=True)


class Measure(Struct, frozen=True, eq=False):
    """One number that every record of a kind has."""

    name: str
    meaning: str
    of: Callable[[Any], float | Number | None] | str = ""  # where it lies: a function or a field, "": that of its name
    unit: Unit = COUNT
    better: Better = ""  # which way it improves
    whole: Callable[[Any], float] | str = ""  # what a percentage is of: for most the number of the source
    title: str = ""  # in tables, if it is not the name
    alone: bool = False  # should be zero: a gate on it needs no limit
    common: bool = False  # means the same in other kinds

    @property
    def in_percent(self) -> bool:
        """Whether a gate may have a percentage as limit."""
        return bool(self.whole) or self.unit.is_share

    @property
    def heading(self) -> str:
        """The name in tables."""
        return self.title or self.name.replace("_", " ")

    def at(self, of: Callable[[Any], float | Number | None] | str, meaning: str = "") -> Measure:
        """Return the same number where another kind of record has it."""
        return replace(self, of=of, meaning=meaning or self.meaning)

    def read(self, record: Any) -> Reading:
        """Return the number of a record."""
        found = None if record is None else value(record, self.of or self.name)
        number = found if isinstance(found, Number) else Number(math.nan if found is None else found)
        whole = 1.0 if self.unit.is_share else number.whole
        if self.whole and record is not None:
            whole = value(record, self.whole)
        return Reading(number.value, whole, number.low, number.high, self)


def value(record: Any, of: Callable[[Any], Any] | str) -> Any:
    """Return what a function finds in a record, or a field of it, such as after.nodes: a number, or how many it has."""
    found: Any = of(record) if callable(of) else attrgetter(of)(record)
    return len(cast("Sized", found)) if isinstance(found, tuple) else found


class Reading(Number, frozen=True):
    """One number of one record."""

    measure: Measure = Measure("number", "a number", float)

    @property
    def short(self) -> str:
        """The number in its unit, without its interval."""
        return self.measure.unit.write(self.value) if self.known else "–"

    @property
    def written(self) -> str:
        """The number in its unit: 12,345, 17.5 MB, 0.877 [0.865, 0.890]."""
        if not self.known or self.lowest == self.highest:
            return self.short
        ends = (self.measure.unit.write(end).partition(" ")[0] for end in (self.lowest, self.highest))
        return f"{self.short} [{', '.join(ends)}]"

    @property
    def before(self) -> str:
        """The number of the source in its unit."""
        return "–" if self.whole is None else self.measure.unit.write(self.whole)

    @property
    def saving(self) -> str:
        """The change from the number of the source in percent."""
        return "" if self.whole is None else fmt.percent(round(self.whole), round(self.value))

    def change(self, earlier: Number) -> str:
        """Return the change from an earlier number: −3.4 %, +5 from zero, +1.2 points of a share, a dot for none."""
        if not (self.known and earlier.known):
            return ""
        if self.value == earlier.value:
            return "·"
        if self.measure.unit is SHARE:
            return fmt.signed(100 * (self.value - earlier.value), "points")
        if earlier.value:
            return fmt.signed(100 * (self.value - earlier.value) / abs(earlier.value))
        return f"+{self.short}" if self.value > 0 else self.short

    def verdict(self, earlier: Number) -> str:
        """Return "better" or "worse" than an earlier number, "" if neither is sure, as for a time without interval."""
        if not (self.known and earlier.known and self.measure.better):
            return ""
        if self.measure.unit.is_time and self.low is None:
            return ""
        if self.lowest <= earlier.highest and earlier.lowest <= self.highest:
            return ""
        return "better" if (self.value > earlier.value) == (self.measure.better == "higher") else "worse"


class RecordKind(Struct, frozen=True, eq=False):
    """One kind of record with its measures."""

    record: type[Record]
    declared: Sequence[Measure]
    forms: Sequence[str] = ()  # prefixes of names: form.name
    part: Callable[[Any, str], Any] = lambda record, _form: record  # what a form, "" for none, is read from

    @property
    def title(self) -> str:
        """The name of a record of this kind in messages, with the article."""
        return self.record.title

    @property
    def names(self) -> dict[str, str]:
        """The meaning of each name."""
        return {measure.name: measure.meaning for measure in self.declared}

    @property
    def common(self) -> list[str]:
        """The names that mean the same in other kinds."""
        return [measure.name for measure in self.declared if measure.common]

    @property
    def shares(self) -> list[str]:
        """The names that may have a percentage as limit."""
        return [measure.name for measure in self.declared if measure.in_percent]

    def __getitem__(self, name: str) -> Measure:
        """Return the measure with this name."""
        return next(measure for measure in self.declared if measure.name == name)

    def measures(self, record: Any) -> dict[str, Reading]:
        """Return every number of a record by name."""
        parts = {f"{form}." if form else "": self.part(record, form) for form in ("", *self.forms)}
        return {f"{at}{measure.name}": measure.read(part) for at, part in parts.items() for measure in self.declared}

    def parse(self, text: str, *, baseline: bool = False) -> Gate:
        """Return a parsed expression about a record of this kind; `baseline`: whether there is one."""
        alone = [measure.name for measure in self.declared if measure.alone]
        return parse(
            text,
            tuple(self.names),
            shares=self.shares,
            forms=self.forms,
            alone=alone,
            baseline=baseline,
            wording=_FAIL_IF,
        )
