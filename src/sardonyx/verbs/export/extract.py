"""`sardonyx.extract`: write one module of a model as a model of its own, verified first."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct, structs

from sardonyx.common.atomic_write import check_free
from sardonyx.errors import UsageError, VerificationFailed, check_choice
from sardonyx.ir import io, origins
from sardonyx.ir import module_region as cutting
from sardonyx.ir.module_borders import find_module
from sardonyx.ir.origins import HasModel, Source, Tagged, tagged
from sardonyx.ir.scopes import scopes
from sardonyx.records.environment import environment
from sardonyx.records.export import BoundaryValue, Extraction
from sardonyx.records.inspection import Port
from sardonyx.records.progress import Progress
from sardonyx.records.provenance import merge, module_of
from sardonyx.records.run import Artifact, Verdict
from sardonyx.verbs.analyze.inspector import inspect
from sardonyx.verbs.optimize import run_tables

if TYPE_CHECKING:
    from torch import nn

    from sardonyx.frontend.inputs.examples import Inputs
    from sardonyx.frontend.tracing.engine import Captured
    from sardonyx.verification.module_check import LiveModuleCheck, ModuleCheck

_RANDOM_TRIALS_WITH_LIVE = 2  # in addition to the example: two sizes of every dynamic dimension


class Extracted(Extraction, HasModel, frozen=True):
    """An Extraction record together with the model."""

    model: ir.Model | None = None


class _Verified(Struct, frozen=True):
    verdict: Verdict | None = None
    live: LiveModuleCheck | None = None
    notes: tuple[str, ...] = ()


def extract(
    source: Source,
    module: str,
    output: str | os.PathLike[str] | None = None,
    *,
    live: nn.Module | None = None,
    inputs: Inputs = None,
    kwargs: Mapping[str, Any] | None = None,
    call: int = 0,
    exact: bool = False,
    force: bool = False,
    verify: Literal["end", "off"] = "end",
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Extracted:
    """Extract a module from a model and verify that it computes what it computes there.

    Args:
        source: A path, a ModelProto or an onnx-ir Model. It is not changed.
        module: The module's tag, its instance path, or a glob that matches one module.
        output: Where to write the result. If None, nothing is written.
        live: The PyTorch model that the file was exported from, to compare the extracted module with it.
        inputs: Example inputs of the live model: a tensor, a sequence of positional inputs, or a mapping by name.
        kwargs: Keyword inputs in addition to positional ones.
        call: Which call of the module to extract, if it is called more than once.
        exact: Refuse if fused nodes would make the extracted part larger than the module.
        force: Overwrite an existing output.
        verify: Verify the result before it is written, or not at all.
        seed: Seed of the random inputs.
        threads: Threads of the runtime.
        progress: Called with the current phase, and the completed fraction if known.

    Returns:
        The record of the extraction, with the model as `.model`.

    Raises:
        VerificationFailed: If the result does not compute what the module computes. Nothing is written then.
    """
    check_choice("verify", verify, ("end", "off"))
    began = time.perf_counter()
    report: Progress = progress or (lambda _phase, _fraction: None)
    if output is not None:
        check_free(os.fspath(output), force=force)
    whole = tagged(source)
    report("cutting", None)
    cut = cutting.extract(whole.model, whole.hierarchy, _path(whole, module), call=call, exact=exact)
    cut_seconds = time.perf_counter() - began
    verified = _Verified()
    if verify != "off":
        from sardonyx.verification import seeds_from
        from sardonyx.verification.module_check import ModuleCheck

        with contextlib.ExitStack() as stack:
            example = feeds = None
            if live is not None:
                example = stack.enter_context(_prepared(live, inputs, kwargs))
                _check_types(whole, example[0])
                from sardonyx.frontend.tracing.engine import example_feeds

                names = [value.name or "" for value in whole.model.graph.inputs if not value.is_initializer()]
                feeds = example_feeds(*example, names)
            check = ModuleCheck(
                whole.model,
                cut,
                inputs=feeds,
                seeds=seeds_from(seed),
                trials=None if live is None else _RANDOM_TRIALS_WITH_LIVE,
                threads=threads,
                progress=lambda text: report(text, None),
            )
            verified = _verified(check, whole, cut, example)
        arrays = check.values()
        for value in (*cut.model.graph.inputs, *cut.model.graph.outputs):
            array = arrays.get(value.name or "")  # as the whole model ran: a file needs a rank
            if value.shape is None and isinstance(array, np.ndarray):
                value.shape = ir.Shape([None] * array.ndim)
    saved = io.Saved(None)
    if output is not None:
        report("writing", None)
        saved = io.save(cut.model, output, force=force, hashed=True)
    result = run_tables.artifact(cut.model, output, saved.digest)
    total = time.perf_counter() - began
    verified = structs.replace(verified, notes=(*verified.notes, *saved.notes))
    return _record(whole, cut, verified, result, call, {"cut": cut_seconds, "total": total})


def path_of(source: Source, wanted: str) -> str:
    """Return the instance path of the module that a tag, a path or a glob names."""
    return _path(tagged(source), wanted)


def _path(whole: Tagged, wanted: str) -> str:
    """Look among the modules that have nodes first, then among all, so that the error can name one without nodes."""
    running = sorted(merge(origins.origins(node) for scope in scopes(whole.model) for node in scope.graph))
    try:
        return find_module(whole.hierarchy, running, wanted)
    except UsageError:
        return find_module(whole.hierarchy, (*running, *whole.hierarchy.classes), wanted)


_LiveExample: TypeAlias = "tuple[nn.Module, tuple[Any, ...], dict[str, Any]]"  # with its arguments


@contextlib.contextmanager
def _prepared(live: nn.Module, inputs: Inputs, kwargs: Mapping[str, Any] | None) -> Generator[_LiveExample]:
    """Yield the live model in the form that is exported: hooks work on it even if it was scripted or compiled."""
    from sardonyx.frontend.inputs.examples import call_arguments
    from sardonyx.frontend.running import initialize
    from sardonyx.frontend.tracing.prepare import prepared

    args, keywords = call_arguments(inputs, kwargs)
    with prepared(live) as plain:
        initialize(plain, args, keywords)
        yield plain, args, keywords


def _verified(check: ModuleCheck, whole: Tagged, cut: cutting.Extract, example: _LiveExample | None) -> _Verified:
    """Compare with the whole model, and with the live model if there is one.

    Raises:
        VerificationFailed: If either comparison fails.
    """
    verdict = check.against_model()
    _require_passed(
        verdict, f"{cut.path or 'the model'} does not compute on its own what it computes in the whole model"
    )
    if example is None:
        return _Verified(verdict)
    from sardonyx.frontend.tracing.engine import UnattendedRows, capture

    name = module_of(cut.path)
    calls = capture(*example, name)
    if not calls:
        note = f"{name} is never called with plain tensors: it was compared with the whole model only"
        return _Verified(verdict, notes=(note,))
    inputs, outputs = _tensors_of_call(calls, cut)
    with UnattendedRows() as rows:
        _, disturbed = _tensors_of_call(capture(*example, name), cut)
    against = check.against_live(name, inputs, outputs, disturbed, rows.lengths)
    if not against.verdict.passed:
        _check_weights(whole, example[0])
    _require_passed(against.verdict, f"the extracted model does not compute what the live module {name} computes")
    return _Verified(verdict, against)


def _check_types(whole: Tagged, live: nn.Module) -> None:
    """Refuse a live model in another floating-point type than the file's: its values could not be compared.

    Raises:
        UsageError: If the types differ.
    """
    from sardonyx.frontend.models import named_state

    for name, tensor in named_state(live):
        value = whole.model.graph.initializers.get(name)
        kind = None if value is None else value.dtype
        if kind is None or not kind.is_floating_point() or not tensor.is_floating_point():
            continue
        file_type, live_type = kind.numpy().name, str(tensor.dtype).removeprefix("torch.")
        if file_type != live_type:
            raise UsageError(
                f"the live model is {live_type} and the file is {file_type}: '{name}'",
                hint=f'give `dtype="{file_type}"`, or convert the live model; nothing was written',
            )


def _check_weights(whole: Tagged, live: nn.Module) -> None:
    """Refuse a live model whose weights differ from the file's: that explains any other difference.

    Raises:
        VerificationFailed: If the weights differ.
    """
    from sardonyx.frontend.models import named_state
    from sardonyx.frontend.tracing.engine import to_array
    from sardonyx.verification.module_check import other_weights

    differing = other_weights(whole.model, ((name, to_array(tensor)) for name, tensor in named_state(live)))
    if differing:
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise VerificationFailed(
            f"the live model has other weights than the file: '{differing[0]}'{more} differ{'' if more else 's'}",
            hint="give the checkpoint, or the `seed`, that the file was exported from; nothing was written",
        )


def _require_passed(verdict: Verdict, message: str) -> None:
    if not verdict.passed:
        raise VerificationFailed(
            f"{message}: {verdict.failures[0]}", hint='nothing was written; `verify="off"` writes it'
        )


def _tensors_of_call(calls: Sequence[Captured], cut: cutting.Extract) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of the extracted call; those of all calls if the file does not distinguish them."""
    if len(calls) == cut.calls:
        return dict(calls[cut.call].inputs), dict(calls[cut.call].outputs)
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for number, call in enumerate(calls):
        suffix = f"@{number}" if number else ""
        inputs |= {name + suffix: tensor for name, tensor in call.inputs.items()}
        outputs |= {name + suffix: tensor for name, tensor in call.outputs.items()}
    return inputs, outputs


