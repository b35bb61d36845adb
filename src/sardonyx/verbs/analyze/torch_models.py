"""Analyze torch models in three forms: as they are, with attention decomposed, and with attention fused.

Each form is run once on fake tensors. If a form cannot be built, the reason is recorded and the others are analyzed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace
from torch import fx, nn

from sardonyx.common.atomic_write import check_free
from sardonyx.errors import ModelError, SardonyxError, reason
from sardonyx.frontend.attention.decompose import check_has_code, decompose
from sardonyx.frontend.attention.decomposed_file import save_decomposed
from sardonyx.frontend.attention.fuse import Fusion, fuse_attention, fusion_of
from sardonyx.frontend.attention.roles import Decomposition, Role, decomposition_of
from sardonyx.frontend.inputs.examples import Dims, Example, Inputs, example_for, resolve_dynamic
from sardonyx.frontend.inputs.past import cache_sizes
from sardonyx.frontend.models import from_module, resolve
from sardonyx.frontend.module_state import unchanged
from sardonyx.frontend.running import initialize, probe
from sardonyx.frontend.sources import Dtype
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.graph_names import Axes
from sardonyx.frontend.tracing.prepare import prepared
from sardonyx.records.analysis import AnalysisSource, AttentionCost, Cache, CachePart, Decomposed, Missing
from sardonyx.records.inspection import Port
from sardonyx.records.progress import Clock, Progress
from sardonyx.records.provenance import is_within
from sardonyx.verbs.analyze.costs.program import OpKind, Program
from sardonyx.verbs.analyze.forms import AnalysisResults, Subject, cache_of, measure, overtaking
from sardonyx.verbs.analyze.recorder import record

_CACHED_TOKENS = "past_sequence + sequence"

STANDARD, DECOMPOSED, FUSED = "standard", "decomposed", "fused"


class RecordingProbe:
    """Tests whether a module accepts inputs by recording it on fake tensors, and keeps the recording for later use.

    Errors that depend on values are not detected, and do not matter for costs. An error counts only if the module
    raises one on real data too.
    """

    def __init__(self) -> None:
        self._accepted: tuple[Any, Any, Program] | None = None

    def __call__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
        """Return the exception that the module raises, otherwise None."""
        try:
            self._accepted = args, kwargs, record(module, args, kwargs)
        except Exception:  # a forward may raise anything, and on fake tensors for other reasons than on data
            return probe(module, args, kwargs)
        return None

    def program(self, example: Example) -> Program | None:
        """Return the recording with exactly these inputs, otherwise None."""
        if self._accepted is None:
            return None
        args, kwargs, program = self._accepted
        return program if args is example.args and kwargs is example.kwargs else None


def analyze_torch(
    source: nn.Module | str,
    clock: Clock,
    inputs: Inputs,
    kwargs: Mapping[str, Any] | None,
    task: str | None,
    dtype: Dtype,
    dynamic: Dims,
    seed: int,
) -> AnalysisResults:
    """Analyze the forms of one model; the options are those of `analyze`."""
    with clock.phase("model"):
        resolved = (
            from_module(source, dtype)
            if isinstance(source, nn.Module)
            else resolve(str(source), task=task, seed=seed, filled=False, dtype=dtype)
        )
    with prepared(resolved.module) as module:
        with clock.phase("inputs"):
            probe = RecordingProbe()
            example = example_for(module, resolved, inputs, kwargs, seed, probe)
            lazy = initialize(module, example.args, example.kwargs)
            call = ModuleCall(module, example.args, example.kwargs)
            dims = resolve_dynamic(call, dynamic)
        cache = cache_of_module(module, example)
        forms = _Forms(module, example, dims.axes, clock, None if dims.axes else probe.program(example))
        subjects, missing = forms.all()
    with clock.phase("costs"):
        sizes = {dim: size for subject in subjects for dim, size in subject.program.symbols.items()}
        measured = [measure(subject, subject.program.symbols) for subject in subjects]
        turns = overtaking(measured, sizes)
    kind = type(resolved.module)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return AnalysisResults(
        sources=(AnalysisSource(resolved.label, "torch", name, _ports(call, dims.axes), cache),),
        sizes=sizes,
        forms=tuple(form.form for form in measured),
        missing=tuple(missing),
        overtaking=turns,
        notes=tuple(dict.fromkeys((*example.notes, *lazy, *dims.notes))),
    )


def _ports(call: ModuleCall, axes: Axes) -> tuple[Port, ...]:
    return tuple(
        Port(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(axes.get(name, {}).get(axis, size) for axis, size in enumerate(tensor.shape)),
        )
        for name, tensor in zip(call.inputs, call.tensors, strict=True)
    )


class _Forms:
    """Builds the forms of a module one after the other."""

    def __init__(self, module: nn.Module, example: Example, axes: Axes, clock: Clock, recorded: Program | None) -> None:
        self._module, self._example, self._axes, self._clock = module, example, axes, clock
        self._recorded = recorded  # the recording of the module itself, if the probe made one
        self._kinds: dict[str, str] = {}
        self._parameters: dict[str, int] = {}  # of each module without its children; shared ones count for the first
        seen: set[int] = set()
        for path, owner in cast("Iterator[tuple[str, nn.Module]]", module.named_modules()):
            own = [parameter for parameter in owner.parameters(recurse=False) if id(parameter) not in seen]
            seen.update(map(id, own))
            self._kinds[path], self._parameters[path] = type(owner).__name__, sum(each.numel() for each in own)

    def all(self) -> tuple[list[Subject], list[Missing]]:
        """Return the standard, decomposed and fused forms, and the reasons for those that cannot be built."""
        args, kwargs = self._example.args, self._example.kwargs
        try:
            with self._clock.phase("decomposing"):
                decomposed = decompose(self._module, args, kwargs=kwargs, dynamic=self._axes or None)
        except SardonyxError as error:
            why = f"there is nothing to fuse: {error.message}"
            return [self._subject(STANDARD, self._module)], [Missing(DECOMPOSED, error.message), Missing(FUSED, why)]
        decomposition = decomposition_of(decomposed)
        assert decomposition is not None, "decompose attaches it to its result"
        nodes = traced_nodes(self._module, decomposition)
        subjects = [
            self._subject(STANDARD, self._module, decomposition, nodes=nodes),
            replace(
                self._subject(DECOMPOSED, decomposed, decomposition, nodes=len(decomposed.graph.nodes)),
                attentions=tuple(attention_costs(decomposition)),
                notes=tuple(decomposition_notes(decomposition)),
            ),
        ]
        try:
            with self._clock.phase("fusing"):
                fused = fuse_attention(decomposed)
                fusion = fusion_of(fused)
                if (
                    fusion is None or fusion.refused
                ):  # the graph alone is not enough; with sizes from a run it is slower
                    fused = fuse_attention(decomposed, tuple(args), kwargs=kwargs)
        except SardonyxError as error:
            return subjects, [Missing(FUSED, error.message)]
        nodes, notes = len(fused.graph.nodes), tuple(_fusion_notes(fusion_of(fused)))
        return [*subjects, self._subject(FUSED, fused, decomposition, nodes=nodes, notes=notes)], []

    def _subject(
        self, name: str, module: nn.Module, decomposition: Decomposition | None = None, **details: Any
    ) -> Subject:
        program = self._recorded if module is self._module else None
        if program is None:
            with self._clock.phase("recording"):
                program = _recorded(module, self._example, self._axes)
        return Subject(
            name=name,
            program=program,
            attentions=tuple(_kernel_costs(decomposition, program)) if decomposition else None,
            kinds=self._kinds,
            parameters=self._parameters,
            is_watched=name == STANDARD,
            **details,
        )


def _recorded(module: nn.Module, example: Example, axes: Axes) -> Program:
    """Record one run on fake tensors, or on real data if that fails: some kernels accept only real tensors."""
    try:
        return record(module, example.args, example.kwargs, axes=axes or None)
    except SardonyxError:
        raise
    except Exception as error:  # a forward may raise anything; the next run shows whether fake tensors are the cause
        without_data = error
    try:
        program = record(module, example.args, example.kwargs, real=True)
    except SardonyxError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(module).__name__} does not run on these inputs: {reason(error)}", hint="check their types and sizes"
        ) from error
    return replace(program, notes=(f"run on real data, since on fake tensors: {reason(without_data)}", *program.notes))


def traced_nodes(module: nn.Module, decomposition: Decomposition) -> int | None:
    """Count the nodes in torch.fx's own tracer if the decomposition was traced as well; None if it fails."""
    if decomposition.method != "symbolic-trace":
        return None
    try:
        with unchanged(module):
            return len(fx.Tracer().trace(module).nodes)
    except Exception:  # a forward may raise anything when it is traced
        return None


