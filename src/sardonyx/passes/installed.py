"""Passes of other packages: found by the entry-point group `sardonyx.passes`, checked before any of them runs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from sardonyx.errors import SardonyxError, UsageError, reason
from sardonyx.passes import ALL
from sardonyx.passes.base import EVERYWHERE, ModelPass, NodePass, Pass
from sardonyx.records.run import Accuracy

GROUP = "sardonyx.passes"
_FORM = "an entry point names a pass or a list of passes: docs/writing-a-pass.md"


@dataclass(frozen=True, slots=True)
class Installed:
    """A pass of another package."""

    rule: Pass
    package: str  # with its version


@functools.cache
def installed() -> tuple[Installed, ...]:
    """Every pass of an installed package, in the order of the packages' and the entry points' names.

    Raises:
        SardonyxError: a package's passes cannot be loaded; the message names the package.
    """
    found = sorted(entry_points(group=GROUP), key=lambda point: (_package(point), point.name))
    passes = tuple(Installed(rule, _package(point)) for point in found for rule in _load(point))
    merge([each.rule for each in passes])
    return passes


def available(passes: Iterable[Pass] = ()) -> tuple[Pass, ...]:
    """The built-in passes, those of installed packages, and the given ones.

    Raises:
        UsageError: one of the given is not a pass, or has the name of another.
        SardonyxError: a package's passes cannot be loaded.
    """
    return merge([*(each.rule for each in installed()), *passes])


def merge(added: Sequence[Pass]) -> tuple[Pass, ...]:
    """The built-in passes and the added ones; one that is added twice counts once."""
    by_name = {each.name: each for each in ALL}
    for each in added:
        if problem := _problem(each):
            raise UsageError(f"{each!r} is not a pass: {problem}", hint="docs/writing-a-pass.md says what a pass has")
        known = by_name.setdefault(each.name, each)
        if type(known) is not type(each):
            owners = " and ".join(f"{type(one).__module__}.{type(one).__qualname__}" for one in (known, each))
            raise UsageError(f"two passes have the name {each.name!r}: {owners}", hint="rename one of them")
    return tuple(by_name.values())


def _load(point: EntryPoint) -> tuple[Pass, ...]:
    """The passes that an entry point names."""
    where = f"the entry point {point.name!r} of the package {_package(point)}"
    try:
        loaded: Any = point.load()
    except Exception as error:  # whatever somebody else's package raises while it is imported
        hint = "repair or uninstall the package"
        raise SardonyxError(f"{where} cannot be loaded: {reason(error)}", hint=hint) from error
    passes = tuple(cast("Iterable[Any]", loaded)) if isinstance(loaded, (list, tuple)) else (loaded,)
    for each in passes:
        if problem := _problem(each):
            raise SardonyxError(f"{where} gives {each!r}, which is not a pass: {problem}", hint=_FORM)
    return passes


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module


def _problem(one: Any) -> str:
    """What an object lacks to be run as a pass; empty if nothing."""
    if isinstance(one, type):
        return "it is a class; give an instance"
    if not isinstance(one, (NodePass, ModelPass)):
        return "it is neither a NodePass nor a ModelPass"
    expected = {"name": str, "accuracy": Accuracy} | ({"roots": tuple} if isinstance(one, NodePass) else {})
    for attribute, kind in expected.items():
        if not isinstance(getattr(one, attribute, None), kind):
            return f"its {attribute!r} is not of type {kind.__name__}"
    unknown = sorted({*one.targets} - {*EVERYWHERE})
    return f"there is no target {unknown[0]!r}" if unknown else ""
