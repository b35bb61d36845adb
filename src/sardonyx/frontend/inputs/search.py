"""Searches for inputs that a module accepts.

Candidates are tried in order, the best guess first. An error message that names a parameter adds that parameter; any
other error leads to the next guess. Nothing here depends on an architecture.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

import torch
from msgspec import Struct, field
from msgspec.structs import replace
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sardonyx.errors import UsageError, reason
from sardonyx.frontend.inputs.candidates import Candidate, Role, Sizes, Slot, candidates, generate, processed, role_of
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.running import Probe, Reads
from sardonyx.records.input_specs import Spec, check_names

_MARK = "_sardonyx_parameters"  # attribute of a tensor: names of the parameters it was computed from
_BATCH_SIZE = 2
_LENGTHS = (11, 16, 32, 64, 128)
_DECODER_LENGTH = 7
_MOST_PROBES = 120
_PROBING_SECONDS = 20.0  # of this thread after which only _MIN_PROBES probes are made
_MIN_PROBES = 24  # probes that are always made
_DATA = (Role.IDS, Role.IMAGE, Role.WAVE, Role.FEATURES)  # inputs that a module may require without naming them
_NUMBERS = {  # annotation -> element type, and values to try
    "int": ("int64", (1, 0, 2)),
    "bool": ("bool", (False, True)),
    "float": ("float32", (1.0, 0.5)),
}
_TEXTS_PER_ITEM = 3  # of an item, if one is not enough; different from the other sizes
_PLAIN = re.compile(r"\b(int|bool|float|str|dict)\b")  # annotations of values that are not tensors
_GENERAL = ("builtins", "typing", "collections.abc", "inspect")  # modules with general classes
_CONTAINER = re.compile(r"(?i:dict|list|tuple|mapping|sequence|iterable)\[[^\]]*\]")
SWITCHES = {"use_cache": False}  # a cache would be an unrequested output


def parameters_at_fault(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], named: Mapping[str, Any], probe: Probe
) -> list[str]:
    """Return the parameters that the failing expression reads, in the order of `named`; empty if unknown.

    The module runs once more on the inputs that it refused. Every tensor carries the names of the parameters it was
    computed from; the innermost frame of the traceback that reads such a tensor names the parameter.

    Args:
        probe: Runs the module and returns the exception it raises, or None.
    """
    for name, value in named.items():
        _mark(value, frozenset([name]))
    try:
        with _Marking():
            refusal = probe(module, args, kwargs)
    finally:
        for value in named.values():
            if hasattr(value, _MARK):
                delattr(value, _MARK)
    traces, trace = list[TracebackType](), refusal.__traceback__ if refusal is not None else None
    while trace is not None:
        traces.append(trace)
        trace = trace.tb_next
    for trace in reversed(traces):
        for names in _names_read(trace):
            values = [trace.tb_frame.f_locals[name] for name in names if name in trace.tb_frame.f_locals]
            parameters = _marks(values) | {name for name, value in named.items() if any(v is value for v in values)}
            if parameters:
                return [name for name in named if name in parameters]
    return []


class _Marking(TorchFunctionMode):
    """Marks results with the parameters of their operands."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if marks := _marks([args, kwargs]):
            _mark(result, marks)
        return result


def _mark(value: Any, names: frozenset[str]) -> None:
    for tensor in cast("Iterable[Any]", tree_leaves(value)):
        if isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter):  # those of the module stay unmarked
            setattr(tensor, _MARK, names)


def _marks(values: Iterable[Any]) -> frozenset[str]:
    none = frozenset[str]()
    return none.union(*(getattr(leaf, _MARK, none) for leaf in cast("Iterable[Any]", tree_leaves(list(values)))))


def _names_read(trace: TracebackType) -> Iterator[list[str]]:
    """Yield the local names that the failing expression reads; then those of its lines, for failing unpackings."""
    instructions = list(dis.get_instructions(trace.tb_frame.f_code))
    failing = next((step.positions for step in instructions if step.offset == trace.tb_lasti), None)
    if failing is None or failing.lineno is None or failing.end_lineno is None:
        return
    start, end = (failing.lineno, failing.col_offset or 0), (failing.end_lineno, failing.end_col_offset or 0)
    inside: list[str] = []
    beside: list[str] = []
    for step in instructions:
        position = step.positions
        if position is None or position.lineno is None or not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            continue
        loaded = cast("str | tuple[str, ...]", step.argval)  # a tuple if one instruction loads two
        names = [loaded] if isinstance(loaded, str) else list(loaded)
        if start <= (position.lineno, position.col_offset or 0) <= end:
            inside += names
        elif start[0] <= position.lineno <= end[0]:
            beside += names
    yield inside
    yield beside


