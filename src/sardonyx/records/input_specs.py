"""Parse texts that specify inputs and dynamic dimensions, and read arrays, without importing torch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sardonyx.errors import UsageError, suggest

if TYPE_CHECKING:
    from sardonyx.runtime import Array

DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool",
)  # fmt: skip
AUTO = "auto"

_INPUT = re.compile(r"(?P<name>[^\s=\[\]]+)=(?P<dtype>\w+)\[(?P<dims>[^\[\]]*)\]")
_DYNAMIC = re.compile(r"(?P<name>[^\s=:]+):(?P<axis>-?\d+)=(?P<dim>\w+)")
_INPUT_HINT = "write NAME=DTYPE[dims], for example `inputs={'input_ids': int64[2,16]}`"
_NAMED_VALUE = re.compile(r"(?P<name>[^\s=\[\]]+)=(?P<value>[^\[\]]*)")
_WORDS = {"true": True, "false": False, "none": None}
_DYNAMIC_HINT = "write NAME:axis=dim or auto, for example `dynamic={'input_ids': {0: 'batch'}}`"


class Spec(Struct, frozen=True):
    """The element type and shape of one input."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """Return the specification as it is written on the command line."""
        return f"{self.name}={self.dtype}[{','.join(map(str, self.shape))}]"


class Constant(Struct, frozen=True):
    """A number, a string, True, False or None for an argument that is not a tensor."""

    value: int | float | bool | str | None


class StateTensor(Struct, frozen=True):
    """An input that is an output of the run before, and its value in the first run."""

    name: str
    output: str
    dtype: str
    shape: tuple[int, ...]  # in the first run
    initial: Any  # one number if all elements are equal, otherwise nested lists; None: too many


class DynamicRequest(Struct, frozen=True):
    """The requested dynamic dimensions: detected, named, or both (names take precedence)."""

    auto: bool
    axes: Mapping[str, Mapping[int, str]]


def parse_input(text: str) -> Spec:
    """Parse `x=float32[2,3]`; `x=float32[]` is a scalar."""
    match = _INPUT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is not an input specification", hint=_INPUT_HINT)
    name, dtype = match["name"], match["dtype"]
    if dtype not in DTYPES:
        raise UsageError(f"'{text}': there is no element type '{dtype}'", hint=suggest(dtype, DTYPES))
    return Spec(name, dtype, _sizes(text, match["dims"]))


def parse_inputs(texts: Iterable[str]) -> dict[str, Spec | Constant]:
    """Parse specifications such as `x=float32[2,3]` and values such as `scale=0.5`, and return them by name."""
    specs: dict[str, Spec | Constant] = {}
    for text in texts:
        match = _NAMED_VALUE.fullmatch(text.strip())
        if match is not None and match["value"] not in ("", *DTYPES):
            name, spec = match["name"], Constant(_constant(match["value"]))
        else:
            spec = parse_input(text)
            name = spec.name
        if name in specs:
            raise UsageError(f"input '{name}' is specified twice", hint="give each input once")
        specs[name] = spec
    return specs


def _constant(text: str) -> int | float | bool | str | None:
    """Return a number, True, False or None if the text is one, otherwise the text without quotes around it."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text[1:-1] if text[0] == text[-1] and text[0] in "\"'" else text


def parse_dynamic(texts: Sequence[str]) -> DynamicRequest:
    """Parse dynamic dimensions such as `x:0=batch`; `auto` asks to detect them."""
    axes: dict[str, dict[int, str]] = {}
    for text in texts:
        if text.strip() == AUTO:
            continue
        match = _DYNAMIC.fullmatch(text.strip())
        if match is None or not match["dim"].isidentifier():
            raise UsageError(f"'{text}' is not a dynamic dimension", hint=_DYNAMIC_HINT)
        name, axis = match["name"], int(match["axis"])
        if axis in axes.setdefault(name, {}):
            raise UsageError(f"axis {axis} of '{name}' is named twice", hint="give each axis one name")
        axes[name][axis] = match["dim"]
    return DynamicRequest(any(text.strip() == AUTO for text in texts), axes)


def resolve_axes(request: DynamicRequest, shapes: Mapping[str, Sequence[int]]) -> dict[str, dict[int, str]]:
    """Return the named axes with nonnegative indices; each must exist in inputs of these shapes."""
    check_names(request.axes, shapes)
    resolved: dict[str, dict[int, str]] = {}
    for name, axes in request.axes.items():
        rank = len(shapes[name])
        for axis, dim in axes.items():
            if not -rank <= axis < rank:
                axes_hint = f"its shape is {list(shapes[name])}: the axes are 0 to {rank - 1}"
                raise UsageError(f"input '{name}' has no axis {axis}", hint=axes_hint if rank else "it is a scalar")
            index = axis % rank
            if index in resolved.setdefault(name, {}):
                raise UsageError(f"axis {index} of '{name}' is named twice", hint="give each axis one name")
            resolved[name][index] = dim
    return resolved


def check_names(names: Iterable[str], inputs: Iterable[str]) -> None:
    """Raise a UsageError for the first name that is not the name of an input."""
    known = set(inputs)
    for name in names:
        if name not in known:
            raise UsageError(f"the model has no input '{name}'", hint=suggest(name, known))


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of an .npz file, by name."""
    import numpy as np

    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array, without the name of an input")
        with archive:
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
