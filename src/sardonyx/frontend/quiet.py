"""Suppresses the progress bars, warnings and log lines of other libraries. Exceptions still pass."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Generator

_LIBRARIES = ("torch", "transformers", "huggingface_hub", "timm")


@contextlib.contextmanager
def quietly() -> Generator[None]:
    """Silence stdout, stderr, warnings and the log lines of the libraries that build and export models."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
