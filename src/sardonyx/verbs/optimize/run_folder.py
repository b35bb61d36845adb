"""The folder that `sardonyx optimize MODEL --run FOLDER` writes: a run, its certificate, measurements, and a report.

`fill` writes it. If one of the measurements fails, the run gets a note and the folder has the other files.
`quantize MODEL --run FOLDER` adds a quantization to such a folder, or writes one with a quantization alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from sardonyx.common.atomic_write import explained, write_whole
from sardonyx.errors import OutputError, SardonyxError, UsageError
from sardonyx.inputs.generator import dynamic_dims
from sardonyx.ir import io
from sardonyx.ir.device import shown_names
from sardonyx.records import reading
from sardonyx.records.base import Record
from sardonyx.records.bench import Benchmark
from sardonyx.records.progress import Progress
from sardonyx.records.quantization import Quantization
from sardonyx.records.run import Run
from sardonyx.reporting.report import report
from sardonyx.reporting.run_bundle import SIDES
from sardonyx.verbs.placement.placement import placements

RUN, QUANTIZATION, PAGE = "run.json", "quantization.json", "report.html"
SECONDS = 6.0  # default time limit for timing both files
CERTIFICATE = "certificate.json.gz"
BENCH, PROFILE, ANALYSIS = "bench.json", "profile.json", "analysis.json"


def check(
    folder: str | Path, source: str | Path, sizes: Mapping[str, int] | None = None, *, force: bool = False
) -> None:
    """Check before any work that a run can be written to a folder.

    Raises:
        OutputError: the folder is a file, or contains a run already.
        UsageError: it contains a run of another model, or the model has no dimension that a size is given for.
    """
    path = _folder(folder)
    if not force and reading.tag_of(path / RUN) == Run.record_tag():
        other = Run.from_json((path / RUN).read_bytes(), str(path / RUN), "name another folder").source.path
        if other is not None and Path(other).name != Path(source).name:
            hint = "name another folder, or replace its run with --force"
            raise UsageError(f"{path} contains a run of {other}", hint=hint)
    _check_free(path, (*_names(), CERTIFICATE), force=force)
    if sizes:
        dynamic_dims(io.load(source), sizes)


def _folder(folder: str | Path) -> Path:
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path} is a file", hint="name a folder; it is created if it does not exist")
    return path


def _names() -> list[str]:
    """Return the names of all files of a run, without the certificate."""
    placed = (_placement(device, side) for device in shown_names() for side in SIDES)
    return [RUN, BENCH, PROFILE, ANALYSIS, *placed, PAGE]


def _placement(device: str, side: str) -> str:
    return f"placement-{device}-{side}.json"


def _check_free(folder: Path, names: Sequence[str], *, force: bool) -> None:
    for name in names:
        if not force and (folder / name).exists():
            raise OutputError(f"{folder / name} exists", hint="name another folder, or overwrite it with --force")


def check_quantization(folder: str | Path, *, force: bool = False) -> None:
    """Check before any work that a quantization can be written to a folder; one with a run is written again.

    Raises:
        OutputError: the folder is a file, or contains a quantization or another page already.
    """
    path = _folder(folder)
    _check_free(path, (QUANTIZATION,) if (path / RUN).exists() else (QUANTIZATION, PAGE), force=force)


def add_quantization(folder: str | Path, quantization: Quantization) -> None:
    """Write a quantization to a folder, and a report of all records in it.

    Raises:
        OutputError: the folder cannot be written.
    """
    path = Path(folder)
    with explained(str(path)):
        path.mkdir(parents=True, exist_ok=True)
    _write(path / QUANTIZATION, quantization.to_json())
    report(path, path / PAGE, force=True)


def fill(
    folder: str | Path,
    run: Run,
    *,
    conditions: Mapping[str, Any] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Write a run, measurements of its two files, and a report to a folder.

    Args:
        folder: created if it does not exist; an export.json in it that belongs to the run is included in the report.
        run: its two files must be at the paths it names.
        conditions: how both files are timed: seconds (six if not given), sizes, threads (one), seed.
        force: overwrite an earlier run in the folder.
        progress: called with the phase, and the fraction done or None.

    Returns:
        The run with a note for each measurement that failed.

    Raises:
        OutputError: the folder contains a run already, or cannot be written.
        UsageError: the run was not written to a file, so there is nothing to time.
    """
    path, source, result = Path(folder), run.source.path, run.result.path
    if source is None or result is None:
        raise UsageError("only files can be timed, and this run is of models in memory", hint="optimize(FILE, OUTPUT)")
    _check_free(path, _names(), force=force)
    with explained(str(path)):
        path.mkdir(parents=True, exist_ok=True)
        for name in _names():  # files of an earlier run must not be mistaken for this one's
            (path / name).unlink(missing_ok=True)
    _write(path / RUN, run.to_json())
    failures = list(_measure(path, (source, result), conditions or {}, progress))
    if failures:
        run = replace(run, notes=(*run.notes, *failures))
        _write(path / RUN, run.to_json())
    if progress is not None:
        progress("writing the page", None)
    report(path, path / PAGE, force=True)
    return run


def _measure(folder: Path, files: Sequence[str], how: Mapping[str, Any], progress: Progress | None) -> Iterator[str]:
    """Write a record of each measurement to the folder, and yield one line for each that fails."""
    from sardonyx import analyze, bench
    from sardonyx.verbs.profile.profiler import profile_timed

    plain_ms: list[float] = []  # of a run of each file, as the benchmark measured it with the same settings and inputs

    def run_bench() -> Benchmark:
        settings: dict[str, Any] = {"seconds": SECONDS, **how}
        timed = bench(files, **settings, progress=progress)
        plain_ms.extend(1000 * timing.median for timing in timed.points[0].timings)
        return timed

    def run_placements() -> dict[str, Record]:
        if progress is not None:
            progress("looking up devices", None)
        sides = {side: placements(Path(file), shown_names()) for side, file in zip(SIDES, files, strict=True)}
        return {_placement(each.device, side): each for side, placed in sides.items() for each in placed}

    (first, second), sizes = map(Path, files), how.get("sizes")
    rest = {name: value for name, value in how.items() if name not in ("seconds", "sizes")}
    measurements: dict[str, Callable[[], Mapping[str, Record]]] = {
        "not timed": lambda: {BENCH: run_bench()},
        "no time by module": lambda: {PROFILE: profile_timed(files, plain_ms, sizes, **rest, progress=progress)},
        "no costs": lambda: {ANALYSIS: analyze(first, beside=[second], sizes=sizes, progress=progress)},
        "no devices": run_placements,
    }
    for failure, measure in measurements.items():
        try:
            for name, record in measure().items():
                _write(folder / name, record.to_json())
        except OutputError:
            raise
        except SardonyxError as error:
            yield f"{failure}: {error.message}"
        except Exception as error:  # the run is verified and written: a bug in a measurement must not lose it
            yield f"{failure}: {type(error).__name__}: {error}"


def _write(path: Path, record: bytes) -> None:
    write_whole(str(path), msgspec.json.format(record, indent=2) + b"\n", force=True)
