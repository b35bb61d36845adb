"""Optional inputs of a module: those that make more of it run are added, one after another, and the rest is named.

A model that takes a picture beside a text runs on the text alone, and much of it is never reached. Which inputs reach
the rest follows from trying. Where a text has to leave room for what another input brings, the config names the token,
and the module's refusal says how many.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sardonyx.source.inputs.candidates import Role, candidates, role_of
from sardonyx.source.inputs.reach import place
from sardonyx.source.inputs.search import Accepted, Draft, Search
from sardonyx.source.inputs.values import Slot

_MOST_PROBES = 80
_MOST_CANDIDATES = 4  # of one parameter
_LONGEST_SLOT = 4096
_DATA = (Role.IMAGE, Role.WAVE, Role.FEATURES, Role.BOXES, Role.IDS)  # what a processor makes of something
_OTHERS = (Role.UNKNOWN, Role.HIDDEN, Role.MASK)  # tried last, because most of them stand for something else


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
        for name in (*data, *others):
            is_complete = self._accepted.reached >= self._weights
            if name not in self._accepted.draft.places and not (is_complete and role_of(name) is not Role.BOXES):
                self._add(name)
        left_out = [name for name in data if name not in self._accepted.draft.places]
        notes = (f"optional inputs left out: {', '.join(left_out)}",) if left_out else ()
        return self._accepted, notes

    def _optional(self) -> Iterator[str]:
        """Parameters with a default that may take a tensor of data."""
        for name, parameter in self._search.parameters.items():
            said = self._search.facts.descriptions.get(name)
            is_tensor = parameter.annotation is parameter.empty or "Tensor" in str(parameter.annotation)
            is_data = said is None or not said.is_for_training
            if name not in self._accepted.draft.places and is_tensor and is_data and _is_open(parameter):
                yield name

    def _add(self, name: str) -> None:
        """Keep the first candidate that the module accepts and that makes more of it run."""
        draft = self._accepted.draft
        known = candidates(name, self._search.facts, draft.sizes, layers=False)
        for choice in range(min(len(known), _MOST_CANDIDATES)):
            answer = self._try(self._with(draft, {name: choice}), name)
            if isinstance(answer, Accepted) and self._is_better(answer, name):
                self._accepted = answer
                return

    def _is_better(self, answer: Accepted, name: str) -> bool:
        """Boxes are read by layers that run without them too, on zeros."""
        gained = len(answer.reached & self._weights) > len(self._accepted.reached & self._weights)
        return gained or role_of(name) is Role.BOXES

    def _with(self, draft: Draft, more: Mapping[str, int]) -> Draft:
        places = {**draft.places, **more}
        return replace(draft, places={name: places[name] for name in self._search.ordered(places)})

    def _try(self, draft: Draft, name: str) -> Accepted | Exception:
        """The module's answer, after it was given what it asked for: other inputs by name, and room in the text."""
        answer = self._attempt(draft)
        if isinstance(answer, Accepted):
            return answer
        asked = self._search.missing(draft.places, [answer])
        if asked:
            draft = self._with(draft, dict.fromkeys(asked, 0))
            answer = self._attempt(draft)
        if isinstance(answer, Accepted):
            return answer
        for slot in self._slots(name, answer, draft):
            answer = self._attempt(replace(draft, slots=(*draft.slots, slot)))
            if isinstance(answer, Accepted):
                return answer
        return answer

    def _attempt(self, draft: Draft) -> Accepted | Exception:
        if self._probes >= _MOST_PROBES:
            return TimeoutError("too many tries")
        self._probes += 1
        return self._search.attempt(draft)

    def _slots(self, name: str, refusal: Exception, draft: Draft) -> Iterator[Slot]:
        """Room for this input in the text: counts that the refusal names, of tokens or elements, in all or in a row."""
        if "token" not in str(refusal).lower():
            return
        facts = self._search.facts
        tokens = facts.placeholders(facts.vocabulary or 0)
        numbers = [int(number) for number in re.findall(r"\d+", str(refusal))]
        parts = (draft.sizes.batch, 1, draft.sizes.batch * (facts.count("width") or 1))
        counts = [number // part for part in parts for number in numbers if number % part == 0]
        for kind in sorted(tokens, key=lambda kind: kind != _kind_of(name)):
            for count in dict.fromkeys(count for count in counts if 0 < count <= _LONGEST_SLOT):
                yield Slot(kind, tokens[kind], count)


def _is_open(parameter: inspect.Parameter) -> bool:
    return parameter.default is None and parameter.kind is not parameter.VAR_POSITIONAL


def _kind_of(name: str) -> str:
    """What the tokens are called that stand for a parameter's data."""
    if role_of(name) in (Role.WAVE, Role.FEATURES):
        return "audio"
    return "video" if "video" in name else "image"
