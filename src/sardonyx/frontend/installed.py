"""Checks for optional packages. A missing one is a usage error that says what to install."""

from __future__ import annotations

import importlib.util

from sardonyx.errors import UsageError, install_hint, reason


def require_torch() -> None:
    """Import torch.

    Raises:
        UsageError: If it is not installed or cannot be imported.
    """
    try:
        import torch as _  # noqa: F401 (only tests whether it can be imported)
    except ModuleNotFoundError as error:
        raise missing("torch", "PyTorch models need") from error
    except (ImportError, OSError) as error:  # a library that it was built against is missing
        raise UsageError(f"torch does not load: {reason(error)}", hint=install_hint("torch")) from error


def require_installed(package: str, needed_by: str, *, extra: str = "torch") -> None:
    """Check that a package is installed, without importing it.

    Args:
        package: The name to import it by.
        needed_by: The beginning of the error message, such as "the demo needs".
        extra: The extra that it is part of.

    Raises:
        UsageError: If it is not installed.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        spec = None
    if spec is None:
        raise missing(package, needed_by, extra)


def missing(package: str, needed_by: str, extra: str = "torch") -> UsageError:
    """Return the error for a missing package of an extra."""
    return UsageError(f"{needed_by} {package}, which is not installed", hint=install_hint(extra))
