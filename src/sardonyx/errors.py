"""Every error a user can cause, with what to do next and the exit code it means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class SardonyxError(Exception):
    """One clear line, an optional hint, and the exit code of the command that hits it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(SardonyxError):
    """The request makes no sense: unknown pass, contradictory options."""

    exit_code = 2


class ModelError(SardonyxError):
    """The model cannot be read, or is not what it says it is."""


class OutputError(SardonyxError):
    """The result cannot be written where it was asked for."""


class RuntimeFailure(SardonyxError):
    """No runtime here can run the model."""


class VerificationFailed(SardonyxError):
    """The two models disagree and nothing could be rolled back to mend it."""

    exit_code = 3


class GateNotMet(SardonyxError):
    """A `--fail-if` expression came out true."""

    exit_code = 4


# How this room words what went wrong: the nearest names to an unknown one, and a library's error in one line.

_FEW = 8
_LONGEST = 240
_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-f]+")


def suggest(name: str, known: Iterable[str]) -> str | None:
    """A hint with the names nearest to `name`; None where there is nothing to choose from."""
    names = sorted(set(known))
    folded = {candidate.lower(): candidate for candidate in names}
    close = [folded[found] for found in difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.5)]
    if close:
        return f"did you mean {' or '.join(close)}?"
    if not names:
        return None
    return f"known: {', '.join(names[:_FEW])}{', …' if len(names) > _FEW else ''}"


def reason(error: BaseException) -> str:
    """An exception's kind and its first telling line."""
    lines = [line for line in (" ".join(line.split()) for line in _text(error).splitlines()) if line]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(error: BaseException) -> str:
    """What an exception says, without the addresses of objects, which differ from run to run."""
    try:
        return _ADDRESS.sub("", str(error))
    except Exception:  # somebody's own exception may be unable to say anything
        return ""
