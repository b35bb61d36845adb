"""A network with an answer that is known without training: the colour of a picture, after a convolution and a norm."""

import torch
from torch import nn


class Colour(nn.Module):
    """Scores of red, green and blue for pictures of 64 × 64 pixels."""

    def __init__(self) -> None:
        """Set weights that keep the channels apart."""
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(3)
        nn.init.dirac_(self.conv.weight)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return a score of each colour."""
        return torch.relu(self.norm(self.conv(image))).mean((2, 3)).softmax(1)


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The network and an example input."""
    return Colour().eval(), {"image": torch.rand(1, 3, 64, 64)}
