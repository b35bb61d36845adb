"""What `export` is rarely told: one frozen object for Python and for the command line, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of `export` beside its parameters.

    Attributes:
        with_past: export a decoder as the continuation of a past: its cache becomes inputs and outputs.
        verify_tokens: how many tokens to generate from each prompt to verify a decoder that is exported for generation.
        include_torch_nn: let tags go down to torch's own modules.
        tag_attributes: write tags as node attributes as well.
        keep_stack_traces: keep all of torch's metadata, which names files of this machine.
        external: weights in a file of their own or inside; by size if None.
    """

    with_past: bool = False
    verify_tokens: int = 32
    include_torch_nn: bool = False
    tag_attributes: bool = False
    keep_stack_traces: bool = False
    external: bool | None = None
