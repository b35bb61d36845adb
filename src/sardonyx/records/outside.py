"""Commands of other packages, from the entry-point group `sardonyx.verbs`, and the records that they return."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sardonyx.errors import SardonyxError, reason
from sardonyx.records.base import Record

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "sardonyx.verbs"
_FORM = "an entry point must name a module with a docstring and a VERB: docs/writing-a-verb.md"


class OutsideRecord(Record, frozen=True, kw_only=True):
    """The base of records that commands of other packages return.

    Attributes:
        models: Paths of the ONNX files that the record is about: a report shows it with the run of one of them.
    """

    models: tuple[str, ...]


@functools.cache
def entry_points() -> Mapping[str, EntryPoint]:
    """Return the entry points of commands, by name."""
    from importlib import metadata  # takes long, and most commands need no other package

    return {point.name: point for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)}


@functools.cache
def module(name: str) -> Any:
    """Return the module of a command.

    Raises:
        SardonyxError: it cannot be loaded, or is no command.
    """
    point = entry_points()[name]
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module
    where = f"the command {name!r} of the package {package}"
    try:
        found: Any = point.load()
    except Exception as error:  # whatever somebody else's package raises while it is imported
        raise SardonyxError(f"{where} cannot be loaded: {reason(error)}", hint="repair or uninstall it") from error
    if type(getattr(found, "VERB", None)).__name__ != "Verb":
        raise SardonyxError(f"{where} has no VERB", hint=_FORM)
    return found


def verb_of(tag: object) -> Any:
    """Return the command whose record has a tag; None if there is none."""
    verbs = (module(name).VERB for name in entry_points())
    return next((verb for verb in verbs if verb.returns is not None and verb.returns.record_tag() == tag), None)


def kind_of(tag: object) -> type[OutsideRecord] | None:
    """Return the class of the records with a tag; None if there is none."""
    verb = verb_of(tag)
    return None if verb is None else verb.returns
