"""One architecture at any depth, narrow enough that its weights cost nothing.

python benchmarks/deep.py FILE EXPORTER LAYERS
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import zoo


def bert(layers: int) -> zoo.Built:
    """BERT of that many layers, 64 wide."""
    torch.manual_seed(zoo.SEED)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}
    inputs = lambda: zoo.text(32, token_types=True)  # noqa: E731
    model, drawn = zoo.hugging_face("BertModel", "BertConfig", inputs, num_hidden_layers=layers, **sizes)
    return zoo.ready(model), drawn


if __name__ == "__main__":
    zoo.export(*bert(int(sys.argv[3])), Path(sys.argv[1]), sys.argv[2])
