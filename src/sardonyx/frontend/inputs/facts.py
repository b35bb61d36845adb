"""Reads what a module says about its inputs: the settings of its config by meaning, and its documentation.

Settings are looked up in the module's config and the configs nested in it, then on the module itself. Settings are
known by meaning, not by architecture.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from msgspec import Struct
from torch import nn

# `bbox (torch.LongTensor of shape (batch_size, sequence_length, 4), *optional*)` in the documentation of a forward
_PARAMETER = re.compile(r"^(?P<indent>[ \t]*)(?P<name>\w+)[ \t]*\((?P<kind>.*)\)[ \t]*:", re.MULTILINE)
_SHAPES = re.compile(r"(?:of shape|\bor)\s*`?\s*\(([^()]*)\)")
# "The `sequence_length` here is equal to `config.context_length` + `max(config.lags_sequence)`, which …"
_DEFINITION = re.compile(r"(?P<word>\w+[ _]\w+)`? here is equal to (?P<terms>.+?)(?:,|\.(?=\s|$))", re.DOTALL)
_TRAINING = re.compile(r"\bloss(es)?\b|\btraining\b", re.IGNORECASE)
_TYPES = {"LongTensor": "int64", "IntTensor": "int32", "BoolTensor": "bool", "FloatTensor": "float"}
# The names of a setting in configs by meaning, the most common first.
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


class Described(Struct, frozen=True):
    """The documentation of one parameter."""

    dtype: str | None  # "float" is the type that the module computes in
    shapes: tuple[tuple[str, ...], ...]  # words or numbers for the sizes; several if alternatives are documented
    is_for_training: bool
    definitions: Mapping[str, tuple[str, ...]]  # the terms of sizes that are sums of settings


def descriptions(module: nn.Module) -> Mapping[str, Described]:
    """Return the documented parameters of a module's forward by name."""
    text = inspect.getdoc(module.forward) or ""
    matches = (match for match in _PARAMETER.finditer(text) if "`" in match["kind"])
    described: dict[str, Described] = {}
    for match in matches:  # a description ends at the next line that is not indented further than its name
        kind, end = match["kind"], re.compile(rf"^[ \t]{{0,{len(match['indent'])}}}\S", re.MULTILINE)
        stop = end.search(text, match.end())
        description = text[match.end() : stop.start() if stop else len(text)]
        shapes = (dims.split(",") for dims in _SHAPES.findall(kind))
        described[match["name"]] = Described(
            dtype=next((dtype for name, dtype in _TYPES.items() if name in kind), None),
            shapes=tuple(tuple(dim.strip() for dim in dims if dim.strip()) for dims in shapes),
            is_for_training=bool(_TRAINING.search(description)),
            definitions={
                found["word"].replace(" ", "_"): tuple(found["terms"].replace("`", "").split("+"))
                for found in _DEFINITION.finditer(description)
            },
        )
    return described


