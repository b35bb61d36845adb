"""The machine that is measured on, and how busy others keep it: whoever reads a timing should know both.

What is not told (another system than Linux, a closed /proc) is None, never a guess.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sardonyx.records.bench import Machine

BUSY = 0.1  # share of all cores that others use, from which on it is worth a warning
MOMENT = 0.25  # seconds in which the idle machine is watched
_PROC = Path("/proc")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_IDLE = (3, 4)  # places in the line of /proc/stat: idle, and waiting for a disk
_KINDS = 8  # of time in that line; what follows (guests) is counted in these already


@dataclass(frozen=True, slots=True)
class _Ticks:
    """Processor time of the whole machine and of ourselves, in seconds since they began."""

    total: float
    busy: float
    own: float


class Watch:
    """What others use of the machine from the moment the watch is made."""

    def __init__(self, helpers: Iterable[int] = ()) -> None:
        self._helpers = tuple(helpers)  # processes of ours
        self._began = _ticks(self._helpers)

    def share(self) -> float | None:
        """Of all cores, 0 to 1; None where the system does not say, or too little time has passed."""
        ended = _ticks(self._helpers)
        if self._began is None or ended is None or ended.total <= self._began.total:
            return None
        others = (ended.busy - self._began.busy) - (ended.own - self._began.own)
        return min(1.0, max(0.0, others / (ended.total - self._began.total)))


def busy_now() -> float | None:
    """What others use of the machine while we do nothing for a moment."""
    watch = Watch()
    time.sleep(MOMENT)
    return watch.share()


def load() -> float | None:
    """Processes that want a core, over the last minute."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def described(*, load_before: float | None, busy_before: float | None, busy_during: float | None) -> Machine:
    """This machine, now that the measuring is over."""
    return Machine(
        cpu=_cpu(),
        cores=cores(),
        memory_bytes=_memory(),
        governor=_read(_GOVERNOR),
        load_before=load_before,
        load_after=load(),
        busy_before=busy_before,
        busy_during=busy_during,
    )


def cores() -> int:
    """How many cores this process may use."""
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


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _ticks(helpers: tuple[int, ...]) -> _Ticks | None:
    first = (_read(_PROC / "stat") or "").partition("\n")[0].split()
    if len(first) < 2 + max(_IDLE) or first[0] != "cpu":
        return None
    per_second = os.sysconf("SC_CLK_TCK")
    times = [int(each) / per_second for each in first[1 : 1 + _KINDS]]
    own = os.times()
    ours = own.user + own.system + own.children_user + own.children_system
    return _Ticks(sum(times), sum(times) - sum(times[place] for place in _IDLE), ours + sum(map(_used_by, helpers)))


def _used_by(process: int) -> float:
    """Seconds of processor time of another process; its name, which may hold anything, ends at the last bracket."""
    fields = (_read(_PROC / str(process) / "stat") or "").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


# How much memory this process holds and has held at most, as the system counts it: resident pages.
#
# Linux can forget the high-water mark, so that what was needed before does not hide what is needed now. Where it cannot
# be forgotten (macOS), only growth beyond the old mark is seen; elsewhere nothing is known, and None says so.

_STATUS = Path("/proc/self/status")
_FORGET = Path("/proc/self/clear_refs")
_HIGH_WATER = "5"  # what to forget, as Linux numbers it


def resident() -> int | None:
    """Bytes resident now, and from now on the high-water mark begins anew where the system can do that."""
    try:
        _FORGET.write_text(_HIGH_WATER)
    except OSError:
        return high_water()  # the old mark: what is taken off it later is growth beyond it
    return _linux("VmRSS")


def high_water() -> int | None:
    """The most bytes that were resident at once."""
    linux = _linux("VmHWM")
    if linux is not None:
        return linux
    try:
        resource: Any = importlib.import_module("resource")
    except ImportError:
        return None
    most = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most if sys.platform == "darwin" else most * 1024


def grown_since(before: int | None) -> int | None:
    """The high-water mark above what was resident before."""
    most = high_water()
    return None if before is None or most is None else max(0, most - before)


def _linux(field: str) -> int | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = next((line.split() for line in lines if line.startswith(f"{field}:")), None)
    return int(found[1]) * 1024 if found is not None else None
