"""The rate of a dropout that follows `.train()` and `.eval()`, as a number for a call that takes one."""

from __future__ import annotations

from torch import nn


class DropoutRate(nn.Module):
    """Gives the rate while training, else 0."""

    def __init__(self, p: float, training: bool) -> None:
        """Start in the mode of the dropout that it stands for."""
        super().__init__()
        self.p = p
        self.training = training

    def forward(self) -> float:
        """The rate now."""
        return self.p if self.training else 0.0

    def extra_repr(self) -> str:
        """The rate while training."""
        return f"p={self.p}"
