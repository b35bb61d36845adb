"""What the documentation of a forward says about its parameters: element types, sizes, and what is for training only.

`bbox (torch.LongTensor of shape (batch_size, sequence_length, 4), *optional*)` says what no annotation can.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

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
