"""The search for inputs that a module accepts: guesses in order, and what its refusals say.

The best guess is tried first. A refusal that names a parameter adds that parameter; any other refusal leads to the next
guess. Nothing here knows an architecture.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sardonyx.errors import UsageError, reason
from sardonyx.frontend.inputs.candidates import Candidate, Role, Sizes, candidates, role_of
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.inputs.processors import processed
from sardonyx.frontend.inputs.reach import Reads
from sardonyx.frontend.inputs.values import Slot, draw
from sardonyx.frontend.running import Probe
from sardonyx.records.input_specs import Spec, check_names

# Which parameter of a forward a refusal is about: the one whose values the failing expression reads.
#
# The module is run once more on the inputs that it refused. Every tensor carries the names of the parameters it was
# computed from, so the innermost frame of the traceback that reads one of them names the parameter.

_MARK = "_sardonyx_parameters"  # attribute of a tensor: names of the parameters it was computed from


def parameters_at_fault(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], named: Mapping[str, Any], probe: Probe
) -> list[str]:
    """Names of the parameters that the failing expression reads, in the order of `named`; none where none is known.

    Args:
        module: refuses these arguments.
        args: by position.
        kwargs: by name.
        named: the same values by the names of their parameters.
        probe: runs the module and returns the exception it raises, if any.
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
    frames = list(_frames(refusal.__traceback__)) if refusal is not None else []
    for trace in reversed(frames):
        for names in _names_read(trace):
            held = [trace.tb_frame.f_locals[name] for name in names if name in trace.tb_frame.f_locals]
            found = _marks(held) | {name for name, value in named.items() if any(each is value for each in held)}
            if found:
                return [name for name in named if name in found]
    return []


class _Marking(TorchFunctionMode):
    """Marks results with the parameters of their operands."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if marks := _marks([args, kwargs]):
            _mark(result, marks)
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[Any, Any]", value).values():
            yield from _tensors(each)
    elif isinstance(value, (tuple, list)):
        for each in cast("Sequence[Any]", value):
            yield from _tensors(each)


def _mark(value: Any, names: frozenset[str]) -> None:
    for tensor in _tensors(value):
        if not isinstance(tensor, nn.Parameter):  # of the module, which stays as it is
            setattr(tensor, _MARK, names)


def _marks(values: Iterable[Any]) -> frozenset[str]:
    none = frozenset[str]()
    return none.union(*(getattr(tensor, _MARK, none) for tensor in _tensors(list(values))))


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _names_read(trace: TracebackType) -> Iterator[list[str]]:
    """Local names that the failing expression reads; then those of its whole lines, where an unpacking fails."""
    instructions = list(dis.get_instructions(trace.tb_frame.f_code))
    failing = next((each.positions for each in instructions if each.offset == trace.tb_lasti), None)
    if failing is None or failing.lineno is None or failing.end_lineno is None:
        return
    start, end = (failing.lineno, failing.col_offset or 0), (failing.end_lineno, failing.end_col_offset or 0)
    inside: list[str] = []
    beside: list[str] = []
    for each in instructions:
        place = each.positions
        if place is None or place.lineno is None or not each.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            continue
        loaded = cast("str | tuple[str, ...]", each.argval)  # a tuple where one instruction loads two
        names = [loaded] if isinstance(loaded, str) else list(loaded)
        if start <= (place.lineno, place.col_offset or 0) <= end:
            inside += names
        elif start[0] <= place.lineno <= end[0]:
            beside += names
    yield inside
    yield beside


_LENGTHS = (11, 16, 32, 64, 128)
_DECODER_LENGTH = 7
_MOST_PROBES = 120
_LONG = 20.0  # seconds of this thread, after which a few more probes are not worth the wait
_ENOUGH = 24  # probes, however long they take
_TELLING = (Role.IDS, Role.IMAGE, Role.WAVE, Role.FEATURES)  # what a module may miss without saying so
_SCALARS = {"int": "int64", "bool": "bool", "float": "float32"}  # annotations, and the type of the tensor to give
_PLAIN = re.compile(r"\b(int|bool|float|str|dict)\b")  # annotations of what is no tensor
_GENERAL = ("builtins", "typing", "collections.abc", "inspect")  # modules whose classes say little about an object
_CONTAINER = re.compile(r"(?i:dict|list|tuple|mapping|sequence|iterable)\[[^\]]*\]")
_SWITCHES = {"use_cache": False}  # a cache is an output nobody asked for


@dataclass(frozen=True, slots=True)
class Draft:
    """Inputs before they have values: which candidate of each parameter, at which sizes."""

    places: Mapping[str, int]  # parameter -> which of its candidates
    sizes: Sizes
    slots: tuple[Slot, ...] = ()  # what the text leaves room for
    made: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])  # what a processor makes

    @property
    def names(self) -> set[str]:
        """The parameters that get something."""
        return {*self.places, *self.made}


@dataclass(frozen=True, slots=True)
class Accepted:
    """Inputs that the module ran on, and the weights that the run reached."""

    draft: Draft
    guess: tuple[Candidate, ...]
    args: tuple[Tensor, ...]
    kwargs: dict[str, Any]
    reached: frozenset[int]

    @property
    def depends(self) -> bool:
        """Whether values of one input depend on another's, so that values of any kind will not do."""
        return bool(self.draft.slots or self.draft.made) or any(
            each.role in (Role.BOXES, Role.SIZES) for each in self.guess
        )


