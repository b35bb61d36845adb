"""Every error a user can cause, with what to do next and the exit code it means."""

from __future__ import annotations


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
