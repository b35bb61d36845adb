"""How many rewrites exact arithmetic decides, by pass, and why it does not decide the others.

    python benchmarks/exact_shares.py FILE... [--target ort] [--json OUT]
    python benchmarks/exact_shares.py --fuzzed 1000 [--first SEED]

Each model is rewritten as `optimize` does it, every rewrite is checked as `optimize` checks it, and nothing else is
run. A rewrite that fails its check is a false alarm, or a wrong rewrite: each is listed. CPU seconds are those of exact
arithmetic alone.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import onnx

from fuzzing import families
from fuzzing.draft import Rejected
from sardonyx.errors import ModelError
from sardonyx.verbs.optimize.candidates import RewriteJob
from sardonyx.verbs.optimize.pipeline import select
from sardonyx.verification import rewrite_check
from sardonyx.verification.rewrite_check import Findings, LocalChecks

HEAD = ("model", "rewrites", "distinct", "all values", "every size", "orders tried", "by trials", "not run", "s")


def checked(model: Path | onnx.ModelProto, target: str) -> tuple[Findings, float]:
    """The findings of all rewrites of a model, and the CPU seconds of exact arithmetic."""
    spent = 0.0
    decide = rewrite_check.decide

    def timed(excerpt: rewrite_check.Excerpt) -> rewrite_check.Decision:
        nonlocal spent
        began = time.process_time()
        try:
            return decide(excerpt)
        finally:
            spent += time.process_time() - began

    rewrite_check.decide = timed
    try:
        checks = LocalChecks()
        job = RewriteJob(model, tuple(select(target)), target, lambda *_: None)
        job.candidate(None, frozenset(), checks.observe)
    finally:
        rewrite_check.decide = decide
    return checks.findings, spent


def models(arguments: argparse.Namespace) -> Iterator[tuple[str, Path | onnx.ModelProto]]:
    """The models to rewrite, with their names."""
    yield from ((path.stem, path) for path in arguments.files)
    seed, drawn = arguments.first, 0
    while drawn < arguments.fuzzed:
        try:
            model = families.draw(seed).model
        except Rejected:
            model = None
        if model is not None:
            drawn += 1
            yield f"{families.family_of(seed)}.{seed}", model
        seed += 1


def main() -> int:
    """Print a line for each model, then the reasons; return 1 if a rewrite failed its check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--target", default="portable")
    parser.add_argument("--fuzzed", type=int, default=0)
    parser.add_argument("--first", type=int, default=500_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    reasons: collections.Counter[str] = collections.Counter()
    total: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    if arguments.files:
        print(("{:32}" + "{:>14}" * (len(HEAD) - 1)).format(*HEAD))
    for name, model in models(arguments):
        try:
            findings, seconds = checked(model, arguments.target)
        except ModelError:  # some fuzzed models are not valid
            total["not valid"] += 1
            continue
        record = findings.record()
        if record is None:
            continue
        reasons.update(record.undecided)
        wrong += [f"{name}: {failing.pass_name} at {failing.root}: {failing.reason}" for failing in findings.failing]
        counts = [record.rewrites, record.distinct, record.all_values, record.for_every_size]
        counts += [record.orders_tried, record.by_trials, record.not_runnable]
        row = dict(zip(HEAD[1:], [*counts, round(seconds, 2)], strict=True))
        rows.append({"model": name, **row})
        total.update({key: value for key, value in row.items() if isinstance(value, int)})
        total["models"] += 1
        total["models decided"] += record.rewrites == record.all_values + record.orders_tried
        total["errors"] += record.failed
        wrong += [f"{name}: {record.error}"] * bool(record.failed)
        if arguments.files:
            print(("{:32}" + "{:>14}" * len(row)).format(name[:31], *map(str, row.values())), flush=True)
    print(json.dumps(dict(total)))
    for reason, count in reasons.most_common(60):
        print(f"{count:6} {reason}")
    print("\n".join(["failing:", *wrong]) if wrong else "no rewrite fails its check")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"rows": rows, "undecided": reasons, "failing": wrong}, indent=1))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
