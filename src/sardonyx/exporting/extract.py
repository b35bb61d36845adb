"""`sardonyx.extract`: one module of a model as a model of its own, proven before it is written."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from sardonyx.analysis.inspector import inspect
from sardonyx.errors import UsageError, VerificationFailed
from sardonyx.ir import io, origins
from sardonyx.ir import module_extraction as cutting
from sardonyx.ir.module_patterns import find_module
from sardonyx.ir.result import HasModel
from sardonyx.ir.scopes import is_sorted, scopes
from sardonyx.ir.tagged_model import Source, Tagged, tagged
from sardonyx.optimizer import run_tables
from sardonyx.provenance import merge, module_of
from sardonyx.records.environment import environment
from sardonyx.records.extraction import BoundaryValue, Extraction
from sardonyx.records.inspection import Port
from sardonyx.records.run import Verdict

if TYPE_CHECKING:
    from torch import nn

    from sardonyx.frontend.inputs.example_resolution import Inputs
    from sardonyx.frontend.tracing.capture import Captured
    from sardonyx.verification.module_check import LiveProof, ModuleProof

Progress = Callable[[str, float | None], None]
_DRAWN_BESIDE_LIVE = 2  # trials on drawn inputs where the example is there as well: two sizes of every dynamic dim


class Extracted(Extraction, HasModel, frozen=True):
    """An Extraction together with the model it made."""

    model: ir.Model | None = None


@dataclass(frozen=True, slots=True)
class _Proven:
    """What the proofs said."""

    verdict: Verdict | None = None
    live: LiveProof | None = None
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
    verify: bool = True,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Extracted:
    """Cut a module out of a model and prove that it computes what it computed there.

    Args:
        source: a path, a ModelProto or an onnx-ir Model; never changed.
        module: its tag, its instance path, or a glob that names one.
        output: where to write the result; nothing is written where None.
        live: the module that the file was exported from, to compare with what its part really computes.
        inputs: example inputs of the live module: a tensor, positional ones, or a mapping by name.
        kwargs: keyword inputs beside positional ones.
        call: which call of the module, where it is called more than once.
        exact: refuse where fused nodes would make the cut wider than what was asked for.
        force: overwrite an existing output.
        verify: prove the result before it is written.
        seed: of the drawn inputs.
        threads: of the runtime.
        progress: told the phase, and how far it is where that is known.

    Returns:
        The record of the cut, with the model as `.model`.

    Raises:
        VerificationFailed: where the result does not compute what it should; nothing is written then.
    """
    began = time.perf_counter()
    tell: Progress = progress or (lambda _phase, _fraction: None)
    if output is not None:
        io.check_free(os.fspath(output), force=force)
    whole = tagged(source)
    for scope in scopes(whole.model):
        if not is_sorted(scope.graph) and scope.holder is None:
            scope.graph.sort()
    tell("cutting", None)
    cut = cutting.extract(whole.model, whole.hierarchy, _path(whole, module), call=call, exact=exact)
    cut_seconds = time.perf_counter() - began
    proven = _Proven()
    if verify:
        args, named = _arguments(live, inputs, kwargs)
        with _prepared(live, args, named) as plain:
            _insist_on_types(whole, plain)
            proof = _proof(whole, cut, plain, args, named, seed=seed, threads=threads, tell=tell)
            proven = _judged(proof, whole, cut, plain, args, named)
        _learn_ranks(cut.model, proof)
    if output is not None:
        tell("writing", None)
        io.save(cut.model, output, force=force)
    total = time.perf_counter() - began
    return _record(whole, cut, proven, output, call, {"cut": cut_seconds, "total": total})


def path_of(source: Source, module: str) -> str:
    """The instance path of the one module that a tag, a path or a glob names."""
    return _path(tagged(source), module)


def _path(whole: Tagged, wanted: str) -> str:
    """A module that runs is meant first; one that never does is found too, to say so."""
    running = sorted(merge(origins.origins(node) for scope in scopes(whole.model) for node in scope.graph))
    try:
        return find_module(whole.hierarchy, running, wanted)
    except UsageError:
        return find_module(whole.hierarchy, (*running, *whole.hierarchy.classes), wanted)


def _arguments(
    live: nn.Module | None, inputs: Inputs, kwargs: Mapping[str, Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if live is None:
        return (), {}
    from sardonyx.frontend.inputs.example_resolution import call_arguments

    return call_arguments(inputs, kwargs)


@contextlib.contextmanager
def _prepared(live: nn.Module | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Generator[nn.Module | None]:
    """The live module as an exporter sees it: hooks can be put on it where it was scripted or compiled."""
    if live is None:
        yield None
        return
    from sardonyx.frontend.running import initialize
    from sardonyx.frontend.tracing.prepare import prepared

    with prepared(live) as plain:
        initialize(plain, args, kwargs)
        yield plain


def _proof(
    whole: Tagged,
    cut: cutting.Extract,
    live: nn.Module | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    seed: int,
    threads: int | None,
    tell: Progress,
) -> ModuleProof:
    from sardonyx.verification import seeds_from
    from sardonyx.verification.module_check import ModuleProof

    feeds = None
    if live is not None:
        from sardonyx.frontend.tracing.capture import example_feeds

        graph = whole.model.graph
        names = [value.name or "" for value in graph.inputs if not value.is_initializer()]
        feeds = example_feeds(live, args, kwargs, names)
    return ModuleProof(
        whole.model,
        cut,
        inputs=feeds,
        seeds=seeds_from(seed),
        trials=None if live is None else _DRAWN_BESIDE_LIVE,
        threads=threads,
        progress=lambda text: tell(text, None),
    )


def _judged(
    proof: ModuleProof,
    whole: Tagged,
    cut: cutting.Extract,
    live: nn.Module | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> _Proven:
    """Both proofs, as far as there is something to compare with.

    Raises:
        VerificationFailed: where one of them fails.
    """
    verdict = proof.against_model()
    _insist(verdict, f"{cut.path or 'the model'} does not compute on its own what it computes in the whole model")
    if live is None:
        return _Proven(verdict)
    from sardonyx.frontend.tracing.capture import capture
    from sardonyx.frontend.tracing.hidden_rows import UnattendedRows

    name = module_of(cut.path)
    calls = capture(live, args, kwargs, name)
    if not calls:
        note = f"{name} is never called itself on plain tensors: it was compared with the whole model only"
        return _Proven(verdict, notes=(note,))
    inputs, outputs = _one_of(calls, cut)
    with UnattendedRows() as rows:
        _, disturbed = _one_of(capture(live, args, kwargs, name), cut)
    against = proof.against_live(name, inputs, outputs, disturbed, rows.lengths)
    if not against.verdict.passed:
        _insist_on_weights(whole, live)
    _insist(against.verdict, f"the cut does not compute what the live module {name} computes")
    return _Proven(verdict, against)


def _insist_on_types(whole: Tagged, live: nn.Module | None) -> None:
    """Refuse a live model in another floating-point type than the file: its inputs and values would differ as well.

    Raises:
        UsageError: with the type that the file has.
    """
    from sardonyx.frontend.models.weights import named_state

    for name, tensor in () if live is None else named_state(live):
        value = whole.model.graph.initializers.get(name)
        kind = None if value is None else value.dtype
        if kind is None or not kind.is_floating_point() or not tensor.is_floating_point():
            continue
        own, other = kind.numpy().name, str(tensor.dtype).removeprefix("torch.")
        if own != other:
            raise UsageError(
                f"the live model is {other} and the file {own}: '{name}'",
                hint=f'`dtype="{own}"`, or convert the live model; nothing was written',
            )


def _insist_on_weights(whole: Tagged, live: nn.Module) -> None:
    """Say so where the live model has other weights than the file: then nothing else can be compared.

    Raises:
        VerificationFailed: the weights differ.
    """
    from sardonyx.frontend.models.weights import named_state
    from sardonyx.frontend.tracing.engine import to_array
    from sardonyx.verification.module_check import other_weights

    other = other_weights(whole.model, ((name, to_array(tensor)) for name, tensor in named_state(live)))
    if other:
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        raise VerificationFailed(
            f"the live model has other weights than the file: '{other[0]}'{more} differ{'' if more else 's'}",
            hint="give the checkpoint, or the `seed`, that the file was exported from; nothing was written",
        )


def _insist(verdict: Verdict, message: str) -> None:
    if not verdict.passed:
        raise VerificationFailed(
            f"{message}: {verdict.failures[0]}", hint="nothing was written; `verify=False` writes it"
        )


def _one_of(calls: Sequence[Captured], cut: cutting.Extract) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of the call that was cut out; those of all calls where the file does not tell them apart."""
    if len(calls) == cut.calls:
        return dict(calls[cut.call].inputs), dict(calls[cut.call].outputs)
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for number, call in enumerate(calls):
        mark = f"@{number}" if number else ""
        inputs |= {name + mark: tensor for name, tensor in call.inputs.items()}
        outputs |= {name + mark: tensor for name, tensor in call.outputs.items()}
    return inputs, outputs


