"""Small configs of transformers' model types, by rule: nothing here knows an architecture.

Widths are divided by one ratio in the whole config, so that sizes that depend on each other still do. Counts of heads
stay, layers are cut to as many as show every kind of layer, vocabularies are cut and token ids moved into them. If the
model cannot be built from this config, other cuts are tried: fewer heads of the same size, settings that the config
class would derive, the default config. A token that stands for a picture or a sound gets an id if the config has none:
without it the model takes neither.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 512
DEEPEST = 6

_TOKEN = re.compile(r"(_id|_ids|_token|_index)$")
_PLACEHOLDER = re.compile(r"(image|video|audio)_token_(id|index)$")
_DEPTH = re.compile(r"layers?$|blocks$|depths?$")
_IMAGE = re.compile(r"(image|img|input)_?size|resolution")
_WIDTH = re.compile(r"dim|size|width|hidden|channels|rank|inner|d_|section")
_KEPT = re.compile(r"patch|kernel|window|stride|group|chunk|merge|pool|tile|rate|hop|fft|period|expan|conv_dim_")
_PLACES = re.compile(r"ind(ex(es)?|ices)$|idxs?$|_layers$")


@dataclass(frozen=True)
class Cut:
    """How far a config is made smaller."""

    ratio: int  # of widths
    layers: int | None  # None: as many as there are
    heads: bool = False  # fewer heads of the same size: a model may set sizes of its own that depend on the size
    derived: bool = False  # cut settings that the class derives from others too: it may derive constants

    def __str__(self) -> str:
        """As the table says it."""
        depth = "all layers" if self.layers is None else f"{self.layers} layers"
        widths = f"widths{' and heads' * self.heads} / {self.ratio}"
        return "default" if self.ratio == 1 and self.layers is None else f"{widths}, {depth}"


# If the sizes of a config disagree after a cut, the cause is either the widths or the layers: neither is cut in turn.
CUTS = (
    *(Cut(8, 2), Cut(8, 2, heads=True), Cut(8, 2, derived=True)),
    *(Cut(1, 2), Cut(8, None), Cut(1, None), Cut(4, 2), Cut(4, None), Cut(2, None)),
)


@dataclass
class _Shrinker:
    """One cut, applied to a config and all that is nested in it."""

    cut: Cut
    base: type
    tokens: dict[int | str, int] = field(default_factory=dict[int | str, int])  # a token stays the same everywhere

    def config(self, config: Any) -> Any:
        """A config of the same class, smaller; what its class derives from other settings is derived anew."""
        fresh = type(config)()
        depth = self._depth(config)
        values: dict[str, Any] = {}
        for name, parameter in inspect.signature(type(config)).parameters.items():
            value = getattr(config, name, None)
            is_nested = isinstance(value, (self.base, Mapping))
            is_own = is_nested or value != getattr(fresh, name, None)  # set by the config that this one is nested in
            if value is None and _PLACEHOLDER.search(name):
                values[name] = self._free_token(name)
            elif is_own or parameter.default is not None or self.cut.derived:
                values[name] = self._value(name, value, depth)
        return type(config)(**{name: value for name, value in values.items() if value is not None})

    def _depth(self, config: Any) -> tuple[int, int] | None:
        """How many layers there are, and how many are left: enough to show every kind of layer."""
        if self.cut.layers is None:
            return None
        kinds = [value for value in vars(config).values() if _is_list_of(value, str) and len(value) > self.cut.layers]
        counts = {len(value) for value in kinds if len(set(value)) > 1}
        have = getattr(config, "num_hidden_layers", None)
        have = have if isinstance(have, int) else max(counts, default=0)
        shown = [_shows_all(value) for value in kinds if len(value) == have and len(set(value)) > 1]
        return have, min(DEEPEST, max([self.cut.layers, *shown]))

    def _value(self, name: str, value: Any, depth: tuple[int, int] | None) -> Any:
        if isinstance(value, self.base):
            return self.config(value)
        if isinstance(value, Mapping):
            changed = {key: self._value(str(key), below, depth) for key, below in value.items()}
            return changed if any(changed[key] is not value[key] for key in value) else value
        if isinstance(value, (list, tuple)):
            return self._list(name, value, depth)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._number(name, value, depth)
        return value

    def _list(self, name: str, value: Sequence[Any], depth: tuple[int, int] | None) -> Any:
        have, left = depth or (0, 0)
        if _is_list_of(value, int) and _PLACES.search(name) and left:
            inside = [place for place in value if place < left]
            return type(value)(inside or range(max(0, left - len(value)), left))
        if left and len(value) == have > DEEPEST:
            value = value[:left]
        if _is_list_of(value, int) and _IMAGE.search(name):  # by the same number of patches in each direction
            value = type(value)([min(value)] * len(value)) if self.cut.ratio > 1 else value
        changed = type(value)(self._value(name, each, depth) for each in value)
        return changed if list(changed) != list(value) else value

    def _number(self, name: str, value: int, depth: tuple[int, int] | None) -> int:
        if _TOKEN.search(name):
            return self._token(value)
        if "vocab" in name:
            return min(value, VOCABULARY)
        if _DEPTH.search(name):
            return min(value, depth[1]) if depth and value > 0 else value
        if self.cut.ratio == 1:
            return value
        if _IMAGE.search(name):
            return value // 4 if value >= 128 else value
        is_count = "head" in name and not re.search(r"dim|size|width|hidden", name)
        if "head" in name and is_count != self.cut.heads:
            return value
        is_width = value >= self.cut.ratio if is_count else _WIDTH.search(name) and value >= 16
        if _KEPT.search(name) or not (is_width or value >= 48) or value % self.cut.ratio:
            return value
        return value // self.cut.ratio

    def _token(self, value: int) -> int:
        if value < VOCABULARY:
            return value
        return self._free_token(value)

    def _free_token(self, key: int | str) -> int:
        """One of the last ids of the vocabulary, the same for the same key."""
        return self.tokens.setdefault(key, VOCABULARY - 1 - len(self.tokens))


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(type(each) is kind for each in value)


def _shows_all(kinds: Sequence[str]) -> int:
    """How many of the first layers hold every kind."""
    return max(kinds.index(kind) for kind in set(kinds)) + 1


def smaller(kind: type, base: type, accepts: Callable[[Any], bool]) -> Iterator[tuple[Any, Cut]]:
    """Configs of a class, the smallest first, that the model can be built from."""
    fault: Exception | None = None
    for cut in CUTS:
        try:
            config = _Shrinker(cut, base).config(kind())
            accepted = accepts(config)
        except Exception as error:  # a config that a cut made inconsistent fails in any way it likes
            fault = error if cut == Cut(1, None) else fault or error
            continue
        if accepted:
            fault = None
            yield config, cut
    if fault is not None:
        raise fault
