"""Every model that a small config can build, exported and compared with plain torch: one row each, nothing left out.

    python benchmarks/catalogue.py RESULTS [PATTERN …] [--exporter torchscript] [--jobs 1] [--limit 60] [--retry REASON]

RESULTS is a folder with a file for every model and exporter; what is there is not run again, so that a run that was
stopped goes on where it was. Each model type of transformers (one for each of its packages), each family of torchvision
and each module of timm gives one small model. Example inputs and dynamic dimensions are derived, nothing is given.
Files are compared with the module on other values and sizes, and their tags with an eager run (`fresh_inputs.py`).
Plain torch is `torch.onnx.export(dynamo=True)` on the same inputs; with `--retry`, its result is kept. `--table` writes
catalogue.md from what there is.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: models that run side by side do not share their cores' threads

import torch

import catalogue_table
import sardonyx
from catalogue_case import WAITS, Row, in_process, measure, plainly
from catalogue_models import Subject, subjects
from catalogue_table import LIMIT
from sardonyx.frontend.inputs.examples import Example

HERE = Path(__file__).parent
EXPORTERS = ("dynamo", "torchscript")
THIRD = 3  # with TorchScript one model in three


def commit() -> str:
    """The last commit that changed what is measured."""
    place = Path(sardonyx.__file__).parent
    asked = ["git", "-C", str(place), "rev-list", "-1", "--abbrev-commit", "HEAD", "--", "."]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def warm() -> None:
    """Pay for imports and tables once, before the processes are copied from this one."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)).eval()
    plainly(module, Example((torch.randn(2, 4),), {}))
    for exporter in EXPORTERS:
        sardonyx.export(module, torch.randn(2, 4), exporter=exporter, verify="off")
    gc.freeze()  # so that collecting garbage does not copy what the processes share


def chosen(everything: Sequence[Subject], patterns: Sequence[str], exporter: str) -> list[Subject]:
    """The models asked for; with TorchScript every third of them."""
    asked = [each for each in everything if any(fnmatch.fnmatch(each.key, pattern) for pattern in patterns or "*")]
    return asked[::THIRD] if exporter == "torchscript" else asked


def wanted(path: Path, retry: Sequence[str] = ()) -> bool:
    """Whether there is no result yet, or one to be tried again."""
    if not path.exists():
        return True
    row = json.loads(path.read_text())
    reason = catalogue_table.reason(row)
    named = {"all": True, "failed": bool(reason), "unreached": bool(row.get("unread"))}
    return any(named.get(each, each in reason) for each in retry)


def run(subject: Subject, exporter: str, folder: Path, at: str, limit: int) -> Row:
    """One model in a process of its own, its row in a file of its own."""
    path = folder / f"{subject.key}.{exporter}.json"
    known = folder / f"{subject.key}.dynamo.json"
    plain = json.loads(known.read_text()).get("plain") if known.exists() else None
    began = time.monotonic()
    config = folder / "configs" / subject.key
    row = in_process(lambda: measure(subject, exporter, config, plain, limit), limit, 3 * WAITS)
    if "error" in row:
        row = {"ours": {"error": row["error"], "stage": "before"}}
    about = {"exporter": exporter, "commit": at, "machine": platform.machine(), "dynamic": True, "limit": limit}
    row = {"library": subject.library, "name": subject.name, **about, **row}
    row["wall"] = round(time.monotonic() - began, 1)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(row, indent=1))
    draft.replace(path)
    return row


def main(words: Sequence[str]) -> int:
    """Run what is missing, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("patterns", nargs="*", help="of names such as transformers.bert, timm.*")
    parser.add_argument("--exporter", choices=EXPORTERS, default="dynamo")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=LIMIT, help="CPU seconds of one stage")
    parser.add_argument("--retry", nargs="+", default=(), metavar="REASON", help="failed, unreached, all, or a text")
    parser.add_argument("--table", action="store_true", help=f"write {catalogue_table.PAGE.name}, run nothing")
    asked = parser.parse_args(words)
    asked.results.mkdir(parents=True, exist_ok=True)
    everything = subjects()
    (asked.results / catalogue_table.NAMES).write_text("\n".join(each.key for each in everything) + "\n")
    if asked.table:
        catalogue_table.write(asked.results)
        return 0
    cases = chosen(everything, asked.patterns, asked.exporter)
    due = [each for each in cases if wanted(asked.results / f"{each.key}.{asked.exporter}.json", asked.retry)]
    warm()
    at = commit()
    print(f"{len(due)} of {len(cases)} to run, at {at}", flush=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        for row in pool.map(lambda each: run(each, asked.exporter, asked.results, at, asked.limit), due):
            print(catalogue_table.line(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
