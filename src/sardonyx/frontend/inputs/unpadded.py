"""The most ordinary inputs: the example without padding. Code that handles padding may fail where there is none."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from sardonyx.frontend.inputs.candidates import Role, role_of
from sardonyx.frontend.tracing.adapter import Call, Feeds
from sardonyx.frontend.tracing.engine import UnattendedRows


def unpadded(call: Call) -> Feeds | None:
    """Return the example with masks that keep every position; None if it has no padding, or the module needs it.

    Ones keep a position in most masks and hide it in some, where a row then attends to nothing.
    """
    example = call.feeds
    masks = [name for name, tensor in example.items() if role_of(name) is Role.MASK and _is_partial(tensor)]
    for kept in itertools.islice((1, 0), 2 if masks else 0):
        feeds = {name: torch.full_like(tensor, kept) if name in masks else tensor for name, tensor in example.items()}
        try:
            with UnattendedRows() as rows:
                outputs = call.run(list(feeds.values()))
        except Exception:  # a forward may raise anything
            continue
        if not rows.found and all(bool(torch.isfinite(output).all()) for output in outputs):
            return feeds
    return None


def _is_partial(mask: Tensor) -> bool:
    """Return whether a mask of zeros and ones has both."""
    kept = mask == 1
    return mask.dim() > 1 and bool((kept | (mask == 0)).all()) and bool(kept.any()) and not bool(kept.all())