class Search:
    """One search for example inputs."""

    def __init__(self, module: nn.Module, given: dict[str, Spec | Tensor], seed: int, batch: int, probe: Probe) -> None:
        self.module, self._given, self.seed, self._probe = module, given, seed, probe
        self.facts = Facts(module)
        parameters = _signature(module).parameters.values()
        self.parameters = {p.name: p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        self._open = [p for p in parameters if p.kind is p.VAR_POSITIONAL] if not self.parameters else []
        self.parameters.update({p.name: p for p in self._open})
        if self.parameters or not any(p.kind is p.VAR_KEYWORD for p in parameters):
            check_names(given, self.parameters)
        self._sizes = list(_ladder(self.facts, given, batch))
        self._probes, self._began = 0, time.thread_time()
        self._first: tuple[dict[str, Tensor], Exception] | None = None  # the best guess, and why it was refused

    def run(self) -> Accepted:
        """Try guesses until one is accepted, with more parameters where the module asks for them.

        Raises:
            UsageError: none is accepted.
        """
        names = self._wanted()
        while not self._is_spent:
            accepted, refusals = self._try(names)
            if accepted is not None:
                return accepted
            more = self.missing(names, refusals) or self._unasked(names)
            if not more:
                break
            names = self.ordered([*names, *more])
        accepted = self._made(names) if not self._given else None
        if accepted is None:
            raise self._refused(names)
        return accepted

    @property
    def _is_spent(self) -> bool:
        """Whether the search has tried enough, by number or by time."""
        is_long = self._probes >= _ENOUGH and time.thread_time() - self._began > _LONG
        return is_long or self._probes >= _MOST_PROBES

    def _made(self, names: Sequence[str]) -> Accepted | None:
        """What the library's own processors make, beside the best guesses for the rest."""
        sizes = self._sizes[0]
        for made in processed(self.facts, sizes.batch, self.seed):
            taken = {name: value for name, value in made.items() if name in self.parameters}
            rest = [name for name in names if name not in taken]
            if taken and all(self.choices(name, sizes) for name in rest):
                answer = self.attempt(Draft(dict.fromkeys(rest, 0), sizes, made=taken))
                if isinstance(answer, Accepted):
                    return answer
        return None

    def _wanted(self) -> list[str]:
        """What has no default, the module's main input, what was given, and what belongs to it."""
        names = [p.name for p in self.parameters.values() if p.default is p.empty or p in self._open]
        main = getattr(self.module, "main_input_name", None)
        if isinstance(main, str) and main in self.parameters:
            names.append(main)
        if not names and self.parameters:
            names.append(next(iter(self.parameters)))
        names.extend(self._given)
        if not any(isinstance(value, Tensor) for value in self._given.values()):
            names.extend(self._companions(names))
        return self.ordered(names)

    def _companions(self, names: Sequence[str]) -> Iterator[str]:
        """Inputs that are optional, yet always fed in use."""
        is_text = any(role_of(name) is Role.IDS for name in names)
        has_segments = (self.facts.count("segments") or 0) > 1
        for name in self.parameters:
            is_mask = name == "attention_mask" and is_text
            is_segment = role_of(name) is Role.SEGMENTS and is_text and has_segments
            is_second = name.startswith("decoder_") and role_of(name) is Role.IDS and self.facts.is_encoder_decoder
            if (is_mask or is_segment or is_second) and not self._is_plain(name):
                yield name

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Names in the order of the signature."""
        chosen = list(dict.fromkeys(names))
        order = list(self.parameters)
        return sorted(chosen, key=lambda name: order.index(name) if name in order else len(order))

    def _try(self, names: Sequence[str]) -> tuple[Accepted | None, list[Exception]]:
        refusals: list[Exception] = []
        for draft in self._drafts(names):
            if self._is_spent:
                break
            self._probes += 1
            answer = self.attempt(draft)
            if isinstance(answer, Accepted):
                return answer, refusals
            self._first = self._first or (self._values(draft, self.seed), answer)
            refusals.append(answer)
            if len(refusals) == 1 and (self.missing(names, refusals) or self._lacks_one(names, answer)):
                break  # sizes are not the matter
        return None, refusals

    def attempt(self, draft: Draft) -> Accepted | Exception:
        """Run the module on a draft; the exception it answers with where it does not accept it."""
        guess = self._guess(draft)
        args, kwargs = self.arguments(draft, self.seed)
        with Reads() as reads:
            refusal = self._probe(self.module, args, kwargs)
        return refusal or Accepted(draft, guess, args, kwargs, frozenset(reads.places | reads.called))

    def arguments(self, draft: Draft, seed: int) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Values for a draft, as the module takes them."""
        return self._arguments(self._values(draft, seed))

    def _guess(self, draft: Draft) -> tuple[Candidate, ...]:
        longer = sum(slot.count for slot in draft.slots)
        sizes = replace(draft.sizes, length=draft.sizes.length + longer)
        chosen = {name: self.choices(name, sizes)[place] for name, place in draft.places.items()}
        for name, value in draft.made.items():
            dtype = self.facts.dtype if value.is_floating_point() else str(value.dtype).removeprefix("torch.")
            chosen[name] = Candidate(Spec(name, dtype, tuple(value.shape)), role_of(name))
        return tuple(chosen[name] for name in self.ordered(chosen))

    def _drafts(self, names: Sequence[str]) -> Iterator[Draft]:
        """Combinations of candidates, those nearest to the best guess first."""
        seen: set[tuple[tuple[Spec, int | None], ...]] = set()  # of what the module sees, whatever it is called
        for sizes in self._sizes:
            choices = [self.choices(name, sizes) for name in names]
            for name, found in zip(names, choices, strict=True):
                if not found:
                    raise self._underivable(name)
            places = itertools.product(*(range(len(found)) for found in choices))
            for place in sorted(itertools.islice(places, 4096), key=sum):
                chosen = (found[i] for found, i in zip(choices, place, strict=True))
                guess = tuple((each.spec, each.high) for each in chosen)
                if guess not in seen:
                    seen.add(guess)
                    yield Draft(dict(zip(names, place, strict=True)), sizes)

    def choices(self, name: str, sizes: Sizes) -> list[Candidate]:
        """What may be tried for a parameter; none where it takes no tensor."""
        given = self._given.get(name)
        if given is None:
            return [] if self._is_plain(name) else candidates(name, self.facts, sizes)
        if isinstance(given, Tensor):
            return [Candidate(Spec(name, str(given.dtype).removeprefix("torch."), tuple(given.shape)), Role.UNKNOWN)]
        guessed = candidates(name, self.facts, sizes)
        high = next((c.high for c in guessed if c.spec.dtype == given.dtype), None)
        role = next((c.role for c in guessed if c.spec.dtype == given.dtype), role_of(name))
        return [Candidate(given, role, high)]

    def _is_plain(self, name: str) -> bool:
        """Whether a parameter takes a number or a word and no tensor; its documentation knows better."""
        written, said = _written(self.parameters[name].annotation), self.facts.descriptions.get(name)
        is_tensor = "Tensor" in written or (said is not None and said.dims is not None)
        is_object = _is_own_class(self.parameters[name].annotation)
        return not is_tensor and (is_object or _PLAIN.search(written) is not None)

    def _values(self, draft: Draft, seed: int) -> dict[str, Tensor]:
        guess = self._guess(draft)
        generator = torch.Generator().manual_seed(seed)
        padded = any(candidate.spec.name == "attention_mask" for candidate in guess)
        values: dict[str, Tensor] = {}
        for candidate in guess:
            name = candidate.spec.name
            held = self._given.get(name, draft.made.get(name))
            is_data = name in draft.made and isinstance(held, Tensor) and held.is_floating_point()
            if isinstance(held, Tensor) and not is_data:
                values[name] = held
            else:
                values[name] = draw(candidate, self.facts, generator, padded=padded, slots=draft.slots)
        return values

    def _arguments(self, values: Mapping[str, Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """By position what must be there and comes first, by name the rest."""
        leading = list(
            itertools.takewhile(lambda p: p.default is p.empty and p.name in values, self.parameters.values())
        )
        positional = [p.name for p in leading if p.kind is not p.KEYWORD_ONLY]
        named: dict[str, Any] = {name: value for name, value in values.items() if name not in positional}
        named.update({name: off for name, off in _SWITCHES.items() if name in self.parameters})
        return tuple(values[name] for name in positional), named

    def missing(self, names: Iterable[str], refusals: Sequence[Exception]) -> list[str]:
        """Parameters that the module's own words ask for; of two ways to say the same, the plain one."""
        words = set(re.findall(r"\w+", " ".join(str(refusal) for refusal in refusals[:1]).lower()))
        there = set(names)
        asked = [name for name in self.parameters if name.lower() in words and name not in there]
        return [name for name in asked if role_of(name) not in (Role.UNKNOWN, Role.HIDDEN)]

    def _lacks_one(self, names: Sequence[str], refusal: Exception) -> bool:
        """Whether the module stumbles over an input that is not there."""
        return "NoneType" in str(refusal) and bool(self._unasked(names))

    def _unasked(self, names: Sequence[str]) -> list[str]:
        """The next optional parameter that carries data, where the refusal says nothing."""
        return [name for name in self.parameters if role_of(name) in _TELLING and name not in names][:1]

    def notes(self, accepted: Accepted) -> Iterator[str]:
        """How every input was generated."""
        for candidate in accepted.guess:
            if isinstance(self._given.get(candidate.spec.name), Tensor):
                continue
            below = f", below {candidate.high}" if candidate.high else ""
            yield f"{candidate.spec} generated as {candidate.role}{below}"
        for slot in accepted.draft.slots:
            yield f"{slot.count} {slot.kind} tokens ({slot.token}) in every row, as many as the {slot.kind} fills"

    def _underivable(self, name: str) -> UsageError:
        annotation = self.parameters[name].annotation
        takes = f", which takes {annotation.__name__} and no tensor" if _is_own_class(annotation) else ""
        return UsageError(
            f"no example can be derived for parameter '{name}' of {type(self.module).__name__}{takes}",
            hint=self._hint(name, "float32[2,16]", ", or the right type and sizes"),
        )

    def _refused(self, names: Sequence[str]) -> UsageError:
        kind = type(self.module).__name__
        if self._first is None:
            return UsageError(f"no example was found that {kind} accepts: it takes no inputs", hint="check its forward")
        values, refusal = self._first
        why = reason(refusal)
        tried = {name: _spec(name, value) for name, value in values.items()}
        if names and all(name in self._given for name in names):
            shown = ", ".join(map(str, tried.values()))
            return UsageError(f"{kind} does not accept {shown}: {why}", hint="check the types and sizes")
        name = self._at_fault(values)
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

    def _at_fault(self, values: Mapping[str, Tensor]) -> str | None:
        """The parameter that the refusal is about; of several, one whose name says nothing about its values."""
        args, kwargs = self._arguments(values)
        suspects = parameters_at_fault(self.module, args, kwargs, values, self._probe)
        guessed = [name for name in suspects or values if name not in self._given]
        unsure = [name for name in guessed if role_of(name) is Role.UNKNOWN]
        if not suspects and len(guessed) != 1:
            return None
        return next(iter(unsure or guessed), None)

    def _hint(self, name: str, tensor: str, remark: str) -> str:
        """What to give for a parameter: a scalar or a tensor on the command line, anything else from a function."""
        written = _written(self.parameters[name].annotation)
        if written in _SCALARS:
            return f"`inputs={{'{name}': {_SCALARS[written]}[]}}`"
        if written and "Tensor" not in _CONTAINER.sub("", written):
            return f"it is not a tensor: give it as file.py:factory, returning (module, {{'{name}': …}})"
        return f"`inputs={{'{name}': {tensor}}}`{remark}; or file.py:factory, returning (module, {{'{name}': …}})"


def _spec(name: str, value: Tensor) -> str:
    return str(Spec(name, str(value.dtype).removeprefix("torch."), tuple(value.shape)))


def _signature(module: nn.Module) -> inspect.Signature:
    """What the forward takes.

    Raises:
        UsageError: the module has no forward.
    """
    if getattr(module.forward, "__func__", None) is nn.Module.forward:  # torch puts one there that only raises
        kind, parts = type(module).__name__, ", ".join(name for name, _ in module.named_children())
        raise UsageError(f"{kind} has no forward", hint=f"export a module in it ({parts}): file.py:factory")
    try:
        return inspect.signature(module.forward, eval_str=True)
    except Exception:  # names that are only there while types are checked, in annotations that may hold any expression
        return inspect.signature(module.forward)


def _is_own_class(annotation: Any) -> bool:
    """Whether a parameter takes an object of a class that someone wrote, which is no tensor."""
    is_class = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    return is_class and not issubclass(annotation, Tensor) and annotation.__module__ not in _GENERAL


def _written(annotation: Any) -> str:
    """An annotation as it is written, with the names of its classes alone; empty where it says nothing."""
    is_class = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    written = re.sub(r"\w+\.", "", annotation.__name__ if is_class else str(annotation))
    return "" if annotation is inspect.Parameter.empty or written in ("Any", "object") else written


def _ladder(facts: Facts, given: Mapping[str, Spec | Tensor], batch: int) -> Iterator[Sizes]:
    """Shared sizes to try, those that given inputs have first; a batch of one last, for modules that take no more."""
    fixed = {role_of(name): tuple(value.shape) for name, value in given.items() if len(value.shape)}
    text = next((shape for role, shape in fixed.items() if role in (Role.IDS, Role.MASK) and len(shape) == 2), None)
    first = text[0] if text else next((shape[0] for shape in fixed.values()), batch)
    room = max(1, (facts.count("positions") or max(_LENGTHS)) - 2)  # some tables start after the padding row
    lengths = [text[1]] if text else list(dict.fromkeys(min(length, room) for length in _LENGTHS))
    decoder = min(_DECODER_LENGTH, max(1, (facts.count("target positions") or _DECODER_LENGTH + 2) - 2))
    yield Sizes(first, lengths[0], decoder)
    if facts.is_encoder_decoder:
        yield Sizes(first, lengths[0], lengths[0])  # some heads look for the end of the first text in the second
    for length in lengths[1:]:
        yield Sizes(first, length, decoder)
    if first != 1 and not fixed:
        yield Sizes(1, lengths[0], decoder)
