"""A folder with everything that is known of one optimized model: its run, times, profile, costs, and the page of it.

`sardonyx optimize MODEL --run FOLDER` leaves one; `fill` does the same for a run at hand. A part that cannot be had is
said in the run's notes, and the others are there all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from sardonyx.errors import OutputError, SardonyxError, UsageError
from sardonyx.ir import io
from sardonyx.measurement.feeds import at_size
from sardonyx.records import reading
from sardonyx.records.analysis import Analysis
from sardonyx.records.bench import Benchmark
from sardonyx.records.profile import Profile
from sardonyx.records.progress import Progress
from sardonyx.records.run import Run
from sardonyx.reporting.report import report

RUN, PAGE = "run.json", "report.html"
SECONDS = 10.0  # that the timing of both files may take, where nobody says
_NAMES = (RUN, "bench.json", "profile.json", "analysis.json", PAGE)


@dataclass(frozen=True, slots=True)
class Conditions:
    """How both files are timed."""

    seconds: float = SECONDS
    sizes: Mapping[str, int] | None = None  # of dims that inputs leave open, by name; usual ones where None
    threads: int = 1
    seed: int = 0


def check(
    folder: str | Path, source: str | Path, sizes: Mapping[str, int] | None = None, *, force: bool = False
) -> None:
    """Refuse at once what could not be left after all the work.

    Raises:
        OutputError: the folder is a file, or holds a run already.
        UsageError: it holds a run of another model, or a size is of a dim that the model has not.
    """
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise OutputError(f"{place} is a file", hint="name a folder; it is made where it is missing")
    if not force and (other := _held(place)) is not None and Path(other).name != Path(source).name:
        hint = "name another folder; --force puts this run in its place"
        raise UsageError(f"{place} holds a run of {other}", hint=hint)
    for name in _NAMES:
        if not force and (place / name).exists():
            raise OutputError(f"{place / name} exists", hint="name another folder, or overwrite it with --force")
    if sizes:
        at_size(io.load(source), sizes)


def fill(
    folder: str | Path,
    run: Run,
    *,
    conditions: Conditions | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Leave a run, what its two files take, and a page of it all in a folder.

    Args:
        folder: made where it is missing; an export.json in it that belongs to the run is shown on the page too.
        run: with both files where it says they are.
        conditions: how both files are timed; for ten seconds, on one thread, where None.
        force: overwrite an earlier run in the folder.
        progress: told the phase, and how far it is where that is known.

    Returns:
        The run with a note for each part that could not be had.

    Raises:
        OutputError: the folder holds a run already, or cannot be written.
        UsageError: the run was not written to a file, so there is nothing to time.
    """
    place, source, result = Path(folder), run.source.path, run.result.path
    if source is None or result is None:
        raise UsageError("only files can be timed, and this run is of models in memory", hint="optimize(FILE, OUTPUT)")
    check(place, source, force=force)
    with io.explained(str(place)):
        place.mkdir(parents=True, exist_ok=True)
        for name in _NAMES:  # what an earlier run left must not be taken for this one's
            (place / name).unlink(missing_ok=True)
    _write(place / RUN, run.to_json())
    missing = list(_measured(place, (source, result), conditions or Conditions(), progress or _unheard))
    if missing:
        run = replace(run, notes=(*run.notes, *missing))
        _write(place / RUN, run.to_json())
    if progress is not None:
        progress("writing the page", None)
    report(place, place / PAGE, force=True)
    return run


def _measured(place: Path, files: Sequence[str], how: Conditions, tell: Progress) -> Iterator[str]:
    """Write each record beside the run; what could not be had, in words."""
    from sardonyx import analyze, bench, profile

    def timed() -> Benchmark:
        return bench(files, seconds=how.seconds, sizes=how.sizes, threads=how.threads, seed=how.seed, progress=tell)

    def profiled() -> Profile:
        return profile(files, sizes=how.sizes, threads=how.threads, seed=how.seed, progress=tell)

    def analyzed() -> Analysis:
        return analyze(Path(files[0]), beside=[Path(files[1])], sizes=how.sizes, progress=tell)

    parts: dict[str, tuple[str, Callable[[], Benchmark | Profile | Analysis]]] = {
        "bench.json": ("not timed", timed),
        "profile.json": ("no time by module", profiled),
        "analysis.json": ("no costs", analyzed),
    }
    for name, (lacking, make) in parts.items():
        try:
            _write(place / name, make().to_json())
        except OutputError:
            raise
        except SardonyxError as error:
            yield f"{lacking}: {error.message}"
        except Exception as error:  # the run is proven and written: no fault in what is told of it may cost it
            yield f"{lacking}: {type(error).__name__}: {error}"


def _write(path: Path, record: bytes) -> None:
    io.write_whole(str(path), msgspec.json.format(record, indent=2) + b"\n", force=True)


def _held(folder: Path) -> str | None:
    """The source of the run that is in a folder already."""
    path = folder / RUN
    if reading.tag_of(path) != Run.record_tag():
        return None
    return Run.from_json(path.read_bytes(), str(path), "name another folder").source.path


def _unheard(_phase: str, _fraction: float | None) -> None:
    """Nobody listens."""
