"""Damaged model files against the commands: no crash, no hang, no unexpected failure, little memory.

    python benchmarks/damaged.py --count 10000 [--first 0] [--jobs 1] [--out found]     # a campaign
    python benchmarks/damaged.py --seed 1234 --out found                                # one file: write it, run it

Each seed takes one of 20 files and damages it: odd seeds change bytes; even seeds change the tree of its protobuf
fields (drop, swap, repeat, move, replace) and write correct lengths again, so that the damage gets past the parser.
A seed always gives the same file. Every file goes through `inspect`, `analyze`, `dag` and `optimize --verify off`, one
in ten through `optimize` with verification. The commands run in a worker process, which is replaced when it dies.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fuzzing import damage, lanes

HANG_CPU, HANG_WALL = 60.0, 600.0  # seconds that count as a hang: computing, and waiting on a machine however busy
MOST_MEMORY = 500 << 20
_ADDRESS_SPACE = 8 << 30  # more than any step needs: a request beyond it is a MemoryError, not a busy machine
VERIFIED = 10  # one file in so many is verified
_FAILURE = "unexpected failure"
_FRAME = re.compile(r'File "[^"]*/sardonyx/([^"]+)", line (\d+)')


@dataclass
class Report:
    """What became of one damaged file."""

    seed: int
    subject: str
    codes: tuple[int, ...] = ()
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0  # seconds of CPU in one command
    peak: int = 0  # bytes


def commands(path: Path, *, verified: bool) -> list[list[str]]:
    """The command lines for a file."""
    target = str(path.with_name("out.onnx"))
    steps = [
        ["inspect", str(path), "--debug"],
        ["analyze", str(path), "--json", "--debug"],
        ["dag", str(path), "--debug"],
        ["optimize", str(path), "-o", target, "--verify", "off", "--force", "--debug"],
    ]
    verifying = ["optimize", str(path), "-o", target, "--force", "--verify-seconds", "5", "--debug"]
    return [*steps, verifying] if verified else steps


def examine(seed: int, folder: Path, tell: Callable[[Any], None] = lambda _: None) -> Report:
    """Damage a file and run every command on it."""
    from sardonyx.cli.main import run

    subject, files = damage.damaged(seed)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    report = Report(seed, subject)
    for command in commands(folder / damage.MODEL, verified=seed % VERIFIED == 0):
        tell((seed, f"{subject}, {command[0]}"))
        _reset_peak()
        began = time.process_time()
        code, text = _run(run, command)
        report.slowest = max(report.slowest, time.process_time() - began)
        report.peak = max(report.peak, _peak())
        report.codes += (code,)
        if _FAILURE in text:
            report.faults.append(f"{command[0]}: {_signature(text)}")
        elif code and not re.search(r"^error: \S", text, re.MULTILINE):
            report.faults.append(f"{command[0]}: exit {code} without an error line")
    if report.peak > MOST_MEMORY:
        report.faults.append(f"memory: {report.peak >> 20} MB")
    return report


def _run(run: Callable[[list[str]], int], command: list[str]) -> tuple[int, str]:
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = run(command)
    return code, errors.getvalue()


def _signature(text: str) -> str:
    """What makes two failures the same: the exception and the innermost place in the package."""
    frames = _FRAME.findall(text)
    failure = next(line for line in text.splitlines() if _FAILURE in line)
    where = ":".join(frames[-1]) if frames else "?"
    return f"{re.sub(r'[0-9]+', 'N', failure.partition(_FAILURE)[2])[2:110]} at {where}"


# ---------------------------------------------------------------------------------------------- workers


def _processes() -> list[str]:
    """This process and its children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [str(os.getpid()), *children]


def _reset_peak() -> None:
    for process in _processes():
        with contextlib.suppress(OSError):
            Path(f"/proc/{process}/clear_refs").write_text("5")


def _peak() -> int:
    """The largest peak of one process since the last reset, in bytes."""
    largest = 0
    for process in _processes():
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
            largest = max(largest, int(found[1]) << 10 if found else 0)
    return largest


def work(connection: lanes.Connection, seeds: range) -> None:
    """Examine seeds one after another, and say which command each is in."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    with tempfile.TemporaryDirectory() as name:
        tempfile.tempdir = name
        for seed in seeds:
            connection.send(examine(seed, Path(name), connection.send))
    connection.send(None)


def _ended(seed: int, stage: str, hangs: bool, code: int | None) -> Report:
    return Report(seed, stage, faults=[f"{'hang' if hangs else 'crash'} in {stage}, exit code {code}"])


def campaign(seeds: range, jobs: int, *, quiet: bool = False) -> list[Report]:
    """Every report of a range of seeds."""
    return lanes.campaign(seeds, jobs, lanes.Job(work, _ended, lambda _: HANG_WALL, HANG_CPU), quiet=quiet)


def summary(reports: list[Report]) -> str:
    """The counts, the extremes, and every distinct fault."""
    grouped: dict[str, list[int]] = collections.defaultdict(list)
    for each in reports:
        for fault in each.faults:
            grouped[fault].append(each.seed)
    counts = collections.Counter(code for each in reports for code in each.codes)
    slowest, largest = max(reports, key=lambda each: each.slowest), max(reports, key=lambda each: each.peak)
    accepted = sum(each.codes[:1] == (0,) for each in reports)
    lines = [
        f"{len(reports)} damaged files, {accepted} of them still load; {sum(counts.values())} commands, exit codes "
        + ", ".join(f"{code}: {count}" for code, count in sorted(counts.items())),
        f"slowest command {slowest.slowest:.1f} s of CPU (seed {slowest.seed}), "
        f"most memory {largest.peak >> 20} MB (seed {largest.seed})",
        f"{sum(bool(each.faults) for each in reports)} files with faults",
    ]
    for fault, seeds in sorted(grouped.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(seeds):5} × {fault}  (seeds {', '.join(map(str, seeds[:4]))})")
    return "\n".join(lines)


def main() -> int:
    """Run a campaign, or one seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--seed", type=int, help="one file")
    parser.add_argument("--out", type=Path, help="where the file of one seed goes")
    asked = parser.parse_args()
    if asked.seed is not None:
        return one(asked.seed, asked.out)
    reports = campaign(range(asked.first, asked.first + asked.count), asked.jobs)
    print(summary(reports))
    return int(any(each.faults for each in reports))


def one(seed: int, out: Path | None) -> int:
    """Run the commands on the file of one seed, and print what they print."""
    from sardonyx.cli.main import run

    folder = out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    subject, files = damage.damaged(seed)
    print(f"seed {seed}: {subject}, in {folder}")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    codes = [run(command) for command in commands(folder / damage.MODEL, verified=seed % VERIFIED == 0)]
    if out is None:
        shutil.rmtree(folder)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
