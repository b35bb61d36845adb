"""How much memory this process holds and has held at most, as the system counts it: resident pages.

Linux can forget the high-water mark, so that what was needed before does not hide what is needed now. Where it cannot
be forgotten (macOS), only growth beyond the old mark is seen; elsewhere nothing is known, and None says so.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

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
