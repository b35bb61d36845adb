"""What a user writes about inputs (`--input`, `--inputs`, `--dynamic`), read without torch: parsing is instant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sardonyx.errors import UsageError, suggest

if TYPE_CHECKING:
    from sardonyx.runtime import Array

DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool",
)  # fmt: skip
AUTO = "auto"

_INPUT = re.compile(r"(?P<name>[^\s=\[\]]+)=(?P<dtype>\w+)\[(?P<dims>[^\[\]]*)\]")
_DYNAMIC = re.compile(r"(?P<name>[^\s=:]+):(?P<axis>-?\d+)=(?P<dim>\w+)")
_INPUT_HINT = "write NAME=DTYPE[dims], for example --input input_ids=int64[2,16]"
_DYNAMIC_HINT = "write NAME:axis=dim or auto, for example --dynamic input_ids:0=batch"


@dataclass(frozen=True, slots=True)
class Spec:
    """One input's element type and sizes."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """As it is written on the command line."""
        return f"{self.name}={self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class DynamicRequest:
    """The dims a user wants left open: found by trying, named one by one, or both (what is named wins)."""

    auto: bool
    axes: Mapping[str, Mapping[int, str]]


def parse_input(text: str) -> Spec:
    """`x=float32[2,3]` as a Spec; `x=float32[]` is a scalar."""
    found = _INPUT.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"'{text}' is not an input specification", hint=_INPUT_HINT)
    name, dtype = found["name"], found["dtype"]
    if dtype not in DTYPES:
        raise UsageError(f"'{text}': there is no element type '{dtype}'", hint=suggest(dtype, DTYPES))
    return Spec(name, dtype, _sizes(text, found["dims"]))


def parse_inputs(texts: Iterable[str]) -> dict[str, Spec]:
    """All `--input` options by name."""
    specs: dict[str, Spec] = {}
    for text in texts:
        spec = parse_input(text)
        if spec.name in specs:
            raise UsageError(f"input '{spec.name}' is specified twice", hint="give each --input once")
        specs[spec.name] = spec
    return specs


def parse_dynamic(texts: Sequence[str]) -> DynamicRequest:
    """All `--dynamic` options."""
    axes: dict[str, dict[int, str]] = {}
    for text in texts:
        if text.strip() == AUTO:
            continue
        found = _DYNAMIC.fullmatch(text.strip())
        if found is None or not found["dim"].isidentifier():
            raise UsageError(f"'{text}' is not a dynamic dim", hint=_DYNAMIC_HINT)
        named, axis = axes.setdefault(found["name"], {}), int(found["axis"])
        if axis in named:
            raise UsageError(f"axis {axis} of '{found['name']}' is named twice", hint="give each axis one name")
        named[axis] = found["dim"]
    return DynamicRequest(any(text.strip() == AUTO for text in texts), axes)


def resolve_axes(request: DynamicRequest, shapes: Mapping[str, Sequence[int]]) -> dict[str, dict[int, str]]:
    """The named axes counted from the front, each checked to exist in inputs of these shapes."""
    check_names(request.axes, shapes)
    resolved: dict[str, dict[int, str]] = {}
    for name, axes in request.axes.items():
        rank = len(shapes[name])
        for axis, dim in axes.items():
            if not -rank <= axis < rank:
                raise UsageError(
                    f"input '{name}' has no axis {axis}",
                    hint=f"its sizes are {list(shapes[name])}: the axes are 0 to {rank - 1}"
                    if rank
                    else "it is a scalar",
                )
            place = axis % rank
            if place in resolved.setdefault(name, {}):
                raise UsageError(f"axis {place} of '{name}' is named twice", hint="give each axis one name")
            resolved[name][place] = dim
    return resolved


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first given name that is not the name of an input."""
    names = set(known)
    for name in given:
        if name not in names:
            raise UsageError(f"the model has no input '{name}'", hint=suggest(name, names))


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"cannot read inputs from {path}: {error}", hint="write them with numpy.savez") from error


def _sizes(text: str, dims: str) -> tuple[int, ...]:
    if not dims.strip():
        return ()
    sizes: list[int] = []
    for dim in dims.split(","):
        if not dim.strip().isdecimal() or int(dim) < 1:
            raise UsageError(f"'{text}': size '{dim.strip()}' is not a positive integer", hint=_INPUT_HINT)
        sizes.append(int(dim))
    return tuple(sizes)
