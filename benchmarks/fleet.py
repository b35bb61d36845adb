"""`sardonyx optimize` over many models: the same results from local processes, a Dask cluster, and one with faults.

    python benchmarks/fleet.py run RESULTS --models FOLDER        # local processes, then Dask with 2 workers; compared
    python benchmarks/fleet.py chaos RESULTS --models FOLDER      # workers and the coordinator are killed on the way
    python benchmarks/fleet.py overhead RESULTS                   # against a plain loop
    python benchmarks/fleet.py scaling RESULTS --models FOLDER    # 1 and 2 workers; 10, 100 and 1,000 simulated
    python benchmarks/fleet.py s3 RESULTS --models FOLDER         # models in and results out, with injected faults
    python benchmarks/fleet.py opportunities RESULTS --models FOLDER    # for fleet_findings.py
    python benchmarks/fleet.py timing RESULTS --models FOLDER     # for fleet_findings.py
    python benchmarks/fleet.py table RESULTS                      # writes fleet.md

FOLDER is made by fleet_models.py; `--limit N` takes a sample of it. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fleet_costs
import fleet_table
from fleet_cluster import Cluster, cluster, environment
from fleet_models import MANIFEST, Row

HERE = Path(__file__).parent
SUMMARY = "summary.json"
RATE = 0.1  # of requests to the server of s3 that fail
KILLS = 60.0  # seconds between two kills of a worker
RESTARTS = (1 / 3, 2 / 3)  # shares of the models that are done when the coordinator is killed
VARYING = {  # what depends on the machine, the moment and the place, not on the model
    *("seconds", "peak", "estimate", "attempts", "machine", "machines", "environment"),
    *("date", "updated", "command", "path", "folder", "source"),
}
KINDS = ("run", "chaos", "overhead", "scaling", "s3", "opportunities", "timing", "table")
BENCH = 4.0  # seconds for each model
Comparison = dict[str, Any]


def models_of(folder: Path, limit: int | None) -> list[Row]:
    """Return the models of a folder, or a sample that is the same in every run."""
    rows = [json.loads(line) for line in (folder / MANIFEST).read_text().splitlines()]
    if limit is None or limit >= len(rows):
        return rows
    rows.sort(key=lambda row: hashlib.sha256(row["name"].encode()).hexdigest())
    return rows[:limit]


def manifest_of(rows: Sequence[Row], models: Path | str, path: Path) -> Path:
    """Write a manifest for the command line: sources as paths or URLs, and names."""
    root = models if isinstance(models, str) else str(models.resolve())
    lines = [json.dumps({"source": f"{root}/{row['source']}", "name": row["name"]}) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def words(verb: str, manifest: Path, out: Path | str, *more: str) -> list[str]:
    """Return the words of a command over many models."""
    return [sys.executable, "-m", "sardonyx", verb, str(manifest), "--out-dir", str(out), *more]


def command(line: Sequence[str], log: Path, **variables: str) -> tuple[int, float]:
    """Run a command with its output in a file; return its exit code and wall time."""
    start = time.monotonic()
    with log.open("ab") as file:
        code = subprocess.run(line, stdout=file, stderr=file, env=environment(**variables), check=False).returncode
    return code, time.monotonic() - start


# ------------------------------------------------------------------------------------------ comparison


def stripped(value: Any) -> Any:
    """Return a record without what varies from run to run."""
    if isinstance(value, dict):
        kept = {key: stripped(each) for key, each in value.items() if key not in VARYING}
        if kept.get("status") == "reused":
            kept["status"] = "done"
        return kept
    return [stripped(each) for each in value] if isinstance(value, list) else value


def files_of(folder: Path) -> dict[str, Path]:
    """Return the results in a folder: models, their weights and their records."""
    found = (path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in found}
    return {name: path for name, path in named.items() if name.split("/")[0] in ("exported", "packages", "drawn")}


def compare(one: Path, other: Path) -> Comparison:
    """Compare two folders of results: models byte by byte, records and the summary without what varies."""
    left, right = files_of(one), files_of(other)
    both = sorted(left.keys() & right.keys())
    binary = [name for name in both if not name.endswith(".json")]
    different = [name for name in binary if _digest(left[name]) != _digest(right[name])]
    records = [name for name in both if name.endswith(".json")]
    unequal = {name: _fields(_record(left[name]), _record(right[name])) for name in records}
    summaries = [{row["name"]: stripped(row) for row in _rows(folder)} for folder in (one, other)]
    rows = [name for name in summaries[0] if summaries[0][name] != summaries[1].get(name)]
    return {
        "models": len([name for name in binary if name.endswith(".onnx")]),
        "different": different,
        "missing": sorted(left.keys() ^ right.keys()),
        "records": len(records),
        "records_different": {name: fields for name, fields in unequal.items() if fields},
        "rows": len(summaries[0]),
        "rows_different": rows,
        "equal": not different and not rows and left.keys() == right.keys() and len(summaries[0]) == len(summaries[1]),
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record(path: Path) -> Any:
    return stripped(json.loads(path.read_bytes()))


def _fields(one: Any, other: Any) -> list[str]:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return [] if one == other else ["contents"]
    return [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]


def _rows(folder: Path) -> list[Row]:
    return json.loads((folder / SUMMARY).read_bytes())["models"]


def summary_of(folder: Path) -> Row:
    """Return how many models ended how, and why those that failed did."""
    rows = _rows(folder)
    reasons = Counter(row["reason"][:100] for row in rows if row["status"] == "failed")
    return {
        "models": len(rows),
        "ended": Counter(row["status"] for row in rows),
        "codes": Counter(str(row["code"]) for row in rows),
        "reasons": reasons.most_common(12),
        "cell_seconds": sum(row["seconds"] for row in rows),
        "bytes": {name: (folder / name).stat().st_size for name in (SUMMARY, "index.html") if (folder / name).exists()},
    }


# ------------------------------------------------------------------------------------------ run and chaos


def run(results: Path, models: Path, limit: int | None) -> None:
    """Optimize all models with local processes and on Dask, and compare."""
    manifest = manifest_of(models_of(models, limit), models, results / "manifest.jsonl")
    code, wall = command(words("optimize", manifest, results / "local", "--workers", "2"), results / "local.log")
    report: Row = {"local": {"code": code, "wall": wall, **summary_of(results / "local")}}
    with cluster(results / "cluster") as made:
        line = words("optimize", manifest, results / "dask", "--cluster", made.address)
        code, wall = command(line, results / "dask.log")
    report["dask"] = {"code": code, "wall": wall, **summary_of(results / "dask")}
    report["comparison"] = compare(results / "local", results / "dask")
    save(results, "run", report)


def chaos(results: Path, models: Path, limit: int | None, every: float = KILLS) -> None:
    """Optimize all models on Dask while workers and the coordinator are killed, and compare with local processes."""
    rows = models_of(models, limit)
    manifest = manifest_of(rows, models, results / "manifest.jsonl")
    out = results / "chaos"
    start = time.monotonic()
    with cluster(results / "chaos-cluster") as made:
        line = words("optimize", manifest, out, "--cluster", made.address)
        code, kills = _disturbed(line, results / "chaos.log", made, lambda: _written(out), len(rows), every)
        counted = made.counted()
    repeated = {kind: sum(count - 1 for count in counts.values()) for kind, counts in counted.items()}
    report: Row = {"code": code, "wall": time.monotonic() - start, "kills": kills, "repeated": repeated}
    save(results, "chaos", report | summary_of(out) | {"comparison": compare(results / "local", out)})


def _written(folder: Path) -> int:
    """Return how many models are in a folder, in which others are made and removed meanwhile."""
    return sum(name.endswith(".onnx") for _, _, names in os.walk(folder) for name in names)


def _disturbed(
    line: Sequence[str], log: Path, made: Cluster, done: Callable[[], int], total: int, every: float
) -> tuple[int, Row]:
    """Run a command to its end; kill a worker now and then, and the command itself, which is started again."""
    kills = {"workers": 0, "coordinator": 0}
    pending = [share * total for share in RESTARTS]
    while True:
        with log.open("ab") as file:
            process = subprocess.Popen(line, stdout=file, stderr=file, env=environment(), start_new_session=True)
        due = time.monotonic() + every
        while process.poll() is None:
            time.sleep(0.5)
            if time.monotonic() > due:
                kills["workers"] += made.kill_worker() is not None
                due = time.monotonic() + every
            if pending and done() >= pending[0]:
                pending.pop(0)
                process.kill()
                kills["coordinator"] += 1
        if process.returncode >= 0:
            return process.returncode, kills


# ------------------------------------------------------------------------------------------ costs


def overhead(results: Path, cells: Sequence[int]) -> None:
    """Measure the overhead of engines for cells of one second and of ten milliseconds."""
    rows = [
        row
        for length, count in zip((1.0, 0.01), cells, strict=True)
        for busy in (True, False)
        for row in fleet_costs.overhead(results / f"overhead-{length:g}-{busy}", length, count, busy=busy)
    ]
    save(results, "overhead", {"rows": rows})


def scaling(results: Path, models: Path, limit: int | None, simulated: Sequence[int]) -> None:
    """Measure 1 and 2 workers on real models, simulate more, and time the stores."""
    manifest = manifest_of(models_of(models, limit or 60), models, results / "scaling.jsonl")
    real = [_real_row(results, manifest, engine, workers) for engine in ("local", "dask") for workers in (1, 2)]
    for row in real:
        alone = next(each for each in real if each["engine"] == row["engine"])
        row["efficiency"] = alone["wall"] / row["workers"] / row["wall"]
    source = results / "local" if (results / "local" / SUMMARY).exists() else results / "scaling-local-1"
    times = [row["seconds"] for row in _rows(source) if row["seconds"] > 0]
    rows = [fleet_costs.simulate(results / f"simulated-{count}", count, times) for count in simulated]
    stores = {"folder": fleet_costs.writes(str(results / "store"), (10_000, 1_000_000))}
    with faulty_server():
        stores["s3"] = fleet_costs.writes("s3://fleet/store", (10_000, 1_000_000))
    save(results, "scaling", {"real": real, "simulated": rows, "stores": stores, "cores": len(os.sched_getaffinity(0))})


def _real_row(results: Path, manifest: Path, engine: str, workers: int) -> Row:
    """Optimize the models of a manifest; local processes show how far two cores of this machine are independent."""
    out = results / f"scaling-{engine}-{workers}"
    shutil.rmtree(out, ignore_errors=True)
    log = results / "scaling.log"
    if engine == "local":
        _, wall = command(words("optimize", manifest, out, "--workers", str(workers)), log)
    else:
        with cluster(results / f"scaling-cluster-{workers}", workers) as made:
            _, wall = command(words("optimize", manifest, out, "--cluster", made.address), log)
    rows = _rows(out)
    total = sum(row["seconds"] for row in rows)
    return {"engine": engine, "workers": workers, "cells": len(rows), "wall": wall, "cell_seconds": total}


# ------------------------------------------------------------------------------------------ s3


def faulty_server() -> Any:
    """Return the server of the tests, which speaks S3 and fails on request."""
    sys.path.append(str(HERE.parent / "tests" / "fleet"))
    from s3_server import running_server  # pyright: ignore[reportMissingImports]

    return running_server("fleet")


def s3(results: Path, models: Path, limit: int | None, rate: float) -> None:
    """Optimize and study models from and to a server with faults, and compare with a folder."""
    from sardonyx.fleet.storage import open_store

    rows = models_of(models, limit or 60)
    report: Row = {"models": len(rows), "rate": rate, "runs": {}}
    files = [str(models.resolve() / row["source"]) for row in rows]
    for place in ("s3-folder", "s3-copy", "s3-study", "s3-study-copy"):
        shutil.rmtree(results / place, ignore_errors=True)
    log = results / "s3.log"
    command(words("optimize", manifest_of(rows, models, results / "s3-a.jsonl"), results / "s3-folder"), log)
    command(study_words(files, results / "s3-study"), log)
    with faulty_server() as server:
        store = open_store("s3://fleet/models")
        for row in rows:
            store.write(row["source"], (models / row["source"]).read_bytes())
        server.faults(rate=rate, seed=1)
        line = words("optimize", manifest_of(rows, store.url, results / "s3-b.jsonl"), "s3://fleet/out")
        first = command(line, log)
        second = command(study_words(files, "s3://fleet/study"), log)
        report["faults"] = dict(server.counts())
        server.faults()
        for name in ("out", "study"):
            _download(f"s3://fleet/{name}", results / {"out": "s3-copy", "study": "s3-study-copy"}[name])
    compared = compare(results / "s3-folder", results / "s3-copy")
    report["runs"]["optimize"] = _s3_row(first, f"{compared['models']} models", _differences(compared))
    tables = _tables(results / "s3-study"), _tables(results / "s3-study-copy")
    different = sum(tables[0].get(name) != tables[1].get(name) for name in tables[0].keys() | tables[1].keys())
    report["runs"]["study"] = _s3_row(second, f"{len(tables[0])} tables", different)
    save(results, "s3", report | {"comparison": compared})


def study_words(files: Sequence[str], out: Path | str) -> list[str]:
    """Return the words of a study that times nothing."""
    return [sys.executable, "-m", "sardonyx", "study", *files, "--only", "forensics", "--workers", "2", "-o", str(out)]


def _s3_row(ended: tuple[int, float], compared: str, differences: int) -> Row:
    return {"code": ended[0], "wall": ended[1], "compared": compared, "differences": differences}


def _differences(compared: Comparison) -> int:
    return sum(len(compared[kind]) for kind in ("different", "missing", "rows_different"))


def _tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.csv")}


def _download(url: str, folder: Path) -> None:
    from sardonyx.fleet.storage import open_store

    store = open_store(url)
    for name in store.names():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        store.download(name, folder / name)


# ------------------------------------------------------------------------------------------ for the findings


def opportunities(results: Path, models: Path, limit: int | None) -> None:
    """Count what is left to fuse in the models that are not drawn."""
    rows = [row for row in models_of(models, limit) if row["origin"] != "drawn"]
    files = [str(models.resolve() / row["source"]) for row in rows]
    code, wall = command(study_words(files, results / "opportunities"), results / "opportunities.log")
    save(results, "opportunities", {"code": code, "wall": wall, "models": len(rows)})


def timing(results: Path, models: Path, limit: int | None) -> None:
    """Time models before and after, as many of each family as there are, up to the limit."""
    path = results / "timing.jsonl"
    done = {json.loads(line)["name"] for line in path.read_text().splitlines()} if path.exists() else set()
    for row in timed_sample(models_of(models, None), limit or 60):
        after = results / "local" / f"{row['name']}.onnx"
        if row["name"] in done or not after.exists():
            continue
        line = [sys.executable, "-m", "sardonyx", "bench", str(models / row["source"]), str(after)]
        line += ["--seconds", f"{BENCH:g}", "--starts", "0", "--clock", "cpu", "--json"]
        answer = subprocess.run(line, capture_output=True, env=environment(), check=False)
        if answer.returncode == 0:
            pace = json.loads(answer.stdout)["points"][0]["timings"][1]["against_first"]
            with path.open("a") as file:
                file.write(json.dumps({"name": row["name"], **pace}) + "\n")
        print(f"{row['name']}: exit code {answer.returncode}", flush=True)


def timed_sample(rows: Sequence[Row], count: int) -> list[Row]:
    """Return models that are not drawn, one architecture once, in turn from each family."""
    chosen = {row["architecture"]: row for row in rows if row["origin"] != "drawn"}
    shuffled = sorted(chosen.values(), key=lambda row: row["name"])
    random.Random(0).shuffle(shuffled)
    families: dict[str, list[Row]] = {}
    for row in shuffled:
        families.setdefault(row["family"], []).append(row)
    turns = [row for turn in range(count) for family in families.values() for row in family[turn : turn + 1]]
    return turns[:count]


def save(results: Path, name: str, report: Row) -> None:
    """Write the result of a subcommand and print its numbers."""
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1)[:4000])


def main(given: Sequence[str]) -> int:
    """Run a subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("results", type=Path)
    parser.add_argument("--models", type=Path, help="made by fleet_models.py")
    parser.add_argument("--limit", type=int, help="how many models")
    parser.add_argument("--every", type=float, default=KILLS, help="seconds between two kills of a worker")
    parser.add_argument("--rate", type=float, default=RATE, help="share of requests to the server that fail")
    parser.add_argument("--cells", type=int, nargs=2, default=(20, 300), help="of one second, and of 10 ms")
    parser.add_argument("--simulated", type=int, nargs="*", default=(10, 100, 1000), help="workers")
    asked = parser.parse_args(given)
    asked.results.mkdir(parents=True, exist_ok=True)
    models: Path = asked.models or Path("models")
    if not (models / MANIFEST).exists() and asked.kind not in ("overhead", "table"):
        parser.error(f"--models: there is no {MANIFEST}")
    ways: dict[str, Callable[[], None]] = {
        "run": lambda: run(asked.results, models, asked.limit),
        "chaos": lambda: chaos(asked.results, models, asked.limit, asked.every),
        "overhead": lambda: overhead(asked.results, asked.cells),
        "scaling": lambda: scaling(asked.results, models, asked.limit, asked.simulated),
        "s3": lambda: s3(asked.results, models, asked.limit, asked.rate),
        "opportunities": lambda: opportunities(asked.results, models, asked.limit),
        "timing": lambda: timing(asked.results, models, asked.limit),
        "table": lambda: fleet_table.write(asked.results),
    }
    ways[asked.kind]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