class Draft(Struct, frozen=True):
    """Inputs without values: a candidate for each parameter, at certain sizes."""

    choices: Mapping[str, int]  # parameter -> index of its candidate
    sizes: Sizes
    slots: tuple[Slot, ...] = ()  # placeholders in the text
    processed: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])  # outputs of a processor

    @property
    def names(self) -> set[str]:
        """The parameters that get a value."""
        return {*self.choices, *self.processed}


class Accepted(Struct, frozen=True):
    """Inputs that the module ran on, and the weights that the run reached."""

    draft: Draft
    guess: tuple[Candidate, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reached: frozenset[int]

    @property
    def has_dependencies(self) -> bool:
        """Whether values of inputs depend on each other, so that independent random values would be refused."""
        return bool(self.draft.slots or self.draft.processed) or any(
            candidate.role in (Role.BOXES, Role.SIZES) for candidate in self.guess
        )


class Search:
    """A search for example inputs of one module."""

    def __init__(self, module: nn.Module, given: Mapping[str, Any], seed: int, probe: Probe) -> None:
        self.module, self.seed, self._probe = module, seed, probe
        self._given = {name: value for name, value in given.items() if isinstance(value, (Spec, Tensor))}
        self.constants = {name: value for name, value in given.items() if name not in self._given}
        self.facts = Facts(module)
        parameters = _signature(module).parameters.values()
        self.parameters = {p.name: p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        self._variadic = [p for p in parameters if p.kind is p.VAR_POSITIONAL] if not self.parameters else []
        self.parameters.update({p.name: p for p in self._variadic})
        if self.parameters or not any(p.kind is p.VAR_KEYWORD for p in parameters):
            check_names(given, self.parameters)
        self._sizes = list(_size_sequence(self.facts, self._given))
        self._probes, self._began = 0, time.thread_time()
        self._first: tuple[dict[str, Any], Exception] | None = None  # the best guess, and its error

    def run(self) -> Accepted:
        """Try guesses until one is accepted, adding parameters that the module asks for.

        Raises:
            UsageError: If none is accepted.
        """
        names = self._initial_names()
        while not self._is_spent:
            accepted, refusals = self._try(names)
            if accepted is not None:
                return accepted
            more = self.missing(names, refusals) or self._next_data_parameter(names)
            if not more:
                break
            names = self.ordered([*names, *more])
        accepted = self._processed(names) if not self._given else None
        if accepted is None:
            raise self._not_found(names)
        return accepted

    @property
    def _is_spent(self) -> bool:
        """Whether the search has tried enough, by number or by time."""
        is_long = self._probes >= _MIN_PROBES and time.thread_time() - self._began > _PROBING_SECONDS
        return is_long or self._probes >= _MOST_PROBES

    def _processed(self, names: Sequence[str]) -> Accepted | None:
        """Try the outputs of the library's processors, with the best guesses for the other parameters."""
        sizes = self._sizes[0]
        for outputs in processed(self.facts, sizes.batch, self.seed):
            taken = {name: value for name, value in outputs.items() if name in self.parameters}
            rest = [name for name in names if name not in taken]
            if taken and all(self.choices(name, sizes) for name in rest):
                result = self.attempt(Draft(dict.fromkeys(rest, 0), sizes, processed=taken))
                if isinstance(result, Accepted):
                    return result
        return None

    def _initial_names(self) -> list[str]:
        """Return the parameters without a default, the module's main input, the given ones, and their companions."""
        names = [p.name for p in self.parameters.values() if p.default is p.empty or p in self._variadic]
        main = getattr(self.module, "main_input_name", None)
        if isinstance(main, str) and main in self.parameters:
            names.append(main)
        if not names and self.parameters:
            names.append(next(iter(self.parameters)))
        names.extend(self._given)
        if not any(isinstance(value, Tensor) for value in self._given.values()):
            names.extend(self._companions(names))
        return [name for name in self.ordered(names) if name not in self.constants]

    def _companions(self, names: Sequence[str]) -> Iterator[str]:
        """Yield inputs that are optional but always used in practice."""
        is_text = any(role_of(name) is Role.IDS for name in names)
        has_segments = (self.facts.count("segments") or 0) > 1
        for name in self.parameters:
            is_mask = name == "attention_mask" and is_text
            is_segment = role_of(name) is Role.SEGMENTS and is_text and has_segments
            is_second = name.startswith("decoder_") and role_of(name) is Role.IDS and self.facts.is_encoder_decoder
            if (is_mask or is_segment or is_second) and not self._is_plain(name):
                yield name

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Return names in the order of the signature."""
        chosen = list(dict.fromkeys(names))
        order = list(self.parameters)
        return sorted(chosen, key=lambda name: order.index(name) if name in order else len(order))

    def _try(self, names: Sequence[str]) -> tuple[Accepted | None, list[Exception]]:
        refusals: list[Exception] = []
        for draft in self._drafts(names):
            if self._is_spent:
                break
            self._probes += 1
            result = self.attempt(draft)
            if isinstance(result, Accepted):
                return result, refusals
            self._first = self._first or (self._values(draft, self.seed), result)
            refusals.append(result)
            lacks_one = "NoneType" in str(result) and self._next_data_parameter(names)  # an optional input is None
            if len(refusals) == 1 and (self.missing(names, refusals) or lacks_one):
                break  # the sizes are not the cause
        return None, refusals

    def attempt(self, draft: Draft) -> Accepted | Exception:
        """Run the module on a draft; return the accepted inputs, or the exception it raises."""
        guess = self._guess(draft)
        args, kwargs = self.arguments(draft, self.seed)
        with Reads() as reads:
            refusal = self._probe(self.module, args, kwargs)
        return refusal or Accepted(draft, guess, args, kwargs, frozenset(reads.read | reads.called))

    def arguments(self, draft: Draft, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return values for a draft as positional and keyword arguments."""
        return self._arguments(self._values(draft, seed))

    def _guess(self, draft: Draft) -> tuple[Candidate, ...]:
        longer = sum(slot.count for slot in draft.slots)
        sizes = replace(draft.sizes, length=draft.sizes.length + longer)
        chosen = {name: self.choices(name, sizes)[choice] for name, choice in draft.choices.items()}
        for name, value in draft.processed.items():
            dtype = self.facts.dtype if value.is_floating_point() else str(value.dtype).removeprefix("torch.")
            chosen[name] = Candidate(Spec(name, dtype, tuple(value.shape)), role_of(name))
        return tuple(chosen[name] for name in self.ordered(chosen))

    def _drafts(self, names: Sequence[str]) -> Iterator[Draft]:
        """Yield combinations of candidates, those nearest to the best guess first."""
        seen: set[tuple[tuple[Spec, int | None, float | None], ...]] = set()  # guesses without their roles
        for sizes in self._sizes:
            choices = [self.choices(name, sizes) for name in names]
            for name, options in zip(names, choices, strict=True):
                if not options:
                    annotation = self.parameters[name].annotation
                    takes = f", which takes {annotation.__name__}, not a tensor" if _is_own_class(annotation) else ""
                    kind = type(self.module).__name__
                    raise UsageError(
                        f"no example can be derived for parameter '{name}' of {kind}{takes}",
                        hint=self._hint(name, "float32[2,16]", ", or the right type and sizes"),
                    )
            combinations = itertools.product(*(range(len(options)) for options in choices))
            for indices in sorted(itertools.islice(combinations, 4096), key=sum):
                chosen = (options[index] for options, index in zip(choices, indices, strict=True))
                guess = tuple((candidate.spec, candidate.high, candidate.value) for candidate in chosen)
                if guess not in seen:
                    seen.add(guess)
                    yield Draft(dict(zip(names, indices, strict=True)), sizes)

    def choices(self, name: str, sizes: Sizes) -> list[Candidate]:
        """Return the candidates of a parameter; none if it takes no tensor."""
        given = self._given.get(name)
        if given is None and (numbers := _NUMBERS.get(_written(self.parameters[name].annotation))):
            return [Candidate(Spec(name, numbers[0], ()), Role.NUMBER, value=number) for number in numbers[1]]
        if given is None:
            return [] if self._is_plain(name) else candidates(name, self.facts, sizes)
        if isinstance(given, Tensor):
            return [Candidate(Spec(name, str(given.dtype).removeprefix("torch."), tuple(given.shape)), Role.UNKNOWN)]
        guessed = candidates(name, self.facts, sizes)
        high = next((c.high for c in guessed if c.spec.dtype == given.dtype), None)
        role = next((c.role for c in guessed if c.spec.dtype == given.dtype), role_of(name))
        return [Candidate(given, role, high)]

    def _is_plain(self, name: str) -> bool:
        """Return whether a parameter takes a number, a string or an object, by annotation and documentation."""
        annotation, documented = self.parameters[name].annotation, self.facts.descriptions.get(name)
        written = _written(annotation)
        is_tensor = "Tensor" in written or (documented is not None and bool(documented.shapes))
        return not is_tensor and (_is_own_class(annotation) or _PLAIN.search(written) is not None)

    def optional(self, names: Collection[str]) -> Iterator[str]:
        """Yield the other parameters that may take a tensor of data and default to None, without those for training."""
        for name, parameter in self.parameters.items():
            documented = self.facts.descriptions.get(name)
            is_tensor = parameter.annotation is parameter.empty or "Tensor" in str(parameter.annotation)
            is_data = documented is None or not documented.is_for_training
            if name not in {*names, *self.constants} and is_tensor and is_data and parameter.default is None:
                yield name

    def _values(self, draft: Draft, seed: int) -> dict[str, Any]:
        guess = self._guess(draft)
        generator = torch.Generator().manual_seed(seed)
        padded = any(candidate.spec.name == "attention_mask" for candidate in guess)
        values: dict[str, Any] = {}
        for candidate in guess:
            name = candidate.spec.name
            fixed = self._given.get(name, draft.processed.get(name))
            is_data = name in draft.processed and isinstance(fixed, Tensor) and fixed.is_floating_point()
            if candidate.value is not None:
                values[name] = candidate.value
            elif isinstance(fixed, Tensor) and not is_data:
                values[name] = fixed
            else:
                values[name] = generate(candidate, self.facts, generator, padded=padded, slots=draft.slots)
        return values

    def _arguments(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the leading required values as positional arguments, and the rest as keyword arguments."""
        leading = list(
            itertools.takewhile(lambda p: p.default is p.empty and p.name in values, self.parameters.values())
        )
        positional = [p.name for p in leading if p.kind is not p.KEYWORD_ONLY]
        named: dict[str, Any] = {name: value for name, value in values.items() if name not in positional}
        named.update({name: off for name, off in SWITCHES.items() if name in self.parameters})
        named.update(self.constants)
        return tuple(values[name] for name in positional), named

    def missing(self, names: Iterable[str], refusals: Sequence[Exception]) -> list[str]:
        """Return the parameters that the first error message names, without alternatives such as embeddings."""
        words = set(re.findall(r"\w+", " ".join(str(refusal) for refusal in refusals[:1]).lower()))
        present = {*names, *self.constants}
        mentioned = [name for name in self.parameters if name.lower() in words and name not in present]
        return [name for name in mentioned if role_of(name) not in (Role.UNKNOWN, Role.HIDDEN)]

    def _next_data_parameter(self, names: Sequence[str]) -> list[str]:
        """Return the next optional parameter for data, to try if the error message names none."""
        return [name for name in self.parameters if role_of(name) in _DATA and name not in {*names, *self.constants}][
            :1
        ]

    def notes(self, accepted: Accepted) -> Iterator[str]:
        """Yield a note on how each input was generated, and on those left out."""
        for candidate in accepted.guess:
            if isinstance(self._given.get(candidate.spec.name), Tensor):
                continue
            below = f", below {candidate.high}" if candidate.high else ""
            spec = candidate.spec if candidate.value is None else f"{candidate.spec.name}={candidate.value}"
            yield f"{spec} generated as {candidate.role}{below}"
        for slot in accepted.draft.slots:
            yield f"{slot.count} {slot.kind} tokens ({slot.token}) in every row, as many as the {slot.kind} fills"
        if left_out := list(self.optional(accepted.draft.names)):
            yield f"optional inputs left out: {', '.join(left_out)}"

    def _not_found(self, names: Sequence[str]) -> UsageError:
        kind = type(self.module).__name__
        if self._first is None:
            return UsageError(f"no example was found that {kind} accepts: it takes no inputs", hint="check its forward")
        values, refusal = self._first
        why = reason(refusal)
        tried = {
            name: f"{name}={value}"
            if not isinstance(value, Tensor)
            else str(Spec(name, str(value.dtype).removeprefix("torch."), tuple(value.shape)))
            for name, value in values.items()
        }
        if names and all(name in self._given for name in names):
            shown = ", ".join(map(str, tried.values()))
            return UsageError(f"{kind} does not accept {shown}: {why}", hint="check the types and sizes")
        args, kwargs = self._arguments(values)
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}  # not equal numbers
        suspects = parameters_at_fault(self.module, args, kwargs, tensors, self._probe)
        at_fault = [name for name in suspects or values if name not in self._given]
        unsure = [name for name in at_fault if role_of(name) is Role.UNKNOWN]  # preferred
        name = next(iter(unsure or at_fault), None) if suspects or len(at_fault) == 1 else None
        if name is None:
            guessed = [name for name in tried if name not in self._given]
            return UsageError(
                f"no example was found that {kind} accepts: {why}",
                hint=f"give type and sizes of {' and '.join(guessed)}: `inputs={{'NAME': DTYPE[DIMS]}}`",
            )
        return UsageError(
            f"no example was found that {kind} accepts; parameter '{name}': {why}",
            hint=self._hint(name, "DTYPE[DIMS]", f" (tried: {tried[name].partition('=')[2]})"),
        )

    def _hint(self, name: str, tensor: str, remark: str) -> str:
        """Return a hint on how to give a parameter: as a specification, or from a factory if it is not a tensor."""
        written = _written(self.parameters[name].annotation)
        if written and "Tensor" not in _CONTAINER.sub("", written):
            return f"it is not a tensor: give it as file.py:factory, returning (module, {{'{name}': …}})"
        return f"`inputs={{'{name}': {tensor}}}`{remark}; or file.py:factory, returning (module, {{'{name}': …}})"


def _signature(module: nn.Module) -> inspect.Signature:
    """Return the signature of the module's forward.

    Raises:
        UsageError: If the module has no forward.
    """
    if getattr(module.forward, "__func__", None) is nn.Module.forward:  # torch's default, which only raises
        kind, parts = type(module).__name__, ", ".join(name for name, _ in module.named_children())
        raise UsageError(f"{kind} has no forward", hint=f"export a module in it ({parts}): file.py:factory")
    try:
        return inspect.signature(module.forward, eval_str=True)
    except Exception:  # annotations may be any expression, with names that exist only for type checkers
        return inspect.signature(module.forward)


def _is_own_class(annotation: Any) -> bool:
    """Return whether an annotation is a user-defined class that is not a tensor."""
    is_class = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    return is_class and not issubclass(annotation, Tensor) and annotation.__module__ not in _GENERAL


def _written(annotation: Any) -> str:
    """Return an annotation as text with unqualified class names; empty if it says nothing."""
    is_class = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    written = re.sub(r"\w+\.", "", annotation.__name__ if is_class else str(annotation))
    return "" if annotation is inspect.Parameter.empty or written in ("Any", "object") else written


def _size_sequence(facts: Facts, given: Mapping[str, Spec | Tensor]) -> Iterator[Sizes]:
    """Yield shared sizes to try: those of the given inputs first, a batch of one and several texts per item last."""
    fixed = {role_of(name): tuple(value.shape) for name, value in given.items() if len(value.shape)}
    text = next((shape for role, shape in fixed.items() if role in (Role.IDS, Role.MASK) and len(shape) == 2), None)
    first = text[0] if text else next((shape[0] for shape in fixed.values()), _BATCH_SIZE)
    room = max(1, (facts.count("positions") or max(_LENGTHS)) - 2)  # some position tables start after a padding row
    lengths = [text[1]] if text else list(dict.fromkeys(min(length, room) for length in _LENGTHS))
    decoder = min(_DECODER_LENGTH, max(1, (facts.count("target positions") or _DECODER_LENGTH + 2) - 2))
    yield Sizes(first, lengths[0], decoder)
    if facts.is_encoder_decoder:
        yield Sizes(first, lengths[0], lengths[0])  # some heads search the second text for the end of the first
    for length in lengths[1:]:
        yield Sizes(first, length, decoder)
    if first != 1 and not fixed:
        yield Sizes(1, lengths[0], decoder)
    yield Sizes(first, lengths[0], decoder, _TEXTS_PER_ITEM)