def _record(
    whole: Tagged, cut: cutting.Extract, verified: _Verified, result: Artifact, call: int, seconds: dict[str, float]
) -> Extracted:
    producers = {value.name: origins.owner(node) for node in whole.model.graph for value in node.outputs}
    inspection = inspect(cut.model)
    live = verified.live
    arguments: Mapping[str, str] = live.arguments if live is not None else {}
    results: Mapping[str, str] = live.results if live is not None else {}
    check_seconds = {"verification": seconds["total"] - seconds["cut"]} if verified.verdict is not None else {}
    return Extracted(
        status="done",
        environment=environment(),
        source=run_tables.artifact(whole.model, whole.path, None if whole.path is None else io.sha256_of(whole.path)),
        result=result,
        asked=cut.asked,
        path=cut.path,
        tag=whole.hierarchy.tag(cut.path),
        call=call,
        calls=cut.calls,
        counts=inspection.counts,
        inputs=tuple(_value(port, producers, arguments) for port in inspection.inputs),
        outputs=tuple(_value(port, producers, results) for port in inspection.outputs),
        straddling=cut.straddling,
        dropped=live.dropped if live is not None else (),
        verdict=verified.verdict,
        live=live.verdict if live is not None else None,
        seconds={**seconds, **check_seconds},
        notes=(*cut.notes, *verified.notes),
        model=cut.model,
    )


def _value(port: Port, producers: Mapping[str | None, str], live: Mapping[str, str]) -> BoundaryValue:
    return BoundaryValue(port.name, port.type, port.shape, producers.get(port.name), live.get(port.name))
