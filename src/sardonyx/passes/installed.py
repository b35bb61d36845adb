"""Load the passes of other packages from the entry-point group `sardonyx.passes` and check them before they run."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points, packages_distributions
from typing import Any, cast

from msgspec import Struct

from sardonyx.errors import SardonyxError, UsageError, reason
from sardonyx.ir.rules import Rule
from sardonyx.passes import ALL
from sardonyx.passes.base import ALL_TARGETS, ModelPass, NodePass, Pass
from sardonyx.records.run import Accuracy

GROUP = "sardonyx.passes"
_FORM = "an entry point must name a pass or a list of passes: docs/writing-a-pass.md"


class Installed(Struct, frozen=True):
    """A pass of another package."""

    rule: Pass
    package: str  # with its version


@functools.cache
def installed() -> tuple[Installed, ...]:
    """Return every pass of an installed package, ordered by the names of the packages and of the entry points.

    Raises:
        SardonyxError: a package's passes cannot be loaded; the message names the package.
    """
    points = sorted(entry_points(group=GROUP), key=lambda point: (_package(point), point.name))
    passes = tuple(Installed(rule, _package(point)) for point in points for rule in _load(point))
    merge([installed_pass.rule for installed_pass in passes])
    return passes


def available(passes: Iterable[Pass] = ()) -> tuple[Pass, ...]:
    """Return the built-in passes, those of installed packages, and the given ones.

    Raises:
        UsageError: one of the given ones is not a pass, or has the name of another.
        SardonyxError: a package's passes cannot be loaded.
    """
    return merge([*(installed_pass.rule for installed_pass in installed()), *passes])


def merge(added: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return the built-in passes and the added ones; one that is added twice counts once."""
    by_name = {rule.name: rule for rule in ALL}
    for rule in added:
        if problem := _problem(rule):
            raise UsageError(
                f"{rule!r} is not a pass: {problem}", hint="docs/writing-a-pass.md describes what a pass has"
            )
        registered = by_name.setdefault(rule.name, rule)
        if type(registered) is not type(rule):
            owners = " and ".join(
                f"{type(owner).__module__}.{type(owner).__qualname__}" for owner in (registered, rule)
            )
            raise UsageError(f"two passes have the name {rule.name!r}: {owners}", hint="rename one of them")
    return tuple(by_name.values())


def outside_failure(rule: Rule | None, error: Exception) -> SardonyxError | None:
    """Return the error to report for an exception in a pass from outside; None if it comes from sardonyx itself."""
    if (
        rule is None
        or isinstance(error, SardonyxError)
        or type(rule).__module__.partition(".")[0] == __name__.partition(".")[0]
    ):
        return None
    return SardonyxError(
        f"the pass {rule.name} of {_owner(rule)} failed: {reason(error)}",
        hint=f"leave it out with `skip=['{rule.name}']`, or repair it: see the traceback",
    )


def _owner(rule: Rule) -> str:
    """Return the package of a pass from outside, or its module if no installed package contains it."""
    package = next((outside.package for outside in installed() if outside.rule.name == rule.name), None)
    module = type(rule).__module__
    if package is None:
        package = next(iter(packages_distributions().get(module.partition(".")[0], ())), None)
    return f"the module {module}" if package is None else f"the package {package}"


def _load(point: EntryPoint) -> tuple[Pass, ...]:
    """Return the passes that an entry point names."""
    where = f"the entry point {point.name!r} of the package {_package(point)}"
    try:
        loaded: Any = point.load()
    except Exception as error:  # whatever somebody else's package raises while it is imported
        hint = "repair or uninstall the package"
        raise SardonyxError(f"{where} cannot be loaded: {reason(error)}", hint=hint) from error
    passes = tuple(cast("Iterable[Any]", loaded)) if isinstance(loaded, (list, tuple)) else (loaded,)
    for rule in passes:
        if problem := _problem(rule):
            raise SardonyxError(f"{where} gives {rule!r}, which is not a pass: {problem}", hint=_FORM)
    return passes


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module


def _problem(candidate: Any) -> str:
    """Return why an object cannot run as a pass, or an empty string if it can."""
    if isinstance(candidate, type):
        return "it is a class; give an instance"
    if not isinstance(candidate, (NodePass, ModelPass)):
        return "it is neither a NodePass nor a ModelPass"
    expected = {"name": str, "accuracy": Accuracy} | ({"roots": tuple} if isinstance(candidate, NodePass) else {})
    for attribute, kind in expected.items():
        if not isinstance(getattr(candidate, attribute, None), kind):
            return f"its {attribute!r} is not of type {kind.__name__}"
    unknown = sorted({*candidate.targets} - {*ALL_TARGETS})
    return f"there is no target {unknown[0]!r}" if unknown else ""
