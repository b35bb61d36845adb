"""Which optional packages are there; one that is missing is a usage error that says what to install."""

from __future__ import annotations

import importlib.util

from sardonyx.errors import UsageError, reason

_INSTALL = 'pip install "sardonyx[torch]"'


def require_torch() -> None:
    """Load torch.

    Raises:
        UsageError: it is not installed, or does not load.
    """
    try:
        import torch as _  # noqa: F401 (whether it loads is the question)
    except ModuleNotFoundError as error:
        raise missing("torch", "PyTorch models need") from error
    except (ImportError, OSError) as error:  # a library that it was built against is missing
        raise UsageError(f"torch does not load: {reason(error)}", hint=_INSTALL) from error


def require_installed(package: str, needed_by: str) -> None:
    """Refuse to go on without a package, which is not loaded; `needed_by` begins the sentence: "the demo needs".

    Raises:
        UsageError: it is not installed.
    """
    try:
        found = importlib.util.find_spec(package)
    except ImportError:
        found = None
    if found is None:
        raise missing(package, needed_by)


def missing(package: str, needed_by: str) -> UsageError:
    """The error for a package of the extra `torch` that is not installed."""
    return UsageError(f"{needed_by} {package}, which is not installed", hint=_INSTALL)
