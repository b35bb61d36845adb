"""The whole campaign in one run: every optimizer on every reference model, held against what was promised.

    python benchmarks/campaign.py [nodes proof time latency growth] [--names NAME ...] [--exporters dynamo]
        [--models FOLDER] [--shelf FOLDER] [--write]

Models are exported on first use into FOLDER. What peers make of a file is kept on the shelf and not made again, so a
second run costs only our own part. `--write` puts what was measured into peers.json and peers.md beside this file, each
contest with its date, and leaves the contests that were not run as they were. A missed promise makes the command fail.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import latency_contest
import node_contest
import peer_table
import peers
import time_contest
from claims import Claim
from shelf import Shelf
from stage import CASES, EXPORTERS, HERE, Section, Stage

CONTESTS: dict[str, Callable[[Stage], Section]] = {
    "nodes": node_contest.nodes,
    "proof": node_contest.proof,
    "time": time_contest.time,
    "latency": latency_contest.run,
    "growth": time_contest.growth,
}
DATA, PAGE = HERE / "peers.json", HERE / "peers.md"
ABOUT = (
    "## The best of them",
    "Nodes left of each model as torch exports it, Constants not counted. A result counts only if it loads and",
    "computes the same as the source. Of two equivalent forms Sardonyx writes the one that runs no slower, so with the",
    "runtime's own operators some optimizers leave fewer nodes by default; `--fewest-nodes` prefers fewer nodes.",
    "`transformers` is onnxruntime.transformers, `ort_fusions` is onnxscript's.",
)
PACKAGES = ("onnx", "onnxruntime", "onnxscript", "onnxslim", "onnxsim", "torch", "transformers")


def measured(section: Section) -> dict[str, Any]:
    """A section as it is kept: with its day, the machine and the versions."""
    claims = [dataclasses.asdict(claim) | {"met": claim.met} for claim in section.claims]
    return dataclasses.asdict(section) | {
        "claims": claims,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def page(sections: dict[str, dict[str, Any]]) -> str:
    """All that is kept, as Markdown."""
    lines = [
        "# Comparison with other optimizers",
        "",
        "Measured by `make peers && .venv/bin/python benchmarks/campaign.py nodes --write` (about an hour); the",
        "figures are in peers.json. `python benchmarks/peer_table.py` then writes the summary in the README.",
    ]
    if "nodes" in sections:
        lines += ["", *ABOUT, "", peer_table.table(sections["nodes"]).rstrip()]
    for name in CONTESTS:
        if name in sections:
            lines += ["", *_markdown(sections[name])]
    return "\n".join(lines) + "\n"


def _markdown(section: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in section["versions"].items())
    lines = [
        f"## {section['title']}",
        f"{section['date']}; {section['machine']}; {versions}.",
        "",
        section["about"],
        "",
    ]
    lines += [f"| {' | '.join(section['header'])} |", f"|{'---|' * len(section['header'])}"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in section["rows"]]
    missed = [claim for claim in section["claims"] if not claim["met"]]
    lines += ["", f"Promises kept: {len(section['claims']) - len(missed)} of {len(section['claims'])}."]
    for claim in missed:
        beside = f" ({claim['beside']})" if claim["beside"] else ""
        lines.append(f"- missed: {claim['what']}: {claim['figure']:.4g}, promised {claim['bound']:g}{beside}")
    return lines


def keep(sections: dict[str, dict[str, Any]], data: Path = DATA, text: Path = PAGE) -> None:
    """Put what was measured beside what was measured before."""
    known = json.loads(data.read_text()) if data.exists() else {}
    known |= sections
    data.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    text.write_text(page(known))


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contests", nargs="*", metavar="CONTEST", help=", ".join(CONTESTS))
    parser.add_argument("--names", nargs="+", default=list(CASES), help="reference models (default: all)")
    parser.add_argument("--exporters", nargs="+", default=list(EXPORTERS), choices=EXPORTERS)
    parser.add_argument("--models", type=Path, default=HERE / "results" / "models", help="where the raw exports lie")
    parser.add_argument("--shelf", type=Path, default=HERE / "results" / "shelf", help="where peers' results are kept")
    parser.add_argument("--scratch", type=Path, help="where ours are written (default: a folder that goes away)")
    parser.add_argument("--repeats", type=int, default=5, help="cold runs of each command")
    parser.add_argument("--seconds", type=float, default=20.0, help="the most that a latency race takes")
    parser.add_argument("--threads", type=int, default=1, help="of the runtime in a latency race")
    parser.add_argument("--clock", choices=("cpu", "wall"), help="(default: cpu where there is one thread)")
    parser.add_argument("--write", action="store_true", help=f"into {DATA.name} and {PAGE.name}")
    asked = parser.parse_args(words)
    if unknown := set(asked.contests) - set(CONTESTS):
        parser.error(f"unknown contest {', '.join(sorted(unknown))}; there are {', '.join(CONTESTS)}")
    missing = [peer for peer in (*peers.PORTABLE, *peers.RUNTIME) if not peers.version(peer)]
    if missing:
        parser.error(f"not installed: {', '.join(missing)}; `make peers` installs them")
    return asked


def main(words: Sequence[str]) -> int:
    """Run the contests asked for; fail where a promise is not kept."""
    asked = arguments(words)
    asked.models.mkdir(parents=True, exist_ok=True)
    missed: list[Claim] = []
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        scratch = asked.scratch or Path(folder)
        scratch.mkdir(parents=True, exist_ok=True)
        clock = asked.clock or ("cpu" if asked.threads == 1 else "wall")
        stage = Stage(
            asked.models, Shelf(asked.shelf), scratch, asked.names, asked.exporters,
            asked.repeats, asked.seconds, asked.threads, clock,
        )  # fmt: skip
        for name in asked.contests or CONTESTS:
            section = CONTESTS[name](stage)
            print("\n".join([f"\n{section.title}", *(claim.line() for claim in section.claims)]), flush=True)
            missed += [claim for claim in section.claims if not claim.met]
            if asked.write:
                keep({name: measured(section)})
    print(f"\n{len(missed)} promises missed" if missed else "\nall promises kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