def _learn_ranks(model: ir.Model, proof: ModuleProof) -> None:
    """Where inference knows no shape, a file still needs a rank, and the whole model was seen running."""
    seen = proof.values()
    for value in (*model.graph.inputs, *model.graph.outputs):
        array = seen.get(value.name or "")
        if value.shape is None and isinstance(array, np.ndarray):
            value.shape = ir.Shape([None] * array.ndim)


def _record(
    whole: Tagged,
    cut: cutting.Extract,
    proven: _Proven,
    output: str | os.PathLike[str] | None,
    call: int,
    seconds: dict[str, float],
) -> Extracted:
    makers = {value.name: origins.owner(node) for node in whole.model.graph for value in node.outputs}
    found = inspect(cut.model)
    live = proven.live
    arguments: Mapping[str, str] = live.arguments if live is not None else {}
    results: Mapping[str, str] = live.results if live is not None else {}
    proofs = {"proof": seconds["total"] - seconds["cut"]} if proven.verdict is not None else {}
    return Extracted(
        status="done",
        environment=environment(),
        source=run_tables.artifact(whole.model, whole.path),
        result=run_tables.artifact(cut.model, output),
        asked=cut.asked,
        path=cut.path,
        tag=whole.hierarchy.tag(cut.path),
        call=call,
        calls=cut.calls,
        counts=found.counts,
        inputs=tuple(_value(each, makers, arguments) for each in found.inputs),
        outputs=tuple(_value(each, makers, results) for each in found.outputs),
        straddling=cut.straddling,
        dropped=live.dropped if live is not None else (),
        verdict=proven.verdict,
        live=live.verdict if live is not None else None,
        seconds={**seconds, **proofs},
        notes=(*cut.notes, *proven.notes),
        model=cut.model,
    )


def _value(port: Port, makers: Mapping[str | None, str], live: Mapping[str, str]) -> BoundaryValue:
    return BoundaryValue(port.name, port.type, port.shape, makers.get(port.name), live.get(port.name))
