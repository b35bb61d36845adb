"""The rarely used options of `export`, shared by Python and the command line. Imports no torch."""

from __future__ import annotations

from msgspec import Struct


class ExportOptions(Struct, frozen=True, kw_only=True):
    """Rarely used options of `export`.

    Attributes:
        with_past: Export a decoder that continues a past: its cache becomes inputs and outputs.
        verify_tokens: How many tokens to generate from each prompt to verify a decoder exported for generation.
        target: With `optimize`, its parameter of this name.
        include_torch_nn: Let tags include torch's own modules.
        tag_attributes: Write tags as node attributes as well.
        keep_stack_traces: Keep all of torch's metadata, which includes file names of this machine.
        external: Whether to store the weights in a separate file. If None, decided by size: above 2 GB, or 64 MB if
            exported for generation, because runtimes map such a file.
    """

    with_past: bool = False
    verify_tokens: int = 32
    target: str = "portable"
    include_torch_nn: bool = False
    tag_attributes: bool = False
    keep_stack_traces: bool = False
    external: bool | None = None
