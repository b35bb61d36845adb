"""An exported decoder in the runtime, one step after another: it gets back the cache that it gave."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.generation.decoder import IDS, LOGITS, MASK, POSITIONS
from sardonyx.generation.reference import Prompts
from sardonyx.runtime import Array, Feeds, Value
from sardonyx.runtime.remote import RemoteSession

_PAST, _PRESENT = "past_key_values.", "present."


class Stepper:
    """The names and sizes of a decoder's inputs and outputs."""

    def __init__(self, model: ir.Model) -> None:
        self._inputs = {value.name or "": value for value in model.graph.inputs}
        self._outputs = [value.name or "" for value in model.graph.outputs]
        self.place = self._outputs.index(LOGITS)

    def empty_past(self, rows: int) -> dict[str, Value]:
        """A cache of no positions."""
        return {name: _empty(value, rows) for name, value in self._inputs.items() if name.startswith(_PAST)}

    def feeds(self, ids: Array, mask: Array, past: Feeds) -> dict[str, Value]:
        """What a step reads: new tokens, the mask over past and new ones, and the positions of the new ones."""
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]
        given = {IDS: ids, MASK: mask, POSITIONS: positions, **past}
        return {name: value for name, value in given.items() if name in self._inputs}

    def logits(self, session: RemoteSession, prompts: Prompts, tokens: Array) -> Array:
        """The logits of every step, if these tokens are chosen: [rows, steps, vocabulary]."""
        ids, mask, past = prompts.ids, prompts.mask, self.empty_past(len(prompts.ids))
        found: list[Array] = []
        for step in range(tokens.shape[1]):
            outputs = dict(zip(self._outputs, session.run(self.feeds(ids, mask, past)), strict=True))
            found.append(np.asarray(outputs[LOGITS])[:, -1])
            past = {_PAST + name.removeprefix(_PRESENT): outputs[name] for name in outputs if name != LOGITS}
            ids, mask = tokens[:, step : step + 1], np.pad(mask, ((0, 0), (0, 1)), constant_values=1)
        return np.stack(found, axis=1)

    def at_once(self, prompts: Prompts, tokens: Array) -> dict[str, Value]:
        """The same tokens read in one step without a past; the last logits are those of every step."""
        ids = np.concatenate([prompts.ids, tokens[:, :-1]], axis=1)
        mask = np.pad(prompts.mask, ((0, 0), (0, tokens.shape[1] - 1)), constant_values=1)
        return self.feeds(ids, mask, self.empty_past(len(ids)))


def _empty(value: ir.Value, rows: int) -> Array:
    """Rows come first and positions last but one; a cache's other sizes are fixed."""
    shape = value.shape or ()
    sizes = [size if isinstance(size, int) else 0 for size in shape]
    dtype = value.dtype or ir.DataType.FLOAT
    return np.zeros([rows, *sizes[1:-2], 0, sizes[-1]], dtype.numpy())
