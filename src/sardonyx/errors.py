"""All errors that a user can cause, with a hint what to do next and the exit code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class SardonyxError(Exception):
    """An error with a one-line message, an optional hint, and the exit code of the command that raises it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(SardonyxError):
    """The request is not valid: unknown pass, contradictory options."""

    exit_code = 2


class ModelError(SardonyxError):
    """The model cannot be read, or is not valid."""


class OutputError(SardonyxError):
    """The result cannot be written to the requested destination."""


class RuntimeFailure(SardonyxError):
    """No runtime on this machine can run the model."""


class VerificationFailed(SardonyxError):
    """The two models differ, and rolling back rewrites did not help."""

    exit_code = 3


class GateNotMet(SardonyxError):
    """A `--fail-if` expression is true."""

    exit_code = 4


def install_hint(extra: str) -> str:
    """Return how to install an extra: sardonyx is on no package index."""
    return f'in a checkout of sardonyx: pip install ".[{extra}]"'


_MAX_NAMES = 8  # in a hint
_MAX_LENGTH = 240  # characters of a message
_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-f]+")


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the names closest to `name`, or None if none is close."""
    folded = {candidate.lower(): candidate for candidate in sorted(set(known))}
    begun = [folded[candidate] for candidate in folded if name and candidate.startswith(name.lower())]
    close = begun or [folded[match] for match in difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.5)]
    return f"did you mean {' or '.join(close[:3])}?" if close else None


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the names closest to `name`, or else with all; None if there are no names."""
    names = sorted(set(known))
    close = did_you_mean(name, names)
    if close is not None or not names:
        return close
    return f"known: {', '.join(names[:_MAX_NAMES])}{', …' if len(names) > _MAX_NAMES else ''}"


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices of a parameter."""
    if value not in choices:
        raise UsageError(f"{name} is {value!r}", hint=f"one of {', '.join(map(repr, choices))}")


def reason(error: BaseException) -> str:
    """Return the class of an exception and its first meaningful line."""
    lines = [line for line in (" ".join(line.split()) for line in _text(error).splitlines()) if line]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    text = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(error: BaseException) -> str:
    """Return the text of an exception without addresses of objects, which differ from run to run."""
    try:
        return _ADDRESS.sub("", str(error))
    except Exception:  # a foreign exception class may fail to format itself
        return ""
