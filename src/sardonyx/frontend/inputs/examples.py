"""Example inputs of a model: those that are given, or else derived from its signature and configuration."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn

from sardonyx.errors import UsageError
from sardonyx.frontend.inputs.candidates import Role, Slot, candidates, processed, role_of
from sardonyx.frontend.inputs.dynamic import find_dynamic
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.inputs.search import Accepted, Draft, Search
from sardonyx.frontend.models import Resolved, torch_dtype
from sardonyx.frontend.running import Probe, memory_key, probe, run_widened_if_needed
from sardonyx.frontend.tracing.adapter import Feeds, ModuleCall, stored_tensors
from sardonyx.frontend.tracing.engine import UnattendedRows
from sardonyx.frontend.tracing.graph_names import Axes
from sardonyx.frontend.tracing.structure import Flat, named_arguments
from sardonyx.records.input_specs import Constant, DynamicRequest, Spec, resolve_axes
from sardonyx.records.inspection import Port

_MOST_PROBES = 48
_MOST_CANDIDATES = 3  # of one parameter
_MAX_SLOT_ELEMENTS = 4096
_DATA = (Role.IMAGE, Role.WAVE, Role.FEATURES, Role.BOXES, Role.IDS)  # outputs of processors and tokenizers
_OTHERS = (Role.UNKNOWN, Role.HIDDEN, Role.MASK)  # tried last, because most of them replace another input
_ABOUT_PLACEHOLDERS = re.compile(r"token|scatter|indexing|placeholder", re.IGNORECASE)


class Extension:
    """Adds optional inputs that make more of a module run.

    A model that takes an image and a text also runs on the text alone, but much of it is then never reached. Which
    inputs reach the rest is found by trying. If the token ids must contain placeholders for another input, the config
    names the token and the module's error message the number.
    """

    def __init__(self, search: Search, accepted: Accepted) -> None:
        self._search, self._accepted = search, accepted
        self._weights = frozenset(map(memory_key, search.module.parameters()))
        self._probes = 0

    def run(self) -> Accepted:
        """Return the extended inputs."""
        data = [name for name in self._optional() if role_of(name) in _DATA]
        others = [name for name in self._optional() if role_of(name) in _OTHERS]
        for name in data:
            if role_of(name) is Role.BOXES or not self._is_complete:
                self._add(name)
        if data and not self._is_complete:
            self._add_processed()
        for name in others:
            if not self._is_complete:
                self._add(name)
        self._add_placeholders()
        self._expand_placeholder()
        for name in list(self._optional()):
            if self._accepted.draft.slots and role_of(name) is Role.SEGMENTS:
                self._add(name)
        return self._accepted

    @property
    def _is_complete(self) -> bool:
        return self._accepted.reached >= self._weights

    def _optional(self) -> Iterator[str]:
        return self._search.optional(self._accepted.draft.names)

    def _add(self, name: str) -> None:
        """Add the first candidate that the module accepts and that makes more of it run."""
        draft = self._accepted.draft
        if name in draft.names:
            return
        options = candidates(name, self._search.facts, draft.sizes, layers=False)
        for choice in range(min(len(options), _MOST_CANDIDATES)):
            result = self._try(self._with(draft, {name: choice}), name)
            if isinstance(result, Accepted) and self._is_better(result, name):
                self._accepted = result
                return

    def _add_processed(self) -> None:
        """Add the output of the library's processors for an image or a sound if it makes more of the module run."""
        draft = self._accepted.draft
        for outputs in processed(self._search.facts, draft.sizes.batch, self._search.seed):
            taken = self._taken(outputs)
            if not taken.keys() - draft.names:
                continue
            choices = {name: choice for name, choice in draft.choices.items() if name not in taken}
            name = next(iter(taken))
            result = self._try(replace(draft, choices=choices, processed={**draft.processed, **taken}), name)
            if isinstance(result, Accepted) and self._is_better(result, name):
                self._accepted = result
                return

    def _add_placeholders(self) -> None:
        """Add placeholders for an image that the module accepts without them but would then ignore."""
        draft, facts = self._accepted.draft, self._search.facts
        token, count = facts.placeholders(facts.vocabulary or 0).get("image"), facts.count("image tokens")
        has_image = any(role_of(name) is Role.IMAGE for name in draft.names)
        if token is None or count is None or draft.slots or not has_image:
            return
        result = self._attempt(replace(draft, slots=(Slot("image", token, count),)))
        if isinstance(result, Accepted):
            self._accepted = result

    def _expand_placeholder(self) -> None:
        """Write as many placeholders as the module expands a single one to.

        Some models replace one placeholder by all positions of a sound, with code that no exporter can trace. With all
        placeholders written out, as processors do, such models leave the length of the text unchanged.
        """
        accepted, draft = self._accepted, self._accepted.draft
        if [slot.count for slot in draft.slots] != [1]:
            return
        outputs = Flat(run_widened_if_needed(self._search.module, accepted.args, accepted.kwargs))
        before = draft.sizes.length + 1
        lengths = [tensor.shape[1] for tensor in outputs.tensors if tensor.dim() == 3]
        if lengths and before < lengths[0] < _MAX_SLOT_ELEMENTS:
            slot = replace(draft.slots[0], count=lengths[0] - before + 1)
            expanded = self._attempt(replace(draft, slots=(slot,)))
            if isinstance(expanded, Accepted):
                self._accepted = expanded

    def _taken(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs of a processor that the forward takes; a second mask gets the name of what it masks."""
        taken: dict[str, Tensor] = {}
        stems = {word.rstrip("s") for name in outputs for word in name.split("_")} - {"input", "attention", "mask"}
        for name, value in outputs.items():
            if role_of(name) is Role.MASK and name in self._accepted.draft.names:
                others = [mask for mask in self._optional() if role_of(mask) is Role.MASK]
                name = next((mask for mask in others if stems & {w.rstrip("s") for w in mask.split("_")}), "")
            if name in self._search.parameters:
                taken[name] = value
        return taken

    def _is_better(self, result: Accepted, name: str) -> bool:
        """Return whether more weights are reached; boxes and segments always count: their layers run without them."""
        gained = len(result.reached & self._weights) > len(self._accepted.reached & self._weights)
        return gained or role_of(name) in (Role.BOXES, Role.SEGMENTS)

    def _with(self, draft: Draft, more: Mapping[str, int]) -> Draft:
        choices = {**draft.choices, **more}
        return replace(draft, choices={name: choices[name] for name in self._search.ordered(choices)})

    def _try(self, draft: Draft, name: str, rounds: int = 3) -> Accepted | Exception:
        """Run a draft, adding what the module's error messages ask for: other inputs, and placeholders in the text."""
        result = self._attempt(draft)
        if isinstance(result, Accepted) or rounds == 0:
            return result
        asked, facts = self._search.missing(draft.names, [result]), self._search.facts
        missing = [other for other in asked if candidates(other, facts, draft.sizes, layers=False)]
        if missing:
            return self._try(self._with(draft, dict.fromkeys(missing, 0)), name, rounds - 1)
        for slot in self._slots(name, result, draft):
            extended = self._try(replace(draft, slots=(*draft.slots, slot)), name, rounds - 1)
            if isinstance(extended, Accepted):
                return extended
        return result

    def _attempt(self, draft: Draft) -> Accepted | Exception:
        if self._probes >= _MOST_PROBES:
            return TimeoutError("too many tries")
        self._probes += 1
        return self._search.attempt(draft)

    def _slots(self, name: str, refusal: Exception, draft: Draft) -> Iterator[Slot]:
        """Yield placeholders for this input in the text, as many as the error message may ask for."""
        facts = self._search.facts
        tokens = facts.placeholders(facts.vocabulary or 0)
        is_sound = role_of(name) in (Role.WAVE, Role.FEATURES)
        own = "audio" if is_sound else "video" if "video" in name else "image"
        kinds = [own] if own in tokens else list(tokens)
        if not _ABOUT_PLACEHOLDERS.search(str(refusal)) or any(slot.kind in kinds for slot in draft.slots):
            return
        numbers = [int(number) for number in re.findall(r"\d+", str(refusal))]
        parts = (draft.sizes.batch, 1, *(draft.sizes.batch * width for width in facts.widths))
        counts = [number // part for part in parts for number in numbers if number % part == 0]
        for kind in kinds:
            for count in dict.fromkeys(count for count in counts if 0 < count <= _MAX_SLOT_ELEMENTS):
                yield Slot(kind, tokens[kind], count)


class Example(Struct, frozen=True):
    """Arguments that the module accepts, and notes on how they were generated."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    notes: tuple[str, ...] = ()
    again: Callable[[int], Example] | None = None  # generates other values, if inputs depend on each other

    def variants(self, module: nn.Module, seeds: Iterable[int]) -> list[Example]:
        """Return other values of the same inputs that the module accepts; none if any values will do."""
        examples = [self.again(seed) for seed in seeds] if self.again is not None else []
        return [example for example in examples if probe(module, example.args, example.kwargs) is None]


def derive(
    module: nn.Module, *, given: Mapping[str, Any] | None = None, seed: int = 0, probe: Probe = probe
) -> Example:
    """Derive example inputs that the module runs on.

    Args:
        module: Any module; it is run in eval mode and left unchanged.
        given: Fixed inputs by parameter name: values, or specifications to generate them from. No optional inputs are
            added to tensors.
        probe: Runs the module and returns the exception it raises, or None.

    Raises:
        UsageError: If no accepted input was found, or the module refuses the given ones.
    """
    search = Search(module, dict(given or {}), seed, probe)
    accepted = search.run()
    if not any(isinstance(value, (Spec, Tensor)) for value in (given or {}).values()):
        accepted = Extension(search, accepted).run()

    def again(seed: int) -> Example:
        return Example(*search.arguments(accepted.draft, seed))

    return Example(
        accepted.args, accepted.kwargs, tuple(search.notes(accepted)), again if accepted.has_dependencies else None
    )


def fitting_example(module: nn.Module, ports: Iterable[Port], *, seed: int = 0) -> Example:
    """Derive example inputs of a live module that also fit the fixed sizes of the inputs of a file exported from it.

    Inputs of the file that are state of the module, or of unknown rank, are left out.
    """
    state = stored_tensors(module)
    inputs = {port.name: (port.type, port.shape) for port in ports if port.shape is not None and port.name not in state}
    sizes: dict[str, tuple[int, ...]] = {}
    try:
        free = derive(module, seed=seed)
        leaves = Flat(named_arguments(module, free.args, free.kwargs)).leaves
        sizes = {leaf.name: tuple(leaf.tensor.shape) for leaf in leaves}
        if all(name in sizes and _sized(shape, sizes[name]) == sizes[name] for name, (_, shape) in inputs.items()):
            return free
    except UsageError:  # a scripted module says little about itself; the file's inputs fit it too
        pass
    specs = {name: Spec(name, dtype, _sized(shape, sizes.get(name))) for name, (dtype, shape) in inputs.items()}
    return derive(module, given=specs, seed=seed)


def _sized(dims: tuple[int | str | None, ...], derived: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the file's sizes; for a dynamic dimension, the size of the derived example."""
    dynamic = derived if derived is not None and len(derived) == len(dims) else (2,) * len(dims)
    return tuple(dim if isinstance(dim, int) else size for dim, size in zip(dims, dynamic, strict=True))


Inputs: TypeAlias = "torch.Tensor | Sequence[Any] | Mapping[str, Any] | None"
Dims: TypeAlias = 'Axes | Literal["auto"] | DynamicRequest | None'


class DynamicDims(Struct, frozen=True):
    """Dynamic dimensions, those that the user named, and notes on them."""

    axes: Axes
    named: Axes
    notes: tuple[str, ...] = ()


def call_arguments(inputs: Inputs, kwargs: Mapping[str, Any] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as positional and keyword arguments of a call."""
    keywords = dict(kwargs or {})
    if isinstance(inputs, Mapping):
        return (), {**inputs, **keywords}
    if inputs is None:
        return (), keywords
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), keywords


def example_for(
    module: nn.Module,
    resolved: Resolved,
    inputs: Inputs,
    kwargs: Mapping[str, Any] | None,
    seed: int,
    probe: Probe = probe,
) -> Example:
    """Return the user's example inputs, those of the source's factory, or derived ones.

    If the module was converted to another type, the inputs are converted as well.
    """
    values: Mapping[str, Any] = inputs if isinstance(inputs, Mapping) else {}
    if any(isinstance(value, (Spec, Constant, np.ndarray)) for value in values.values()):
        given = {name: _tensor(value) for name, value in values.items()}
        example = derive(module, given=given, seed=seed, probe=probe)
    elif inputs is not None or kwargs:
        example = Example(*call_arguments(inputs, kwargs))
    elif resolved.args is not None or resolved.kwargs is not None:
        example = Example(resolved.args or (), resolved.kwargs or {})
    else:
        example = derive(module, seed=seed, probe=probe)
    if resolved.dtype == "keep":
        return example
    flat, kind = Flat([list(example.args), example.kwargs]), torch_dtype(resolved.dtype)
    args, keywords = flat.rebuilt([each.to(kind) if each.is_floating_point() else each for each in flat.tensors])
    return Example(tuple(args), keywords, example.notes)


def _tensor(value: Any) -> Any:
    if isinstance(value, Constant):
        return value.value
    return torch.from_numpy(cast(Any, value)) if isinstance(value, np.ndarray) else value  # pyright: ignore[reportUnknownMemberType]  (torch)


def resolve_dynamic(call: ModuleCall, dynamic: Dims) -> DynamicDims:
    """Return the dynamic dimensions that the user named, and with "auto" those that the module accepts."""
    request = dynamic if isinstance(dynamic, DynamicRequest) else DynamicRequest(dynamic == "auto", {})
    if isinstance(dynamic, Mapping):
        request = DynamicRequest(False, dynamic)
    leaves = dict(zip(call.inputs, call.tensors, strict=True))
    named = resolve_axes(request, {name: tuple(tensor.shape) for name, tensor in leaves.items()})
    named = {**call.state_axes, **named}  # what changes from call to call cannot be static
    if not request.auto:
        return DynamicDims(named, named)
    arguments, state = {name: leaves[name] for name in call.arguments}, call.tensors[len(call.arguments) :]
    detected = find_dynamic(
        lambda tensors: call.run([*tensors, *state]), arguments, longest=Facts(call.module).count("positions")
    )
    axes = {name: {axis: dim for axis, dim in spec.items() if _has_name(dim)} for name, spec in detected.axes.items()}
    other = [(name, axis) for name, spec in detected.axes.items() for axis, dim in spec.items() if not _has_name(dim)]
    notes = [
        f"axis {axis} of '{name}' may be dynamic too: `dynamic={{'{name}': {{{axis}: 'NAME'}}}}` requests it"
        for name, axis in other
    ]
    merged = {name: {**axes.get(name, {}), **named.get(name, {})} for name in leaves}
    return DynamicDims(merged, named, (*detected.notes, *notes))


def _has_name(dim: str) -> bool:
    """Return whether a dimension has a name other than its axis; exporters rarely support those without one."""
    return not dim.rpartition("_")[2].isdecimal()


def unpadded(call: ModuleCall) -> Feeds | None:
    """Return the example with masks that keep every position; None if it has no padding, or the module needs it.

    These are the most ordinary inputs: code that handles padding may fail where there is none.

    Ones keep a position in most masks and hide it in some, where a row then attends to nothing.
    """

    def is_partial(mask: Tensor) -> bool:
        kept = mask == 1
        return mask.dim() > 1 and bool((kept | (mask == 0)).all()) and bool(kept.any()) and not bool(kept.all())

    example = call.feeds
    masks = [name for name, tensor in example.items() if role_of(name) is Role.MASK and is_partial(tensor)]
    for kept in itertools.islice((1, 0), 2 if masks else 0):
        feeds = {name: torch.full_like(tensor, kept) if name in masks else tensor for name, tensor in example.items()}
        try:
            with UnattendedRows() as rows:
                outputs = call.run(list(feeds.values()))
        except Exception:  # a forward may raise anything
            continue
        if not rows.found and all(bool(torch.isfinite(output).all()) for output in outputs):
            return feeds
    return None
