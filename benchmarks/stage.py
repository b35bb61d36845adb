"""What every contest is given: the reference models, the shelf of peers' results, a scratch folder, and our command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measure
from claims import Claim
from sardonyx.records.bench import Comparison
from shelf import Shelf

HERE = Path(__file__).parent
TARGETS = ("portable", "ort")
EXPORTERS = ("torchscript", "dynamo")

# Every reference model with the exporters that take it.
CASES: dict[str, tuple[str, ...]] = dict.fromkeys(
    (
        *("bert-tiny", "bert-base", "distilbert", "gpt2", "llama-4l", "qwen3-4l", "t5-small-enc", "whisper-tiny-enc"),
        *("deit-small", "tv-vit-b16", "swin-t", "convnext-t", "mobilevit-s"),
        *("resnet-50", "efficientnet-b0", "mobilenetv2", "mobilenetv3-s"),
    ),
    EXPORTERS,
) | {"vit-base": ("torchscript",), "wav2vec2-base": ("dynamo",)}
WHEN_NAMED = {"tinyllama": ("dynamo",)}  # 4.4 GB: for time and memory


@dataclass(frozen=True)
class Case:
    """A reference model as one exporter writes it."""

    name: str
    exporter: str
    source: Path

    def __str__(self) -> str:
        return f"{self.name} {self.exporter}"


@dataclass(frozen=True)
class Section:
    """What one contest found: a table for people, and what was promised of it."""

    title: str
    about: str  # how it was measured
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    data: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Stage:
    """Where things are, and how often and long to measure."""

    models: Path
    shelf: Shelf
    scratch: Path
    names: Sequence[str]
    exporters: Sequence[str] = EXPORTERS
    repeats: int = 5
    seconds: float = 20.0
    threads: int = 1
    clock: str = "cpu"

    def cases(self) -> list[Case]:
        """The cases asked for; a model that is not there is exported first, in a process of its own."""
        wanted = [
            (name, exporter)
            for name in self.names
            for exporter in (CASES | WHEN_NAMED).get(name, EXPORTERS)
            if exporter in self.exporters
        ]
        return [Case(name, exporter, self._exported(name, exporter)) for name, exporter in wanted]

    def _exported(self, name: str, exporter: str) -> Path:
        path = self.models / f"{name}.{exporter}.onnx"
        if not path.exists():
            tell(f"exporting {name} ({exporter})")
            subprocess.run([sys.executable, HERE / "zoo.py", self.models, exporter, name], check=True)
        return path

    def ours(self, source: Path, target: str = "portable") -> Path:
        """Our result for a target, made anew, unproven as the peers' are."""
        output = self.output(target)
        measure.run(sardonyx(source, output, target))
        return output

    def output(self, name: str) -> Path:
        """A file of that name in the scratch folder."""
        return self.scratch / f"{name}.onnx"


def sardonyx(source: Path, output: Path, target: str = "portable", *more: str) -> list[str]:
    """The command a user types, unverified unless more is said: what the peers do is unverified too."""
    tool = str(Path(sys.executable).with_name("sardonyx"))
    words = [tool, "optimize", str(source), "-o", str(output), "--force", "--target", target]
    return [*words, *(more or ("--verify", "off", "--quiet"))]


def said(found: Comparison) -> str:
    """A ratio with its interval, as tables show it."""
    return f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]"


def tell(text: str) -> None:
    """One line of progress."""
    print(f"  {text}", file=sys.stderr, flush=True)