class Facts:
    """Looks up facts about one module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.descriptions = descriptions(module)
        self._sources = list(_sources(module))

    def find(self, meaning: str) -> Any:
        """Return the setting with this meaning that is nearest to the module, or None."""
        return next(self._all(meaning), None)

    def _all(self, meaning: str) -> Iterator[Any]:
        values = (_look(source, name) for source in self._sources for name in _MEANINGS[meaning])
        return (value for value in values if value is not None)

    def count(self, meaning: str) -> int | None:
        """Return a setting that must be a positive number, or None."""
        return _positive(self.find(meaning))

    def setting(self, name: str) -> int | None:
        """Return a positive number of the config by name, or None."""
        values = (_positive(_look(source, name)) for source in self._sources)
        return next((value for value in values if value is not None), None)

    def defined(self, word: str, name: str) -> int | None:
        """Return a size that the documentation of this parameter, or of another, defines as a sum of settings."""
        documented = sorted(self.descriptions.items(), key=lambda item: item[0] != name)
        terms = next((each.definitions[word] for _, each in documented if word in each.definitions), ())
        sizes = [self._term(*re.findall(r"\w+", term.replace("config.", ""))) for term in terms]
        return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)

    def _term(self, *words: str) -> int | None:
        """Return a setting, or the largest number of one: the words are its name, or `max` and its name."""
        value = next((value for source in self._sources if (value := _look(source, words[-1])) is not None), None)
        if words[0] == "max" and isinstance(value, (list, tuple)):
            value = max(cast("Sequence[Any]", value), default=None)
        return value if isinstance(value, int) and value >= 0 else None

    @property
    def tables(self) -> list[int]:
        """The lengths of lists of embedding tables, which read a column of token ids each."""
        lists = [list(layer) for layer in self.module.modules() if isinstance(layer, nn.ModuleList)]
        return [len(layers) for layers in lists if len(layers) > 1 and all(isinstance(t, nn.Embedding) for t in layers)]

    @property
    def widths(self) -> list[int]:
        """All hidden sizes of the config and of nested configs."""
        return list(dict.fromkeys(width for width in map(_positive, self._all("width")) if width is not None))

    def placeholders(self, vocabulary: int) -> dict[str, int]:
        """Return the placeholder tokens for other inputs than text by kind, such as `image_token_id`."""
        tokens: dict[str, int] = {}
        for source in self._sources:
            settings = cast("Mapping[str, Any]", source if isinstance(source, Mapping) else vars(source))
            for name, value in settings.items():
                match = _PLACEHOLDER.fullmatch(name)
                if match and isinstance(value, int) and 0 <= value < vocabulary:
                    tokens.setdefault(match["kind"], value)
        return tokens

    def token(self, meaning: str, vocabulary: int) -> int | None:
        """Return a special token if it is in the vocabulary, or None."""
        value = self.find(meaning)
        first: Any = next(iter(cast("Sequence[Any]", value)), None) if isinstance(value, (list, tuple)) else value
        return first if isinstance(first, int) and 0 <= first < vocabulary else None

    @property
    def image(self) -> tuple[int, int] | None:
        """Height and width of an image."""
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
        """Whether the model decodes a second sequence from the first."""
        return any(getattr(source, "is_encoder_decoder", False) is True for source in self._sources)

    @property
    def vocabulary(self) -> int | None:
        """The number of token ids: the config's, limited by the rows of the embedding table."""
        tables = [layer.num_embeddings for layer in self.module.modules() if isinstance(layer, nn.Embedding)]
        configured = [value for value in map(_positive, self._all("vocabulary")) if value is not None]
        ask: Any = getattr(self.module, "get_input_embeddings", None)
        try:
            entry = ask() if callable(ask) else None
        except (NotImplementedError, AttributeError, TypeError, RuntimeError):  # a model without one
            entry = None
        if isinstance(entry, nn.Embedding):
            return min(configured[0], entry.num_embeddings) if configured else entry.num_embeddings
        exact = next((value for value in configured if value in tables), None)
        if exact is not None or not tables:
            return exact or next(iter(configured), None)
        return min(configured[0], max(tables)) if configured else tables[0]

    @property
    def dtype(self) -> str:
        """The element type that the module computes in, as written in a specification."""
        kinds = (tensor.dtype for tensor in self.module.parameters() if tensor.is_floating_point())
        return str(next(kinds, torch.float32)).removeprefix("torch.")


def _positive(value: Any) -> int | None:
    """Return a positive number, or None; of several, the smallest."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, int) for item in cast("Any", value)):
        value = min(cast("Sequence[int]", value))
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _look(source: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", source).get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def _sources(module: nn.Module) -> Iterator[Any]:
    """Yield the module's config, the nested configs level by level, the module, and its catalogue entry."""
    level: list[Any] = [config for config in (getattr(module, "config", None),) if hasattr(config, "__dict__")]
    while level:
        yield from level
        values = [value for config in level for value in cast("dict[str, Any]", vars(config)).values()]
        level = [value for value in values if hasattr(value, "to_dict")]
    yield module
    entry = getattr(module, "default_cfg", None) or getattr(module, "pretrained_cfg", None)
    if isinstance(entry, Mapping):
        yield entry
