"""How long measurements take at most, estimated from the sizes of the files before they start.

A model starts in about a second and 5 ms for each megabyte of weights: a process, the file, the first run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_START, _BYTES_A_SECOND = 1.0, 2e8
_STARTS = 3  # fresh processes for each file, the default of `bench`
_PROFILE, _ANALYZE, _PAGE = 5.0, 2.0, 2.0  # seconds, apart from loading


def bench_seconds(files: Sequence[Path], limit: float, starts: int, sizes: int = 1) -> float:
    """Return about how long `bench` takes.

    Args:
        files: the models.
        limit: seconds of all rounds together.
        starts: fresh processes for each file.
        sizes: sizes of a sweep; each after the first gets at most one start.
    """
    from sardonyx.verbs.bench.bench import starts_limit  # imported here because it loads what measures

    once = _once(files)
    starts = min(starts, max(1, int(starts_limit(limit) / once)))
    return limit + (1 + starts + (sizes - 1) * min(1, starts)) * once


def run_seconds(files: Sequence[Path], limit: float) -> float:
    """Return about how long the measurements of `optimize --run` take, whose timing is limited to these seconds."""
    return bench_seconds(files, limit, _STARTS) + _PROFILE + 2 * _once(files) + _ANALYZE + _PAGE


def _once(files: Sequence[Path]) -> float:
    """Return about how long it takes to start each file once."""
    return sum(_START + _bytes(file) / _BYTES_A_SECOND for file in files)


def _bytes(file: Path) -> int:
    """Return the size of a model with the data files beside it that are named after it."""
    return sum(path.stat().st_size for path in (file, *file.parent.glob(f"{file.name}.*data")) if path.is_file())
