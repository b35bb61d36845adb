"""Options of `optimize` that are rarely needed, as frozen objects shared by Python and the command line."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class OptimizeOptions(Struct, frozen=True, kw_only=True):
    """Options of `optimize` beside its parameters.

    Attributes:
        fewest_nodes: Also run passes that make a graph smaller but measured slower.
        max_opset: The highest opset that a fusion may raise the model to; None sets no limit.
        keep_opset: Never raise the opset.
        allow_growth: Allow a result that is more than 1 % and 64 kB larger than the source.
        freeze_inputs: Make initializers that are also inputs constants, and drop these inputs from the result.
            Otherwise callers may pass other values for them, so that nothing that reads one is folded.
        keep_modules: Modules that no rewrite may merge with their surroundings, so that `extract` can cut each of them
            out of the result: instance paths, tags, globs or class names.
        verify_seconds: About how long verification may run each model, counted in operations; two trials always run.
        runtimes: Runtimes to verify in: "ort", "reference" or "openvino". A rewrite that changes the result in one of
            them is rolled back.
        external: Write weights to a separate file, or into the model file; None keeps what the source does.
        reproducer: Folder for rewrites that are found to be wrong: each is written as two small models, the nodes
            before and after it, with inputs on which they differ. Nothing is written if none is wrong.
        hashes: Put SHA-256 sums of both files into the record; None does so if the result is verified.
    """

    fewest_nodes: bool = False
    max_opset: int | None = None
    keep_opset: bool = False
    allow_growth: bool = False
    freeze_inputs: bool = False
    keep_modules: tuple[str, ...] = ()
    verify_seconds: float = 20.0
    runtimes: tuple[str, ...] = ("ort",)
    external: bool | None = None
    reproducer: str | None = None
    hashes: bool | None = None


class TuneOptions(Struct, frozen=True, kw_only=True):
    """How `optimize(tune=…)` measures.

    Attributes:
        seconds: How long measuring may take.
        sizes: Sizes of dynamic dimensions, by name, to measure at.
    """

    seconds: float = 120.0
    sizes: Mapping[str, int] | None = None
