"""What peers made of a file, kept: their results do not change from run to run, so each is made once.

A result belongs to the content of the source and to the release of the peer; either being another makes it anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import measure
import peers

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Result:
    """What one peer made of one file."""

    peer: str
    nodes: int | None  # None: it failed
    constants: int
    batch_norms: int
    seconds: float  # one cold run of the whole process
    peak_mb: float
    valid: bool  # it loads and answers as the source does
    why: str  # where it is not valid


class Shelf:
    """A folder of results, one folder in it for each source file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[Path, Path] = {}

    def result(self, peer: str, source: Path) -> Result:
        """What the peer makes of the source, from the shelf where it lies there."""
        kept = self.place(source) / f"{peer}-{peers.version(peer)}.json"
        if not kept.exists():
            made = self._made(peer, source, self._output(peer, source))
            kept.write_text(json.dumps(dataclasses.asdict(made), indent=1))
            self.drop(peer, source)  # a file is as large as its source: kept only where it is asked for
        return Result(**json.loads(kept.read_text()))

    def file(self, peer: str, source: Path) -> Path | None:
        """The file a peer makes of the source, made anew where it was not kept; None where that is no valid one."""
        output = self._output(peer, source)
        if not self.result(peer, source).valid:
            return None
        if not output.exists():
            measure.run(command(peer, source, output))
        return output

    def drop(self, peer: str, source: Path) -> None:
        """Keep what is known of a peer's file, but not the file."""
        output = self._output(peer, source)
        for file in output.parent.glob(f"{output.name}*"):  # and its external data
            file.unlink()

    def _output(self, peer: str, source: Path) -> Path:
        return self.place(source) / f"{peer}-{peers.version(peer)}.onnx"

    def check(self, source: Path, result: Path) -> tuple[bool, str]:
        """Whether a file answers what the source answers, and if not why."""
        answers = self.place(source) / "answers.npz"
        if not answers.exists():
            measure.run([*_verb("answers"), str(source), str(answers)])
        said = _json([*_verb("check"), str(answers), str(result)])
        return bool(said["valid"]), str(said["why"])

    def _made(self, peer: str, source: Path, output: Path) -> Result:
        try:
            cost = measure.run(command(peer, source, output))
        except measure.CommandFailed as failure:
            return Result(peer, None, 0, 0, 0.0, 0.0, False, "failed: " + str(failure).strip().splitlines()[-1][:200])
        totals = count(output)
        valid, why = self.check(source, output)
        return Result(peer, **totals, seconds=cost.seconds, peak_mb=cost.peak_mb, valid=valid, why=why)

    def place(self, source: Path) -> Path:
        """The folder of one source file."""
        if source not in self._places:
            place = self.folder / f"{source.stem}-{digest(source)[:12]}"
            place.mkdir(parents=True, exist_ok=True)
            self._places[source] = place
        return self._places[source]


def command(peer: str, source: Path, output: Path) -> list[str]:
    """A peer's work in a fresh interpreter."""
    return [*_verb(peer), str(source), str(output)]


def count(path: Path) -> dict[str, int]:
    """Nodes of a file by kind, counted in another process to keep this one small."""
    return _json([*_verb("count"), str(path)])


def digest(path: Path) -> str:
    """The content of a file and of the external data beside it; reading it warms the page cache for what follows."""
    total = hashlib.sha256()
    for file in sorted(path.parent.glob(f"{path.name}*")):
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                total.update(block)
    return total.hexdigest()


def _verb(name: str) -> list[str]:
    return [sys.executable, str(HERE / "peers.py"), name]


def _json(words: list[str]) -> dict[str, int]:
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return json.loads(said.strip().splitlines()[-1])
