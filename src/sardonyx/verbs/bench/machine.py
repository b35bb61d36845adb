"""Describe the machine that is measured on, how busy other processes keep it, and how much memory this process uses.

What the system does not report (anything but Linux, a closed /proc) is None.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sardonyx.records.bench import Machine

OBSERVED_SECONDS = 0.25  # during which the machine is observed before measuring
_PROC = Path("/proc")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_IDLE_FIELDS = (3, 4)  # fields in the first line of /proc/stat: idle, and waiting for a disk
_TIME_FIELDS = 8  # that add up to all time; the fields after them (guests) are included in these


class Watch:
    """Measures how much of the machine other processes use from its creation on."""

    def __init__(self, helpers: Iterable[int] = ()) -> None:
        """Start; `helpers` are the ids of our other processes."""
        self._helpers = tuple(helpers)
        self._began = _spent(self._helpers)

    def share(self) -> float | None:
        """Return the share of all cores used by others, 0 to 1; None if unknown or too little time has passed."""
        ended = _spent(self._helpers)
        if self._began is None or ended is None or ended[0] <= self._began[0]:
            return None
        total, others = (end - begin for begin, end in zip(self._began, ended, strict=True))
        return min(1.0, max(0.0, others / total))


def busy_now() -> float | None:
    """Return the share of the machine that others use, observed while this process sleeps for a moment."""
    watch = Watch()
    time.sleep(OBSERVED_SECONDS)
    return watch.share()


def load() -> float | None:
    """Return the load average of the last minute, or None if unknown."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def describe(*, load_before: float | None, busy_before: float | None, busy_during: float | None) -> Machine:
    """Return the description of this machine for the record, after measuring."""
    memory = None
    with contextlib.suppress(AttributeError, ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cpu=_cpu(),
        cores=cores(),
        memory_bytes=memory,
        governor=_read(_GOVERNOR),
        load_before=load_before,
        load_after=load(),
        busy_before=busy_before,
        busy_during=busy_during,
    )


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _cpu() -> str | None:
    for line in (_read(_PROC / "cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("model name", "hardware") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or None


def _spent(helpers: tuple[int, ...]) -> tuple[float, float] | None:
    """Return the CPU seconds of the whole machine, and those that other processes used; None if unknown."""
    first = (_read(_PROC / "stat") or "").partition("\n")[0].split()
    if len(first) < 2 + max(_IDLE_FIELDS) or first[0] != "cpu":
        return None
    per_second = os.sysconf("SC_CLK_TCK")
    times = [int(ticks) / per_second for ticks in first[1 : 1 + _TIME_FIELDS]]
    own = os.times()
    ours = own.user + own.system + own.children_user + own.children_system
    for process in helpers:  # its name, which may contain anything, ends at the last bracket
        fields = (_read(_PROC / str(process) / "stat") or "").rpartition(")")[2].split()
        ours += (int(fields[11]) + int(fields[12])) / per_second if len(fields) > 12 else 0.0
    return sum(times), sum(times) - sum(times[index] for index in _IDLE_FIELDS) - ours


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


# Memory is counted in resident pages. Linux can reset the high-water mark, so that earlier peaks do not hide later
# ones. On macOS, where it cannot be reset, only growth beyond the old mark is seen; elsewhere the result is None.

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_HIGH_WATER = "5"  # the number by which Linux resets the high-water mark


def resident() -> int | None:
    """Return the bytes resident now, and reset the high-water mark if the system can."""
    try:
        _CLEAR.write_text(_HIGH_WATER)
    except OSError:
        return high_water()  # the old mark: only growth beyond it is seen
    return _linux("VmRSS")


def high_water() -> int | None:
    """Return the largest number of bytes that were resident at once, or None if unknown."""
    if (linux := _linux("VmHWM")) is not None:
        return linux
    try:
        resource: Any = importlib.import_module("resource")
    except ImportError:
        return None
    most = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most if sys.platform == "darwin" else most * 1024


def grown_since(before: int | None) -> int | None:
    """Return how far the high-water mark is above what was resident before."""
    most = high_water()
    return None if before is None or most is None else max(0, most - before)


def _linux(field: str) -> int | None:
    lines = (_read(_STATUS) or "").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)
