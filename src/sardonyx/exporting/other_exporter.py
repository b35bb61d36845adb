"""The hint on torch's other exporter, for a model that one of them cannot export: only if its graph was verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from sardonyx.errors import SardonyxError
from sardonyx.frontend.tracing.traced import OTHER, Exporter, NotExportable


class Attempt(Struct, frozen=True):
    """A verified export with the other exporter."""

    trials: int
    is_complete: bool  # inputs on both sides of every branch were compared
    notes: Sequence[str]  # limits of the graph


def with_hint(error: SardonyxError, exporter: Exporter, attempt: Callable[[Exporter], Attempt]) -> SardonyxError:
    """Return the error with a hint on the other exporter if that succeeds, or with its reason if it fails as well."""
    other = OTHER[exporter]
    try:
        made = attempt(other)
    except NotExportable as second:
        if not isinstance(error, NotExportable):
            return error
        both = f"torch cannot export the model: {exporter}: {error.why}; {other}: {second.why}"
        return NotExportable(both, hint=error.hint or "", why=error.why)
    except SardonyxError:
        return error
    if made.is_complete:
        limits = f" ({'; '.join(made.notes)})" if made.notes else ""
        advice = f'use `exporter="{other}"`, which matches PyTorch on {made.trials} trials{limits}'
        error.hint = advice if error.hint is None else f"{advice}; or {error.hint}"
    return error