def attention_costs(decomposition: Decomposition) -> Iterator[AttentionCost]:
    """Yield each attention block with the primitive operations that compute it."""
    counts = [Counter[str]() for _ in decomposition.attentions]
    for primitive in decomposition.primitives.values():
        counts[primitive.attention][primitive.role] += 1
    for block, roles in zip(decomposition.attentions, counts, strict=True):
        yield AttentionCost(block.module, block.written_as, {role: roles[role] for role in Role if roles[role]})


def _kernel_costs(decomposition: Decomposition, program: Program) -> Iterator[AttentionCost]:
    """Yield each attention block with the fused kernels that compute it, none if it runs as primitive operations."""
    kernels = [operation for operation in program.operations if operation.kind is OpKind.ATTENTION]
    for block in decomposition.attentions:
        own = Counter(kernel.operator for kernel in kernels if is_within(kernel.module, block.module))
        yield AttentionCost(block.module, block.written_as, dict(own))


def _fusion_notes(fusion: Fusion | None) -> Iterator[str]:
    """Yield why attention was not fused, and where fusion changes more than the rounding."""
    if fusion is None:
        return
    notes = Counter(f"not fused: {refusal.reason}" for refusal in fusion.refused)
    notes.update(note for block in fusion.fused for note in block.notes)
    for text, count in notes.items():
        yield text if count == 1 else f"{text} (×{count})"


