"""Keeps libraries off the terminal while they work for us: bars, advice and warnings; errors still come through."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Generator

_TALKATIVE = ("torch", "transformers", "huggingface_hub", "timm")


@contextlib.contextmanager
def quietly() -> Generator[None]:
    """Silence stdout, stderr, warnings and the log lines of the libraries that build and export models."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
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
