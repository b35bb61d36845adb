"""The sizes of dynamic dimensions that an exported graph is for, declared in its metadata.

A runtime does not know them: beyond a limit a file may answer what its module would not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec
import onnx_ir as ir
from msgspec import Struct

KEY = "sardonyx.sizes"  # a JSON object: the limits of each dimension or sum of dimensions, and further conditions
CONDITION = "exported for sizes with "
_LIMIT = re.compile(r"(?P<dim>.+) at (?P<side>most|least) (?P<size>\d+)\b")


class _Limit(Struct, frozen=True, omit_defaults=True):
    min: int | None = None
    max: int | None = None


class _Sizes(Struct, frozen=True, omit_defaults=True):
    limits: dict[str, _Limit] = msgspec.field(default_factory=dict[str, _Limit])
    conditions: tuple[str, ...] = ()


def write(model: ir.Model, notes: Iterable[str]) -> None:
    """Declare the limits that notes of an export name ("batch at most 4"), if there are any."""
    limits: dict[str, _Limit] = {}
    conditions: list[str] = []
    for note in notes:
        if limit := _LIMIT.match(note):
            side = {"max" if limit["side"] == "most" else "min": int(limit["size"])}
            limits[limit["dim"]] = msgspec.structs.replace(limits.get(limit["dim"], _Limit()), **side)
        elif note.startswith(CONDITION):
            conditions.append(note.removeprefix(CONDITION))
    if limits or conditions:
        model.metadata_props[KEY] = msgspec.json.encode(_Sizes(limits, tuple(conditions))).decode()


def outside(model: ir.Model, sizes: Mapping[str, int]) -> str | None:
    """Return the first limit of the model that these sizes do not keep, or None."""
    try:
        declared = msgspec.json.decode(model.metadata_props.get(KEY, "{}"), type=_Sizes)
    except (msgspec.DecodeError, RecursionError):  # another program wrote something else there
        return None
    for dim, limit in declared.limits.items():
        terms = dim.split(" + ")
        if not sizes.keys() >= set(terms):
            continue
        size = sum(sizes[term] for term in terms)
        if limit.max is not None and size > limit.max:
            return f"{dim} is {size}, at most {limit.max}"
        if limit.min is not None and size < limit.min:
            return f"{dim} is {size}, at least {limit.min}"
    return None
