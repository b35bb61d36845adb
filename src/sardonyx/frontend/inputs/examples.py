"""Example inputs from the module itself: its signature, documentation and config suggest some, and running it decides.

What the module needs comes first; then optional inputs are added that make more of it run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from sardonyx.frontend.inputs.candidates import Role, candidates, role_of
from sardonyx.frontend.inputs.processors import processed
from sardonyx.frontend.inputs.reach import place
from sardonyx.frontend.inputs.search import Accepted, Draft, Search
from sardonyx.frontend.inputs.values import Slot
from sardonyx.frontend.running import Probe, probe, run_widened_if_needed
from sardonyx.frontend.tracing.structure import Flat
from sardonyx.records.input_specs import Spec

# Optional inputs of a module: those that make more of it run are added, one after another, and the rest is named.
#
# A model that takes an image and a text also runs on the text alone, and much of it is never reached. Which inputs
# reach
# the rest is found by trying. If the token ids must contain placeholders for another input, the config names the token,
# and the module's error message says how many.

_MOST_PROBES = 48
_MOST_CANDIDATES = 3  # of one parameter
_LONGEST_SLOT = 4096
_DATA = (Role.IMAGE, Role.WAVE, Role.FEATURES, Role.BOXES, Role.IDS)  # what a processor makes of something
_OTHERS = (Role.UNKNOWN, Role.HIDDEN, Role.MASK)  # tried last, because most of them stand for something else
_ABOUT_ROOM = re.compile(r"token|scatter|indexing|placeholder", re.IGNORECASE)


class Extension:
    """One module's optional inputs."""

    def __init__(self, search: Search, accepted: Accepted) -> None:
        self._search, self._accepted = search, accepted
        self._weights = frozenset(map(place, search.module.parameters()))
        self._probes = 0

    def run(self) -> tuple[Accepted, tuple[str, ...]]:
        """The inputs with all that was worth adding, and a note on what was left out."""
        data = [name for name in self._optional() if role_of(name) in _DATA]
        others = [name for name in self._optional() if role_of(name) in _OTHERS]
        for name in data:
            if role_of(name) is Role.BOXES or not self._is_complete:
                self._add(name)
        if data and not self._is_complete:
            self._add_made()
        for name in others:
            if not self._is_complete:
                self._add(name)
        self._leave_room()
        self._write_out()
        for name in list(self._optional()):
            if self._accepted.draft.slots and role_of(name) is Role.SEGMENTS:
                self._add(name)
        left_out = [name for name in data if name not in self._accepted.draft.names]
        notes = (f"optional inputs left out: {', '.join(left_out)}",) if left_out else ()
        return self._accepted, notes

    @property
    def _is_complete(self) -> bool:
        return self._accepted.reached >= self._weights

    def _optional(self) -> Iterator[str]:
        """Parameters with a default that may take a tensor of data."""
        for name, parameter in self._search.parameters.items():
            said = self._search.facts.descriptions.get(name)
            is_tensor = parameter.annotation is parameter.empty or "Tensor" in str(parameter.annotation)
            is_data = said is None or not said.is_for_training
            if name not in self._accepted.draft.names and is_tensor and is_data and _is_open(parameter):
                yield name

    def _add(self, name: str) -> None:
        """Keep the first candidate that the module accepts and that makes more of it run."""
        draft = self._accepted.draft
        if name in draft.names:
            return
        known = candidates(name, self._search.facts, draft.sizes, layers=False)
        for choice in range(min(len(known), _MOST_CANDIDATES)):
            answer = self._try(self._with(draft, {name: choice}), name)
            if isinstance(answer, Accepted) and self._is_better(answer, name):
                self._accepted = answer
                return

    def _add_made(self) -> None:
        """Keep what the library's processors make of a picture or a sound, where it makes more of the module run."""
        draft = self._accepted.draft
        for made in processed(self._search.facts, draft.sizes.batch, self._search.seed):
            taken = self._taken(made)
            if not taken.keys() - draft.names:
                continue
            kept = {name: place for name, place in draft.places.items() if name not in taken}
            name = next(iter(taken))
            answer = self._try(replace(draft, places=kept, made={**draft.made, **taken}), name)
            if isinstance(answer, Accepted) and self._is_better(answer, name):
                self._accepted = answer
                return

    def _leave_room(self) -> None:
        """Room in the text for a picture that the module takes without: it would be computed and then dropped."""
        draft, facts = self._accepted.draft, self._search.facts
        token, count = facts.placeholders(facts.vocabulary or 0).get("image"), facts.count("image tokens")
        has_picture = any(role_of(name) is Role.IMAGE for name in draft.names)
        if token is None or count is None or draft.slots or not has_picture:
            return
        answer = self._attempt(replace(draft, slots=(Slot("image", token, count),)))
        if isinstance(answer, Accepted):
            self._accepted = answer

    def _write_out(self) -> None:
        """As many placeholders as the module makes of a single one.

        Some models replace one placeholder by all positions of a sound, by code that no exporter can follow. Processors
        write the placeholders out, and such models then leave the length of the text as it is.
        """
        accepted, draft = self._accepted, self._accepted.draft
        if [slot.count for slot in draft.slots] != [1]:
            return
        answer = Flat(run_widened_if_needed(self._search.module, accepted.args, accepted.kwargs))
        before = draft.sizes.length + 1
        lengths = [leaf.tensor.shape[1] for leaf in answer.leaves if leaf.tensor.dim() == 3]
        if lengths and before < lengths[0] < _LONGEST_SLOT:
            slot = replace(draft.slots[0], count=lengths[0] - before + 1)
            written = self._attempt(replace(draft, slots=(slot,)))
            if isinstance(written, Accepted):
                self._accepted = written

    def _taken(self, made: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What of a processor's answer the forward takes; the mask of a sound goes by the name of what it masks."""
        taken: dict[str, Tensor] = {}
        stems = {word.rstrip("s") for name in made for word in name.split("_")} - {"input", "attention", "mask"}
        for name, value in made.items():
            if role_of(name) is Role.MASK and name in self._accepted.draft.names:
                others = [each for each in self._optional() if role_of(each) is Role.MASK]
                name = next((each for each in others if stems & {w.rstrip("s") for w in each.split("_")}), "")
            if name in self._search.parameters:
                taken[name] = value
        return taken

    def _is_better(self, answer: Accepted, name: str) -> bool:
        """Boxes, and segments that mark what is no text, are read by layers that run without them too."""
        gained = len(answer.reached & self._weights) > len(self._accepted.reached & self._weights)
        return gained or role_of(name) in (Role.BOXES, Role.SEGMENTS)

    def _with(self, draft: Draft, more: Mapping[str, int]) -> Draft:
        places = {**draft.places, **more}
        return replace(draft, places={name: places[name] for name in self._search.ordered(places)})

    def _try(self, draft: Draft, name: str, rounds: int = 3) -> Accepted | Exception:
        """The module's answer, after it was given what it asked for: other inputs by name, and room in the text."""
        answer = self._attempt(draft)
        if isinstance(answer, Accepted) or rounds == 0:
            return answer
        asked = [each for each in self._search.missing(draft.names, [answer]) if self._is_known(each, draft)]
        if asked:
            return self._try(self._with(draft, dict.fromkeys(asked, 0)), name, rounds - 1)
        for slot in self._slots(name, answer, draft):
            found = self._try(replace(draft, slots=(*draft.slots, slot)), name, rounds - 1)
            if isinstance(found, Accepted):
                return found
        return answer

    def _is_known(self, name: str, draft: Draft) -> bool:
        return bool(candidates(name, self._search.facts, draft.sizes, layers=False))

    def _attempt(self, draft: Draft) -> Accepted | Exception:
        if self._probes >= _MOST_PROBES:
            return TimeoutError("too many tries")
        self._probes += 1
        return self._search.attempt(draft)

    def _slots(self, name: str, refusal: Exception, draft: Draft) -> Iterator[Slot]:
        """Room for this input in the text: counts that the refusal names, of tokens or elements, in all or in a row."""
        facts = self._search.facts
        tokens = facts.placeholders(facts.vocabulary or 0)
        own = _kind_of(name)
        kinds = [own] if own in tokens else list(tokens)
        if not _ABOUT_ROOM.search(str(refusal)) or any(slot.kind in kinds for slot in draft.slots):
            return
        numbers = [int(number) for number in re.findall(r"\d+", str(refusal))]
        parts = (draft.sizes.batch, 1, *(draft.sizes.batch * width for width in facts.widths))
        counts = [number // part for part in parts for number in numbers if number % part == 0]
        for kind in kinds:
            for count in dict.fromkeys(count for count in counts if 0 < count <= _LONGEST_SLOT):
                yield Slot(kind, tokens[kind], count)


def _is_open(parameter: inspect.Parameter) -> bool:
    return parameter.default is None and parameter.kind is not parameter.VAR_POSITIONAL


def _kind_of(name: str) -> str:
    """What the tokens are called that stand for a parameter's data."""
    if role_of(name) in (Role.WAVE, Role.FEATURES):
        return "audio"
    return "video" if "video" in name else "image"


@dataclass(frozen=True, slots=True)
class Example:
    """Arguments that the module accepts, and what is worth knowing about how they were found."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    notes: tuple[str, ...] = ()
    again: Callable[[int], Example] | None = None  # other values by seed, where inputs depend on each other

    def variants(self, module: nn.Module, seeds: Iterable[int]) -> list[Example]:
        """Other values of the same inputs that the module accepts; none where any values will do."""
        made = [self.again(seed) for seed in seeds] if self.again is not None else []
        return [each for each in made if probe(module, each.args, each.kwargs) is None]


def derive(
    module: nn.Module,
    *,
    given: Mapping[str, Spec | Tensor] | None = None,
    seed: int = 0,
    batch: int = 2,
    probe: Probe = probe,
) -> Example:
    """Example inputs that the module runs on.

    Args:
        module: anything with a forward; it is run in eval mode and left as it was.
        given: inputs that are fixed, by parameter name: their values, or a specification to generate them by;
            no optional inputs are added to them.
        seed: of the generated values.
        batch: how many items a batch has, where the module lets us choose.
        probe: tries the module; the exception it answers with, if any.

    Raises:
        UsageError: no input was found that the module accepts, or it refuses what was given.
    """
    search = Search(module, dict(given or {}), seed, batch, probe)
    accepted, notes = search.run(), ()
    if not given:
        accepted, notes = Extension(search, accepted).run()

    def again(seed: int) -> Example:
        return Example(*search.arguments(accepted.draft, seed))

    return Example(
        accepted.args,
        accepted.kwargs,
        (*search.notes(accepted), *notes),
        again if accepted.depends else None,
    )
