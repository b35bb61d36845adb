"""Three runtimes on the same models: who agrees with whom, and where a disagreement comes from.

    python benchmarks/runtimes.py [--nodes] [--zoo FOLDER] [--limit N] [--json FILE]

`--nodes`: the node cases of the onnx package. `--zoo FOLDER`: every .onnx file in a folder. Each model is optimized for
the portable target and verified in ONNX Runtime; the reference evaluator and OpenVINO run source and result on the same
inputs. A disagreement on the source alone is the runtime's. One between source and result is the rewrite's, and makes
the command fail.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sardonyx
from sardonyx.errors import SardonyxError
from sardonyx.records.run import Verdict

sys.path.append(str(Path(__file__).parents[1] / "tests"))
OTHERS = ("reference", "openvino")


@dataclass
class Row:
    """One model: what each further runtime said, or why there is no verdict."""

    name: str
    verdict: Verdict | None
    problem: str = ""


def of_node_cases(limit: int | None) -> Iterator[Row]:
    """The node cases that have data, on their own inputs."""
    from backend.cases import node_cases

    for case in node_cases()[:limit]:
        if case.data:
            yield compared(case.name, case.model, inputs=[feeds for feeds, _ in case.data], trials=0)


def of_files(folder: Path, limit: int | None) -> Iterator[Row]:
    """The files of a folder, on three generated trials each."""
    for path in sorted(folder.glob("*.onnx"))[:limit]:
        yield compared(path.stem, path, trials=3)


def compared(name: str, model: Any, **options: Any) -> Row:
    """Optimize a model, and compare the result with it in all runtimes."""
    try:
        result = sardonyx.optimize(model, verify="off").model
        source = str(model) if isinstance(model, Path) else model
        return Row(name, sardonyx.verify(source, result, runtimes=("ort", *OTHERS), threads=1, **options))
    except SardonyxError as error:
        return Row(name, None, error.message)


def summary(rows: list[Row]) -> list[str]:
    """A table of agreement, and every disagreement."""
    lines = [f"{len(rows)} models, {sum(row.verdict is None for row in rows)} of them without a verdict"]
    found: list[str] = []
    for place, runtime in enumerate(OTHERS):
        counts: Counter[str] = Counter()
        for row in rows:
            if row.verdict is None or place >= len(row.verdict.runtimes):
                continue
            check = row.verdict.runtimes[place]
            counts["ran"] += check.trials > 0
            counts["did not run"] += check.trials == 0 and not check.from_runtime
            counts["agree"] += check.trials > 0 and not check.from_rewrite and not check.from_runtime
            counts["differ on the source"] += bool(check.from_runtime)
            counts["differ by the rewrite"] += bool(check.from_rewrite)
            found += [f"{runtime}, from the runtime: {row.name}: {line}" for line in check.from_runtime[:1]]
            found += [f"{runtime}, from the rewrite: {row.name}: {line}" for line in check.from_rewrite[:1]]
        lines.append(f"{runtime}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    wrong = [f"ort: {row.name}: {row.verdict.failures[0]}" for row in rows if row.verdict and row.verdict.failures]
    return lines + found + wrong


def main(arguments: list[str]) -> int:
    """Run what was asked for; 1 if a rewrite made a difference anywhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", action="store_true", help="the node cases of the onnx package")
    parser.add_argument("--zoo", type=Path, help="a folder of .onnx files")
    parser.add_argument("--limit", type=int, help="at most this many models of each")
    parser.add_argument("--json", type=Path, help="where to write all findings")
    asked = parser.parse_args(arguments)
    rows: list[Row] = []
    for number, row in enumerate(_rows(asked)):
        rows.append(row)
        print(f"\r{number + 1} {row.name[:60]:60}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print("\n".join(summary(rows)))
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1, default=str) + "\n")
    return int(any(row.verdict is not None and not row.verdict.passed for row in rows))


def _rows(asked: argparse.Namespace) -> Iterator[Row]:
    if asked.nodes:
        yield from of_node_cases(asked.limit)
    if asked.zoo is not None:
        yield from of_files(asked.zoo, asked.limit)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
