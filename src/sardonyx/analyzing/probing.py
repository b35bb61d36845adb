"""Whether a module takes inputs of some sizes, found without computing anything; the run that shows it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from sardonyx.costs.program import Program
from sardonyx.recording.recorder import record
from sardonyx.source.inputs.examples import Example
from sardonyx.source.running import probe


class RecordingProbe:
    """Tries a module by recording it, so that the accepted inputs need not be run again.

    What only values decide is not found, and does not matter for costs. A refusal counts only where the module refuses
    the data itself too.
    """

    def __init__(self) -> None:
        self._accepted: tuple[Any, Any, Program] | None = None

    def __call__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
        """The exception that the module answers with, if any."""
        try:
            self._accepted = args, kwargs, record(module, args, kwargs)
        except Exception:  # a forward may raise anything, and without data for another reason than with it
            return probe(module, args, kwargs)
        return None

    def program(self, example: Example) -> Program | None:
        """What was recorded with these very inputs, if anything was."""
        if self._accepted is None:
            return None
        args, kwargs, program = self._accepted
        return program if args is example.args and kwargs is example.kwargs else None
