"""Torch models as columns of an analysis: as they are, with attention spelled out, and with attention fused.

Each form is run once without data. What cannot be made is told with its reason; the others are still worth having.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import fx, nn

from sardonyx.analysis.cache_formula import cache_of
from sardonyx.analysis.columns import Found, Subject, measured, overtaking
from sardonyx.analysis.costs.program import OpKind, Program
from sardonyx.analysis.recording.recorder import record
from sardonyx.errors import ModelError, SardonyxError, reason
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.frontend.attention.fuse import Fusion, fuse_attention, fusion_of
from sardonyx.frontend.attention.legacy_memory_estimate import as_in_notes
from sardonyx.frontend.attention.roles import Decomposition, Role, decomposition_of
from sardonyx.frontend.inputs.example_resolution import Dims, Inputs, example_for, open_dims
from sardonyx.frontend.inputs.examples import Example
from sardonyx.frontend.inputs.past import Cached, cache_sizes
from sardonyx.frontend.models.resolve import given, resolve
from sardonyx.frontend.models.sources import Dtype
from sardonyx.frontend.module_state import left_as_it_was, undoing_writes
from sardonyx.frontend.running import initialize, probe
from sardonyx.frontend.tracing.adapter import Call
from sardonyx.frontend.tracing.prepare import prepared
from sardonyx.frontend.tracing.symbols import Axes
from sardonyx.provenance import is_within
from sardonyx.records.analysis import AnalysisSource, AttentionCost, Cache, CachePart, Missing, NotesEstimate
from sardonyx.records.inspection import Port
from sardonyx.records.progress import Clock

# Whether a module takes inputs of some sizes, found without computing anything; the run that shows it is kept.


class RecordingProbe:
    """Tries a module by recording it, so that the accepted inputs need not be run again.

    What only values decide is not found, and does not matter for costs. A refusal counts only where the module refuses
    the data itself too.
    """

    def __init__(self) -> None:
        self._accepted: tuple[Any, Any, Program] | None = None

    def __call__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
        """The exception that the module answers with, if any."""
        try:
            self._accepted = args, kwargs, record(module, args, kwargs)
        except Exception:  # a forward may raise anything, and without data for another reason than with it
            return probe(module, args, kwargs)
        return None

    def program(self, example: Example) -> Program | None:
        """What was recorded with these very inputs, if anything was."""
        if self._accepted is None:
            return None
        args, kwargs, program = self._accepted
        return program if args is example.args and kwargs is example.kwargs else None


_CACHED_TOKENS = "past_sequence + sequence"

STANDARD, DECOMPOSED, FUSED = "standard", "decomposed", "fused"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for."""

    inputs: Inputs
    kwargs: Mapping[str, Any] | None
    task: str | None
    dtype: Dtype
    dynamic: Dims
    as_in_notes: bool
    seed: int


def analyzed(source: nn.Module | str, wish: Wish, clock: Clock) -> Found:
    """The forms of one model."""
    with clock.phase("model"):
        resolved = (
            given(source, wish.dtype)
            if isinstance(source, nn.Module)
            else resolve(str(source), task=wish.task, seed=wish.seed, filled=False, dtype=wish.dtype)
        )
    with prepared(resolved.module) as module:
        with clock.phase("inputs"):
            probe = RecordingProbe()
            example = example_for(module, resolved, wish.inputs, wish.kwargs, wish.seed, probe)
            lazy = initialize(module, example.args, example.kwargs)
            call = Call(module, example.args, example.kwargs)
            dims = open_dims(call, wish.dynamic)
        cache = cache_of_module(module, example)
        forms = _Forms(module, example, dims.axes, clock, None if dims.axes else probe.program(example))
        subjects, missing = forms.all(with_notes=wish.as_in_notes)
    with clock.phase("costs"):
        sizes = {dim: size for each in subjects for dim, size in each.program.symbols.items()}
        made = [measured(each, each.program.symbols) for each in subjects]
        turns = overtaking(made, sizes)
    kind = type(resolved.module)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return Found(
        sources=(AnalysisSource(resolved.label, "torch", name, _ports(call, dims.axes), cache),),
        sizes=sizes,
        forms=tuple(each.form for each in made),
        missing=tuple(missing),
        overtaking=turns,
        notes=tuple(dict.fromkeys((*example.notes, *lazy, *dims.notes))),
    )


