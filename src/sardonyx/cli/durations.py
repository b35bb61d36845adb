"""Lengths of time as users write them: "60", "90s", "2m"."""

from __future__ import annotations

import re

from sardonyx.errors import UsageError

_FORM = re.compile(r"\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>s|m|min|h|)\s*", re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_LONGEST = 7 * 24 * 3600


def duration(text: str) -> float:
    """Seconds; more than none.

    Raises:
        UsageError: for what is no length of time.
    """
    found = _FORM.fullmatch(text)
    seconds = float(found["number"]) * _SECONDS[found["unit"]] if found is not None else 0.0
    if not 0 < seconds <= _LONGEST:
        raise UsageError(f"'{text}' is not a length of time", hint="write 60, 90s or 2m; up to a week")
    return seconds
