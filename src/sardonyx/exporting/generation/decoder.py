"""Example inputs of a decoder that is exported for generation: tokens, mask and positions that continue a past."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from sardonyx.errors import UsageError
from sardonyx.frontend.inputs.dynamic import BATCH, PAST, SEQUENCE
from sardonyx.frontend.inputs.examples import Example
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.inputs.past import SWITCH, with_past
from sardonyx.frontend.running import run
from sardonyx.frontend.tracing.structure import window
from sardonyx.records.export import ExampleInput

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
_ROWS, _TOKENS = 2, 5


def decoder_example(module: nn.Module, seed: int) -> Example:
    """Return token ids, and positions if the module takes them, after a past that the module has computed.

    Raises:
        UsageError: If the module cannot generate, or only together with an encoder.
    """
    kind, parameters = type(module).__name__, inspect.signature(module.forward).parameters
    if not callable(getattr(module, "generate", None)) or IDS not in parameters:
        raise UsageError(
            f"{kind} does not generate tokens",
            hint='choose a decoder with its head (`task="text-generation"`), or leave out `for_generation`',
        )
    facts = Facts(module)
    if facts.is_encoder_decoder:
        raise UsageError(
            f"{kind} needs an encoder to generate, and only decoders are exported for generation",
            hint="export it with `with_past`",
        )
    source = torch.Generator().manual_seed(seed)
    kwargs: dict[str, Any] = {IDS: torch.randint(facts.vocabulary or 2, (_ROWS, _TOKENS), generator=source)}
    if POSITIONS in parameters:
        kwargs[POSITIONS] = torch.arange(_TOKENS).repeat(_ROWS, 1)
    return with_past(module, Example((), kwargs))


def require_dynamic(inputs: Iterable[ExampleInput]) -> None:
    """Refuse a decoder with a fixed batch size or length.

    Raises:
        UsageError: If a dimension is fixed.
    """
    named = {dim for example in inputs for dim in example.dynamic.values()}
    for dim in (BATCH, SEQUENCE, PAST):
        if dim not in named:
            raise UsageError(f"the decoder accepts only one size of {dim}", hint="export it without `for_generation`")


def attention_window(module: nn.Module) -> int | None:
    """Return how many positions the module's cache keeps; None if it keeps all."""
    ids = torch.zeros(1, 1, dtype=torch.int64)
    return window(run(module, (), {IDS: ids, SWITCH: True}).past_key_values)
