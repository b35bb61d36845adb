"""What `optimize` is rarely told: one frozen object for Python and for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeOptions:
    """Options of `optimize` beside its parameters.

    Attributes:
        fewest_nodes: also run passes that make a graph smaller but measured slower.
        max_opset: how far the opset may be raised where a fusion needs it; as far as any does if None.
        keep_opset: never raise the opset.
        allow_growth: let the result be more than 1 % and 64 kB larger than the source.
        keep_modules: modules that no rewrite may merge with what is around them, so that `extract` can cut each of
            them out of the result: instance paths, tags, globs or class names.
        verify_seconds: about how long verification may run models, ten runs in any case.
        runtimes: "ort", "reference" or "openvino", to verify on; a rewrite under which one of them differs is undone.
        external: weights in a file of their own or inside; as in the source if None.
        hashes: put SHA-256 sums of both files into the record; if None, where the result is verified.
    """

    fewest_nodes: bool = False
    max_opset: int | None = None
    keep_opset: bool = False
    allow_growth: bool = False
    keep_modules: tuple[str, ...] = ()
    verify_seconds: float = 20.0
    runtimes: tuple[str, ...] = ("ort",)
    external: bool | None = None
    hashes: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """How `optimize(tune=…)` measures.

    Attributes:
        seconds: how long the measuring may take.
        sizes: sizes of dynamic dimensions, by name, to measure on.
    """

    seconds: float = 120.0
    sizes: Mapping[str, int] | None = None
