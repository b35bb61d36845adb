"""What a module says about its own inputs: settings of its config found by meaning, and its first layers.

Settings are looked for in the module's config and the configs nested in it, then on the module itself. Only what a
setting means is known here, never which architecture it belongs to.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

# What the documentation of a forward says about its parameters: element types, sizes, and what is for training only.
#
# `bbox (torch.LongTensor of shape (batch_size, sequence_length, 4), *optional*)` says what no annotation can.

_PARAMETER = re.compile(r"^(?P<indent>[ \t]*)(?P<name>\w+)[ \t]*\((?P<kind>.*)\)[ \t]*:", re.MULTILINE)
_SHAPE = re.compile(r"of shape\s*`?\s*\((?P<dims>[^()]*)\)")
_TRAINING = re.compile(r"\bloss(es)?\b|\btraining\b", re.IGNORECASE)
_TYPES = {"LongTensor": "int64", "IntTensor": "int32", "BoolTensor": "bool", "FloatTensor": "float"}


@dataclass(frozen=True, slots=True)
class Described:
    """One parameter as it is documented."""

    dtype: str | None  # "float": whatever the module computes in
    dims: tuple[str, ...] | None
    is_for_training: bool


def descriptions(module: nn.Module) -> Mapping[str, Described]:
    """The documented parameters of a module's forward by name."""
    text = inspect.getdoc(module.forward) or ""
    found = list(_PARAMETER.finditer(text))
    ends = [each.start() for each in found[1:]] + [len(text)]
    return {
        each["name"]: _described(each["kind"], text[each.end() : end])
        for each, end in zip(found, ends, strict=False)
        if "`" in each["kind"]
    }


def _described(kind: str, words: str) -> Described:
    shape = _SHAPE.search(kind)
    dims = tuple(dim.strip() for dim in shape["dims"].split(",") if dim.strip()) if shape else None
    dtype = next((dtype for name, dtype in _TYPES.items() if name in kind), None)
    return Described(dtype, dims, bool(_TRAINING.search(words)))


# The same meaning under the names that configs give it, the commonest first.
_MEANINGS = {
    "vocabulary": ("vocab_size", "n_vocab", "vocabulary_size"),
    "segments": ("type_vocab_size", "type_vocab_sizes"),
    "coordinates": ("max_2d_position_embeddings",),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length"),
    "target positions": ("max_target_positions", "decoder_max_position_embeddings", "max_position_embeddings"),
    "source positions": ("max_source_positions",),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "width": ("hidden_size", "d_model", "n_embd", "dim", "embed_dim"),
    "image": ("image_size", "img_size", "input_size"),
    "channels": ("num_channels", "in_channels", "in_chans", "num_input_channels"),
    "frames": ("num_frames",),
    "mel bins": ("num_mel_bins", "n_mels", "feature_size", "input_feat_per_channel", "feature_projection_input_dim"),
    "mel frames": ("max_length", "spectrogram_length"),
    "image tokens": ("image_seq_length", "mm_tokens_per_image", "num_image_tokens", "num_query_tokens"),
    "padding": ("pad_token_id",),
    "end": ("eos_token_id",),
    "start": ("decoder_start_token_id",),
    "beginning": ("bos_token_id",),
}
_PLACEHOLDER = re.compile(r"(?P<kind>image|video|audio|speech)_token_(id|index)")