def decomposition_notes(decomposition: Decomposition) -> Iterator[str]:
    """Yield how a model was traced for decomposition, and which functions could not be traced into."""
    yield f"decomposed with {decomposition.method}" + (f": {decomposition.why}" if decomposition.why else "")
    for function in decomposition.opaque:
        yield f"{function} could not be traced into and may hide more attention"


def cache_of_module(module: nn.Module, example: Example) -> Cache | None:
    """Return the key-value cache of a torch module at the example's sizes, or None if it has none."""
    cached = cache_sizes(module, example)
    if cached is None:
        return None
    sizes = {"batch": cached.batch, "past_sequence": 0, "sequence": cached.tokens}
    parts: list[CachePart] = []
    for tensor in cached.tensors:
        length = _CACHED_TOKENS if tensor.kept is None else f"min({tensor.kept}, {_CACHED_TOKENS})"
        first: int | str = "batch" if tensor.shape[0] == cached.batch else (tensor.shape[0] or length)
        parts.append(CachePart(1, (first, *(size or length for size in tensor.shape[1:])), tensor.element_bytes))
    return cache_of(parts, sizes)


def decompose_model(
    source: str,
    inputs: Inputs = None,
    output: str | os.PathLike[str] | None = None,
    *,
    task: str | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Decomposed:
    """Decompose the attention of a model, and write the graph module if an output is given.

    Args:
        source: The source of the model, as `export` accepts it.
        inputs: Example inputs; derived if None.
        output: The file to write; weights are initialized only if it is given.
        task: The head of a Hugging Face model.
        seed: Seed of random weights and inputs.
        force: Overwrite an existing output.
        progress: Called with the phase.

    Raises:
        ModelError: If the model cannot be traced, or the options of one of its attention blocks are invalid.
    """
    if output is not None:
        check_free(os.fspath(output), force=force)
    clock = Clock(progress)
    with clock.phase("model"):
        resolved = resolve(source, task=task, seed=seed, filled=output is not None)
        check_has_code(resolved.module)
    with clock.phase("inputs"):
        example = example_for(resolved.module, resolved, inputs, None, seed, RecordingProbe())
        lazy = initialize(resolved.module, example.args, example.kwargs)
    with clock.phase("decomposing"):
        decomposed = decompose(resolved.module, example.args, kwargs=example.kwargs)
    decomposition = decomposition_of(decomposed)
    assert decomposition is not None, "decompose attaches it to its result"
    nodes = traced_nodes(resolved.module, decomposition)
    if output is not None:
        with clock.phase("writing"):
            save_decomposed(decomposed, output, force=force)
    return Decomposed(
        source=source,
        output=None if output is None else os.fspath(output),
        nodes_before=nodes,
        nodes=len(decomposed.graph.nodes),
        attentions=tuple(attention_costs(decomposition)),
        notes=(*example.notes, *lazy, *decomposition_notes(decomposition)),
        seconds=clock.seconds,
    )
