"""The tour in one command: BERT-tiny from its config, exported by torch, optimized, proven and inspected.

Nothing is downloaded: the weights are random but seeded, and no bias, mean or variance is left at a value that would
hide a wrong rewrite. Every step after the export is the command a user would type, run as that user would run it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sardonyx.errors import SardonyxError, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

SEED = 0


def run(folder: Path, *, say: Callable[[str], None] | None = None) -> None:
    """Run the tour, leaving the models and the Run record in `folder`; the commands write to the terminal themselves.

    Args:
        folder: created when missing; files of an earlier demo in it are replaced.
        say: receives each step's line just before the step; by default it goes to standard output.
    """
    tell = say or _tell
    folder.mkdir(parents=True, exist_ok=True)
    source, small, record = folder / "bert-tiny.onnx", folder / "bert-tiny.small.onnx", folder / "run.json"
    tell(f"Building BERT-tiny (2 layers, width 128, 2 heads) and exporting it with torch to {source}")
    export_bert_tiny(source)
    _command(["inspect", str(source)], tell)
    _command(["optimize", str(source), "-o", str(small), "--force", "--record", str(record)], tell)
    _command(["verify", str(source), str(small)], tell)
    tell(f"\nYours to look at: {source}, {small}, {record}")


def export_bert_tiny(path: Path) -> None:
    """Write BERT-tiny as torch's exporter gives it, unoptimized, with batch and sequence length left dynamic."""
    torch = _torch()
    model, inputs = bert_tiny()
    free = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("sequence", max=512)}
    with _quietly("torch.onnx"):
        torch.onnx.export(
            model,
            args=(),
            kwargs=inputs,
            f=str(path),
            dynamo=True,
            optimize=False,
            verbose=False,
            external_data=False,
            opset_version=18,
            dynamic_shapes=dict.fromkeys(inputs, free),
        )


def bert_tiny() -> tuple[nn.Module, dict[str, Tensor]]:
    """BERT L-2 H-128 A-2 in eval mode, and named example inputs of batch 2, length 16 with padding."""
    torch = _torch()
    from transformers import BertConfig, BertModel

    from sardonyx.source.weights import randomize

    torch.manual_seed(SEED)
    config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
    model = cast("Any", BertModel(config))
    model.set_attn_implementation("eager")
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 11:] = 0
    inputs = {
        "input_ids": torch.randint(1, 1000, (2, 16)),
        "attention_mask": mask,
        "token_type_ids": torch.zeros(2, 16, dtype=torch.long),
    }
    return randomize(model, SEED), inputs


def _torch() -> Any:
    for package in ("torch", "transformers", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"the demo needs {package}, which is not installed", hint='pip install "sardonyx[torch]"')
    import torch

    return torch


@contextlib.contextmanager
def _quietly(logger_name: str) -> Generator[None]:
    """Keep an exporter's progress, warnings and log lines off the terminal; its errors still come through."""
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _command(arguments: list[str], tell: Callable[[str], None]) -> None:
    tell(f"\n$ sardonyx {shlex.join(arguments)}")
    done = subprocess.run([sys.executable, "-m", "sardonyx", *arguments], check=False)
    if done.returncode:
        raise SardonyxError(f"`sardonyx {arguments[0]}` ended with exit code {done.returncode}")


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
