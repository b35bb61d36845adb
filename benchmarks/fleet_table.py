"""Writes benchmarks/fleet.md from the results that benchmarks/fleet.py has stored."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fleet_cluster import table

PAGE = Path(__file__).with_name("fleet.md")
Row = dict[str, Any]


def write(results: Path) -> None:
    """Write the page from what there is."""
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    PAGE.write_text("\n".join(page(found)) + "\n")


def page(found: dict[str, Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("distributed", "onnx", "onnxruntime", "fsspec"))
    yield "# Many models\n"
    yield "Measured with `python benchmarks/fleet.py`, on the models of `python benchmarks/fleet_models.py`;"
    yield f"{packages}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores.\n"
    sections = {"run": runs, "overhead": overhead, "scaling": scaling, "s3": s3}
    for name, section in sections.items():
        if name in found:
            yield from section(found)


def runs(found: dict[str, Row]) -> Iterator[str]:
    """Yield how the runs over all models ended, and how they compare."""
    yield "## The same result everywhere\n"
    yield "`sardonyx optimize` with verification. Models are compared byte by byte with those of local processes, and"
    yield "the rows of the summary without times and machines. A run that was continued has no wall time.\n"
    dask = found["run"]["dask"] | {"comparison": found["run"]["comparison"]}
    reports = {"2 local processes": found["run"]["local"], "Dask, 2 workers": dask}
    if "chaos" in found:
        kills = found["chaos"]["kills"]
        label = f"Dask, {kills['workers']} workers and {kills['coordinator']} coordinators killed"
        reports[label] = found["chaos"]
    rows = []
    for label, report in reports.items():
        compared = report.get("comparison")
        rows.append(
            (
                label,
                report["models"],
                report["ended"].get("done", 0) + report["ended"].get("reused", 0),
                report["ended"].get("failed", 0),
                "–" if "kills" not in report and "reused" in report["ended"] else f"{report['wall'] / 60:.0f} min",
                f"{report['cell_seconds'] / report['models']:.2f} s",
                "–" if compared is None else f"{compared['models'] - _models(compared['different'])}",
                "–" if compared is None else f"{_models(compared['different']) + len(compared['rows_different'])}",
            )
        )
    header = ("where", "models", "done", "failed", "wall", "a model", "equal models", "differences")
    yield table(header, rows) + "\n"
    unequal = [(label, row) for label, report in reports.items() for row in _unequal_rows(report)]
    if unequal:
        yield table(("where", "row of the summary that differs"), unequal) + "\n"
        yield "Verification runs as many trials as fit into its time, and a model that is not deterministic fails on"
        yield "another trial.\n"
    if "chaos" in found:
        repeated = found["chaos"]["repeated"]
        yield f"With kills, {repeated['begun']} cells were begun more than once and {repeated['ended']} ended more than"
        yield "once; each is once in the result.\n"
    if found["run"]["local"]["reasons"]:
        yield "Models that failed with local processes:\n"
        yield table(("models", "reason"), [(count, text) for text, count in found["run"]["local"]["reasons"]]) + "\n"


def _unequal_rows(report: Row) -> list[str]:
    return report.get("comparison", {}).get("rows_different", [])


def _models(names: list[str]) -> int:
    return sum(name.endswith(".onnx") for name in names)


def overhead(found: dict[str, Row]) -> Iterator[str]:
    """Yield the cost of engines against a plain loop."""
    yield "## Overhead against a plain loop\n"
    rounds = found["overhead"]["rows"][0]["rounds"]
    yield f"One worker; medians of {rounds} turns of each engine and the loop. Cells compute, or sleep. The start of"
    yield "the child process that the first cell needs is apart.\n"
    rows = [
        (
            row["engine"],
            "compute" if row["busy"] else "sleep",
            row["cells"],
            f"{1000 * row['seconds']:.0f} ms",
            f"{100 * row['overhead']:.1f} %",
            f"{1000 * row['cost']:.1f} ms",
            f"{row['start']:.1f} s",
        )
        for row in found["overhead"]["rows"]
    ]
    yield table(("engine", "cells that", "number", "a cell", "overhead", "cost of a cell", "start"), rows) + "\n"


def scaling(found: dict[str, Row]) -> Iterator[str]:
    """Yield efficiency by the number of workers, and what limits it."""
    report = found["scaling"]
    yield "## Scaling\n"
    yield "Measured with real models; the wall time includes the start of the command. Two processes on the cores of"
    yield "this machine slow each other down: local processes show by how much, without a scheduler.\n"
    rows = [
        (
            row["engine"],
            row["workers"],
            row["cells"],
            f"{row['wall']:.0f} s",
            f"{row['cell_seconds']:.0f} s",
            f"{100 * row['efficiency']:.0f} %",
        )
        for row in report["real"]
    ]
    yield table(("engine", "workers", "models", "wall", "sum of the models' times", "efficiency"), rows) + "\n"
    yield "Simulated: Dask's scheduler and the real coordinator, and workers as threads of one process that sleep for"
    yield f"times drawn from the measured ones. All of them share {report['cores']} of the cores."
    yield "Efficiency is the sum of the cells' times / (workers × wall). It is low here because one cell takes longer"
    yield "than a worker's share of all others, so most workers are idle at the end. No schedule is shorter than the"
    yield "longest cell, nor than the sum / workers; `best / wall` compares with the larger one of these. The last two"
    yield "columns are the number of workers at which one core of the scheduler, or the coordinator, would be busy all"
    yield "the time. CPU times are without what the processes use when they are idle; that of the simulated workers is"
    yield "spent in one process, and limits the largest simulation.\n"
    rows = [
        (
            f"{row['workers']:,}",
            f"{row['cells']:,}",
            f"{row['mean']:.1f} s",
            f"{row['longest']:.0f} s",
            f"{row['mean'] * row['cells'] / row['workers']:.0f} s",
            f"{row['wall']:.0f} s",
            f"{100 * row['efficiency']:.0f} %",
            f"{100 * row['against_best']:.0f} %",
            *(f"{1000 * row['cpu'][name]:.1f} ms" for name in ("scheduler", "coordinator", "workers")),
            *(f"{row['limit'][name]:,.0f}" for name in ("scheduler", "coordinator")),
        )
        for row in report["simulated"]
    ]
    header = ["workers", "cells", "a cell", "longest", "sum / workers", "wall", "efficiency", "best / wall"]
    header += [f"CPU a cell, {name}" for name in ("scheduler", "coordinator", "workers")]
    yield table((*header, "limit, scheduler", "limit, coordinator"), rows) + "\n"
    rows = [
        (
            where,
            f"{row['bytes']:,}",
            f"{1000 * row['write']:.1f} ms",
            f"{1000 * row['slow']:.1f} ms",
            f"{1000 * row['read']:.1f} ms",
            f"{1 / row['write']:,.0f}",
        )
        for where, each in report["stores"].items()
        for row in each
    ]
    yield "Storing one result; the server of s3 is moto's, on the same machine.\n"
    yield table(("store", "bytes", "write", "95 %", "read", "writes a second, one writer"), rows) + "\n"


def s3(found: dict[str, Row]) -> Iterator[str]:
    """Yield how a run against a server with faults ended."""
    report = found["s3"]
    yield "## s3 with faults\n"
    yield f"{report['models']} models read from and written to a server that speaks S3, through a proxy that answers"
    yield f"{100 * report['rate']:.0f} % of requests with an error, late, or not at all: {_faults(report['faults'])}.\n"
    rows = [
        (
            name,
            f"{each['wall']:.0f} s",
            each["code"],
            each["compared"],
            each["differences"],
        )
        for name, each in report["runs"].items()
    ]
    yield table(("command", "wall", "exit code", "compared with a folder", "differences"), rows) + "\n"


def _faults(faults: dict[str, int]) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in faults.items() if kind not in ("requests", "uploads"))
