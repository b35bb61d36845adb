"""Whether a study that is killed again and again ends as if it had not been.

    python benchmarks/resumed.py [--whole | --only EXPERIMENT …] [--kills 3] [--seed 0] [--seconds 3] [--keep FOLDER]

Runs `sardonyx study --zoo small` once without interruption, then once more in another folder, killed with SIGKILL
(all of its processes) at random moments and started again. Verdict, with exit code 0 or 1: tables that are not timed,
findings that rest on them and exported models are byte-equal in both, and every cell of the interrupted study that was
finished before a kill is in the end the file it was then. By default a slice of the experiments, about 5 minutes on
2 quiet cores; --whole takes all of them, about 25.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLICE = ("overview", "order", "forensics", "conv-relu")


def command(folder: Path, asked: argparse.Namespace) -> list[str]:
    """The study, the same for both folders."""
    only = [] if asked.whole else [word for name in asked.only or SLICE for word in ("--only", name)]
    return [
        *(sys.executable, "-m", "sardonyx", "study", "--zoo", "small", "--quiet", "--output", str(folder)),
        *("--seconds", str(asked.seconds), *only),
    ]


def finished(folder: Path) -> dict[str, bytes]:
    """The cells that are there, failed ones aside: those are tried again."""
    found = {path: path.read_bytes() for path in (folder / "cells").rglob("*.json")}
    return {
        str(path.relative_to(folder)): data for path, data in found.items() if json.loads(data)["outcome"]["answer"]
    }


def killed_and_resumed(folder: Path, asked: argparse.Namespace, expected: float) -> list[str]:
    """Kill the study as often as asked, let it end, and answer what of its cells was not kept as it was."""
    draw = random.Random(asked.seed)
    kept: dict[str, bytes] = {}
    for number in range(asked.kills):
        process = subprocess.Popen(command(folder, asked), start_new_session=True)
        moment = draw.uniform(0.05, 0.9) * expected / asked.kills
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        kept |= finished(folder)
        print(f"kill {number + 1} after {moment:.0f} s: {len(kept)} cells are finished", flush=True)
    subprocess.run(command(folder, asked), check=True)
    now = finished(folder)
    return [name for name, data in kept.items() if now.get(name) != data]


def differences(whole: Path, resumed: Path) -> list[str]:
    """What of two folders is not the same and ought to be."""
    records = [json.loads((folder / "study.json").read_bytes()) for folder in (whole, resumed)]
    timed = {table["name"] for record in records for table in record["tables"] if table["timed"]}
    found: list[str] = []
    for kind, ends in (("tables", ("csv", "json", "md")), ("models", ("onnx",))):
        names = {path.name for folder in (whole, resumed) for end in ends for path in (folder / kind).glob(f"*.{end}")}
        for name in sorted(names):
            files = [folder / kind / name for folder in (whole, resumed)]
            same = all(file.is_file() for file in files) and files[0].read_bytes() == files[1].read_bytes()
            if name.rpartition(".")[0] not in timed and not same:
                found.append(f"{kind}/{name}")
    said = [[each for each in record["findings"] if each["table"] not in timed] for record in records]
    return found + ["findings"] * (said[0] != said[1]) + ["cells"] * (records[0]["cells"] != records[1]["cells"])


def main() -> int:
    """Both studies, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="all experiments")
    parser.add_argument("--only", action="append", help="these experiments instead of the slice")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each timed cell")
    parser.add_argument("--keep", type=Path, help="folder for both studies; temporary where not given")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        base = asked.keep or Path(temporary)
        base.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        subprocess.run(command(base / "whole", asked), check=True)
        took = time.monotonic() - began
        print(f"uninterrupted: {took:.0f} s", flush=True)
        lost = killed_and_resumed(base / "resumed", asked, took)
        apart = differences(base / "whole", base / "resumed")
    print(f"cells not kept as they were: {', '.join(lost) or 'none'}")
    print(f"not the same as without interruption: {', '.join(apart) or 'nothing'}")
    print("holds" if not lost and not apart else "DOES NOT HOLD")
    return 1 if lost or apart else 0


if __name__ == "__main__":
    sys.exit(main())
