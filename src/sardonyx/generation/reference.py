"""The tokens that the module itself generates, greedily, and the logits that they were chosen by."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sardonyx.runtime import Array
from sardonyx.source.quiet import quietly
from sardonyx.source.tracing.engine import to_array


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """A batch of prompts, padded on the left."""

    ids: Array  # [rows, length]
    mask: Array  # 0 where there is padding

    @classmethod
    def of(cls, rows: Sequence[Array]) -> Prompts:
        """Prompts of any lengths side by side."""
        length = max(len(row) for row in rows)
        ids, mask = np.zeros((len(rows), length), np.int64), np.zeros((len(rows), length), np.int64)
        for number, row in enumerate(rows):
            ids[number, length - len(row) :] = row
            mask[number, length - len(row) :] = 1
        return cls(ids, mask)

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens each prompt has."""
        return tuple(int(count) for count in self.mask.sum(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """What a module makes of prompts."""

    tokens: Array  # [rows, steps]
    logits: Array  # [rows, steps, vocabulary]


def continued(module: Any, prompts: Prompts, steps: int) -> Continuation:
    """Let the module generate with its own `generate()`: the most likely token each time, and no stopping."""
    with torch.no_grad(), quietly(), _greedy(module, steps):
        answer = module.generate(torch.tensor(prompts.ids), attention_mask=torch.tensor(prompts.mask))
    tokens = to_array(answer.sequences)[:, prompts.ids.shape[1] :]
    return Continuation(tokens, to_array(torch.stack(answer.logits, dim=1)))


@contextlib.contextmanager
def _greedy(module: Any, steps: int) -> Generator[None]:
    """Set aside what the model's authors recommend for sampling, penalties and the end of a text, for a while."""
    own: Any = module.generation_config
    module.generation_config = own.__class__(
        max_new_tokens=steps, do_sample=False, pad_token_id=0, output_logits=True, return_dict_in_generate=True
    )
    try:
        yield
    finally:
        module.generation_config = own