def _ports(call: Call, axes: Axes) -> tuple[Port, ...]:
    return tuple(
        Port(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(axes.get(name, {}).get(axis, size) for axis, size in enumerate(tensor.shape)),
        )
        for name, tensor in zip(call.inputs, call.tensors, strict=True)
    )


class _Forms:
    """The forms of a module, one after the other."""

    def __init__(self, module: nn.Module, example: Example, axes: Axes, clock: Clock, recorded: Program | None) -> None:
        self._module, self._example, self._axes, self._clock = module, example, axes, clock
        self._recorded = recorded  # of the module itself, where it was run already
        self._kinds = {path: type(each).__name__ for path, each in _modules(module)}
        self._parameters = dict(_own_parameters(module))

    def all(self, *, with_notes: bool) -> tuple[list[Subject], list[Missing]]:
        """Standard, decomposed and fused, as far as they can be made."""
        args, kwargs = self._example.args, self._example.kwargs
        try:
            with self._clock.phase("decomposing"):
                spelled = decompose(self._module, args, kwargs=kwargs, dynamic=self._axes or None)
        except SardonyxError as error:
            why = f"there is nothing to fuse: {error.message}"
            return [self._subject(STANDARD, self._module)], [Missing(DECOMPOSED, error.message), Missing(FUSED, why)]
        taken_apart = decomposition_of(spelled)
        assert taken_apart is not None, "decompose lets what it makes carry it"
        subjects = [self._standard(taken_apart, with_notes), self._decomposed(taken_apart, spelled, with_notes)]
        try:
            with self._clock.phase("fusing"):
                fused = _fused(spelled, args, kwargs)
        except SardonyxError as error:
            return subjects, [Missing(FUSED, error.message)]
        known = {"nodes": len(fused.graph.nodes), "notes": tuple(_left(fusion_of(fused)))}
        return [*subjects, self._subject(FUSED, fused, taken_apart, **known)], []

    def _standard(self, taken_apart: Decomposition, with_notes: bool) -> Subject:
        graph = symbolic(self._module) if taken_apart.method == "symbolic-trace" else None
        nodes = None if graph is None else len(graph.nodes)
        traced = self._module if graph is None or not with_notes else fx.GraphModule(self._module, graph)
        estimate = self._estimate(traced) if with_notes else None
        return self._subject(STANDARD, self._module, taken_apart, nodes=nodes, as_in_notes=estimate)

    def _decomposed(self, taken_apart: Decomposition, spelled: fx.GraphModule, with_notes: bool) -> Subject:
        estimate = self._estimate(spelled) if with_notes else None
        subject = self._subject(DECOMPOSED, spelled, taken_apart, nodes=len(spelled.graph.nodes), as_in_notes=estimate)
        return replace(subject, attentions=tuple(parts(taken_apart)), notes=tuple(road(taken_apart)))

    def _subject(self, name: str, module: nn.Module, taken_apart: Decomposition | None = None, **known: Any) -> Subject:
        program = self._recorded if module is self._module else None
        if program is None:
            with self._clock.phase("recording"):
                program = _recorded(module, self._example, self._axes)
        return Subject(
            name=name,
            program=program,
            attentions=tuple(_kernels(taken_apart, program)) if taken_apart else None,
            kinds=self._kinds,
            parameters=self._parameters,
            is_watched=name == STANDARD,
            **known,
        )

    def _estimate(self, module: nn.Module) -> NotesEstimate:
        """By the notes' definition, which knows arguments by position alone."""
        if self._example.kwargs:
            raise ModelError(
                "the estimate of the notes takes inputs by position alone, and this model is called with names",
                hint="leave out `as_in_notes`",
            )
        with undoing_writes(module):
            found = as_in_notes(cast("fx.GraphModule", module), self._example.args)
        return NotesEstimate(found.peak_bytes, found.never_freed_bytes, found.reduction)


