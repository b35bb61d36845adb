"""Whether `optimize --tune` keeps what it promises: source, result and tuned result of eight models in one race each.

    python benchmarks/tuned.py ZOO [--results FOLDER] [--target portable] [--target ort] [--budget 60] [--seconds 40]
        [--threads 1] [--only NAME] [--again]

ZOO holds the exports (benchmarks/zoo.py); what is missing there is exported first. The race that judges is another one
than those that decided: new sessions, `sardonyx bench`. A finished model is kept in FOLDER and not
measured again, so that a killed run goes on; about 2 to 3 minutes a model and target with these settings.

Verdict: no tuned result slower than its source beyond the interval, and none slower than the untuned one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import sardonyx
from sardonyx.inputs.generator import dynamic_dims
from sardonyx.ir import io
from sardonyx.verbs.bench.statistics import Comparison, Finding, compare

HERE = Path(__file__).parent
TARGETS = ("portable", "ort")
LENGTH = 64  # of dims that are open, other than the batch: modest, so that a model has many rounds
SUBJECTS = {  # half from each exporter
    "bert-base": "torchscript",
    "gpt2": "torchscript",
    "t5-small-enc": "torchscript",
    "vit-base": "torchscript",
    "resnet-50": "dynamo",
    "efficientnet-b0": "dynamo",
    "whisper-tiny-enc": "dynamo",
    "swin-t": "dynamo",
}


def source_of(name: str, zoo: Path) -> Path:
    """The file of a model, exported where there is none."""
    path = zoo / f"{name}.{SUBJECTS[name]}.onnx"
    if not path.exists():
        zoo.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, str(HERE / "zoo.py"), str(zoo), SUBJECTS[name], name], check=True)
    return path


def measured(source: Path, target: Any, asked: argparse.Namespace) -> dict[str, Any]:
    """One model: tuned, then judged in a race of its own."""
    began = time.perf_counter()
    sizes = {dim: LENGTH for dim, size in dynamic_dims(io.load(source)).items() if size != 1}
    with tempfile.TemporaryDirectory(prefix="tuned-") as folder:
        files = {"source": source, "untuned": Path(folder) / "untuned.onnx", "tuned": Path(folder) / "tuned.onnx"}
        sardonyx.optimize(source, files["untuned"], target=target, verify="off")
        tune = sardonyx.TuneOptions(seconds=asked.budget, sizes=sizes or None)
        tuning = sardonyx.optimize(source, files["tuned"], target=target, tune=tune, threads=asked.threads).tuning
        found = sardonyx.bench(files, seconds=asked.seconds, sizes=sizes, threads=asked.threads, starts=0)
    assert tuning is not None
    point = found.points[0]
    by_name = {timing.label: timing for timing in point.timings}
    of_source = {name: by_name[name].against_first for name in ("untuned", "tuned")}
    tuned, untuned = by_name["tuned"].seconds, by_name["untuned"].seconds
    return {
        "chosen": tuning.chosen,
        "changed": [f"{each.unit} {each.choice}" for each in tuning.decisions if each.choice in ("undone", "added")],
        "questions": len(tuning.questions),
        "unexamined": list(tuning.unexamined),
        "tuning_seconds": tuning.seconds,
        "milliseconds": {name: 1000 * timing.median for name, timing in by_name.items()},
        "floor": point.floor,
        "untuned/source": _told(of_source["untuned"]),
        "tuned/source": _told(of_source["tuned"]),
        "tuned/untuned": _told(compare(tuned, untuned, floor=point.floor)),
        "rounds": len(tuned),
        "busy": found.machine.busy_during,
        "seconds": time.perf_counter() - began,
    }


def _told(found: Comparison | None) -> dict[str, Any]:
    assert found is not None, "only the first has nothing to be compared with"
    return {"ratio": found.ratio, "low": found.low, "high": found.high, "finding": found.finding.value}


def line(name: str, answer: dict[str, Any]) -> str:
    """One model as a row."""
    ratios = "  ".join(
        f"{pair} {answer[pair]['ratio']:.3f} [{answer[pair]['low']:.3f}, {answer[pair]['high']:.3f}]"
        for pair in ("untuned/source", "tuned/source", "tuned/untuned")
    )
    changed = ", ".join(answer["changed"]) or "nothing changed"
    return (
        f"{name:<28} {answer['milliseconds']['source']:8.2f} ms  {ratios}  ±{100 * answer['floor']:.1f} %  "
        f"{answer['chosen']}: {changed}; {answer['questions']} questions, {answer['seconds']:.0f} s"
    )


def main() -> int:
    """Measure what is missing, and say the verdict over all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zoo", type=Path)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "tuned")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--only", action="append", choices=list(SUBJECTS))
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    asked.results.mkdir(parents=True, exist_ok=True)
    slower: list[str] = []
    for target in asked.target or TARGETS:
        for name in asked.only or SUBJECTS:
            kept = asked.results / f"{name}.{target}.{asked.threads}.json"
            if asked.again or not kept.exists():
                answer = measured(source_of(name, asked.zoo), target, asked)
                kept.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
            answer = json.loads(kept.read_text(encoding="utf-8"))
            print(line(f"{name} {target}", answer), flush=True)
            pairs = ("tuned/source", "tuned/untuned")
            slower += [f"{name} {target}: {pair}" for pair in pairs if answer[pair]["finding"] == Finding.SLOWER]
    print(f"MISS slower beyond the interval: {'; '.join(slower)}" if slower else "ok   none slower beyond the interval")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
