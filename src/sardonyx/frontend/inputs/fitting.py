"""Example inputs for a live module that also fit a file exported from it: its fixed sizes hold, the others are free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from sardonyx.errors import UsageError
from sardonyx.frontend.inputs.examples import Example, derive
from sardonyx.frontend.tracing.structure import Flat, named_arguments
from sardonyx.records.input_specs import Spec

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class FileInput:
    """An input of the file: its element type, and the dims it was exported with."""

    dtype: str
    shape: Dims


def fitting_example(module: nn.Module, wanted: Mapping[str, FileInput], *, seed: int = 0) -> Example:
    """What the module accepts by itself, or where the file is narrower, drawn anew with the file's sizes."""
    try:
        free = derive(module, seed=seed)
    except UsageError:  # a scripted module says little about itself; what the file was exported with fits it too
        specs = {name: Spec(name, port.dtype, _sized(port.shape, None)) for name, port in wanted.items()}
        return derive(module, given=specs, seed=seed)
    sizes = {
        leaf.name: tuple(leaf.tensor.shape) for leaf in Flat(named_arguments(module, free.args, free.kwargs)).leaves
    }
    if all(name in sizes and _fits(port.shape, sizes[name]) for name, port in wanted.items()):
        return free
    specs = {name: Spec(name, port.dtype, _sized(port.shape, sizes.get(name))) for name, port in wanted.items()}
    return derive(module, given=specs, seed=seed)


def _fits(dims: Dims, sizes: tuple[int, ...]) -> bool:
    return len(dims) == len(sizes) and all(
        dim == size for dim, size in zip(dims, sizes, strict=True) if isinstance(dim, int)
    )


def _sized(dims: Dims, known: tuple[int, ...] | None) -> tuple[int, ...]:
    """The file's sizes; where it leaves one open, what the module was found to take."""
    open_sizes = known if known is not None and len(known) == len(dims) else (2,) * len(dims)
    return tuple(dim if isinstance(dim, int) else size for dim, size in zip(dims, open_sizes, strict=True))