def _recorded(module: nn.Module, example: Example, axes: Axes) -> Program:
    """One run, without data where that can be: some kernels refuse without it what they take with it."""
    try:
        return record(module, example.args, example.kwargs, axes=axes or None)
    except SardonyxError:
        raise
    except Exception as error:  # a forward may raise anything; whether it is its own fault the next run tells
        without_data = error
    try:
        program = record(module, example.args, example.kwargs, real=True)
    except SardonyxError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(module).__name__} does not run on these inputs: {reason(error)}", hint="check their types and sizes"
        ) from error
    return replace(program, notes=(f"run on real data: without it, {reason(without_data)}", *program.notes))


def _modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield from cast("Iterator[tuple[str, nn.Module]]", module.named_modules())


def _own_parameters(module: nn.Module) -> Iterator[tuple[str, int]]:
    """How many parameters each module has itself, tied ones where they come first."""
    seen: set[int] = set()
    for path, owner in _modules(module):
        own = [each for each in owner.parameters(recurse=False) if id(each) not in seen]
        seen.update(map(id, own))
        yield path, sum(each.numel() for each in own)


def symbolic(module: nn.Module) -> fx.Graph | None:
    """The graph that torch itself traces; None where it cannot and ours can."""
    try:
        with left_as_it_was(module), undoing_writes(module):
            return fx.Tracer().trace(module)
    except Exception:  # a forward may raise anything when it is traced; then there is no such graph to count
        return None


def parts(taken_apart: Decomposition) -> Iterator[AttentionCost]:
    """Each attention with the primitives that do its work."""
    counts = [Counter[str]() for _ in taken_apart.attentions]
    for primitive in taken_apart.primitives.values():
        counts[primitive.attention][primitive.role] += 1
    for each, roles in zip(taken_apart.attentions, counts, strict=True):
        yield AttentionCost(each.module, each.written_as, {role: roles[role] for role in Role if roles[role]})


def _kernels(taken_apart: Decomposition, program: Program) -> Iterator[AttentionCost]:
    """Each attention with the kernels that do it whole; none where it is done step by step."""
    kernels = [each for each in program.operations if each.kind is OpKind.ATTENTION]
    for each in taken_apart.attentions:
        own = Counter(kernel.operator for kernel in kernels if is_within(kernel.module, each.module))
        yield AttentionCost(each.module, each.written_as, dict(own))


def _fused(spelled: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> fx.GraphModule:
    """From the graph alone where that proves enough: running it on the example to learn sizes takes its time."""
    made = fuse_attention(spelled)
    fusion = fusion_of(made)
    return made if fusion is not None and not fusion.refused else fuse_attention(spelled, tuple(args), kwargs=kwargs)


def _left(fusion: Fusion | None) -> Iterator[str]:
    """Why attentions were not fused, and where fusing changes more than the rounding."""
    if fusion is None:
        return
    said = Counter(f"not fused: {each.reason}" for each in fusion.refused)
    said.update(note for each in fusion.fused for note in each.notes)
    for text, count in said.items():
        yield text if count == 1 else f"{text} (×{count})"


def road(taken_apart: Decomposition) -> Iterator[str]:
    """How it was taken apart, and what that could not look into."""
    yield f"taken apart by {taken_apart.method}" + (f": {taken_apart.why}" if taken_apart.why else "")
    for function in taken_apart.opaque:
        yield f"{function} could not be looked into and may hide more"


def cache_of_module(module: nn.Module, example: Example) -> Cache | None:
    """The cache that a torch module keeps, at the example's sizes; None where it keeps none."""
    found = cache_sizes(module, example)
    if found is None:
        return None
    sizes = {"batch": found.batch, "past_sequence": 0, "sequence": found.tokens}
    return cache_of([_cache_part(each, found.batch) for each in found.tensors], sizes)


def _cache_part(tensor: Cached, batch: int) -> CachePart:
    length = _CACHED_TOKENS if tensor.kept is None else f"min({tensor.kept}, {_CACHED_TOKENS})"
    first: int | str = "batch" if tensor.shape[0] == batch else (tensor.shape[0] or length)
    return CachePart(1, (first, *(size or length for size in tensor.shape[1:])), tensor.element_bytes)