class Facts:
    """Questions about one module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.descriptions = descriptions(module)
        self._places = list(_places(module))

    def find(self, meaning: str) -> Any:
        """The first setting with this meaning, nearest to the module first; None where there is none."""
        return next(self._all(meaning), None)

    def _all(self, meaning: str) -> Iterator[Any]:
        found = (_look(place, name) for place in self._places for name in _MEANINGS[meaning])
        return (value for value in found if value is not None)

    def count(self, meaning: str) -> int | None:
        """A setting that must be a positive number."""
        return _positive(self.find(meaning))

    def setting(self, name: str) -> int | None:
        """A positive number of the config under its own name."""
        found = (_positive(_look(place, name)) for place in self._places)
        return next((value for value in found if value is not None), None)

    @property
    def widths(self) -> list[int]:
        """All hidden sizes of the config and of those inside it."""
        return list(dict.fromkeys(width for width in map(_positive, self._all("width")) if width is not None))

    def placeholders(self, vocabulary: int) -> dict[str, int]:
        """Tokens that stand for something other than text, by what they stand for: `image_token_id` is one."""
        found: dict[str, int] = {}
        for place in self._places:
            held = cast("Mapping[str, Any]", place if isinstance(place, Mapping) else vars(place))
            for name, value in held.items():
                match = _PLACEHOLDER.fullmatch(name)
                if match and isinstance(value, int) and 0 <= value < vocabulary:
                    found.setdefault(match["kind"], value)
        return found

    def token(self, meaning: str, vocabulary: int) -> int | None:
        """A special token that lies in the vocabulary."""
        value = self.find(meaning)
        first: Any = next(iter(cast("Sequence[Any]", value)), None) if isinstance(value, (list, tuple)) else value
        return first if isinstance(first, int) and 0 <= first < vocabulary else None

    @property
    def image(self) -> tuple[int, int] | None:
        """Height and width of a picture."""
        value = self.find("image")
        if isinstance(value, int):
            return value, value
        if isinstance(value, Mapping):
            sizes = list(cast("Mapping[str, Any]", value).values())
        else:
            sizes = list(cast("Sequence[Any]", value))[-2:] if isinstance(value, (list, tuple)) else []
        return (sizes[0], sizes[1]) if len(sizes) == 2 and all(isinstance(size, int) for size in sizes) else None

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether a second sequence is decoded from the first."""
        return any(getattr(place, "is_encoder_decoder", False) is True for place in self._places)

    @property
    def vocabulary(self) -> int | None:
        """How many token ids there are: what the config says, and never more than the first table has rows."""
        tables = [layer.num_embeddings for layer in self.module.modules() if isinstance(layer, nn.Embedding)]
        said = [value for value in map(_positive, self._all("vocabulary")) if value is not None]
        entry = self._entry()
        if entry is not None:
            return min(said[0], entry) if said else entry
        exact = next((value for value in said if value in tables), None)
        if exact is not None or not tables:
            return exact or next(iter(said), None)
        return min(said[0], max(tables)) if said else tables[0]

    def _entry(self) -> int | None:
        """How many rows the table has that the module itself says its tokens are looked up in."""
        ask: Any = getattr(self.module, "get_input_embeddings", None)
        try:
            table = ask() if callable(ask) else None
        except (
            NotImplementedError,
            AttributeError,
            TypeError,
            RuntimeError,
        ):  # a model without one
            return None
        return table.num_embeddings if isinstance(table, nn.Embedding) else None

    @property
    def dtype(self) -> str:
        """The element type that the module computes in, as it is written in a specification."""
        kinds = (tensor.dtype for tensor in self.module.parameters() if tensor.is_floating_point())
        return str(next(kinds, torch.float32)).removeprefix("torch.")


def _positive(value: Any) -> int | None:
    """A positive number; of several, the least."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, int) for each in cast("Any", value)):
        value = min(cast("Sequence[int]", value))
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _look(place: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", place).get(name) if isinstance(place, Mapping) else getattr(place, name, None)


def _places(module: nn.Module) -> Iterator[Any]:
    """The module's config, the configs inside it level by level, and the module with its catalogue entry."""
    level: list[Any] = [config for config in (getattr(module, "config", None),) if hasattr(config, "__dict__")]
    while level:
        yield from level
        held = [value for place in level for value in cast("dict[str, Any]", vars(place)).values()]
        level = [value for value in held if hasattr(value, "to_dict")]
    yield module
    entry = getattr(module, "default_cfg", None) or getattr(module, "pretrained_cfg", None)
    if isinstance(entry, Mapping):
        yield entry
