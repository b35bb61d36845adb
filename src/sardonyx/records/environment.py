"""Describe this machine, the installed package versions and the time for a record."""

from __future__ import annotations

import functools
import os
import platform
import sys
import time
from contextvars import ContextVar
from importlib import metadata
from typing import Any

from msgspec.structs import replace

from sardonyx.records.run import Environment

# Fields of the environment that the command line sets: none for a call from Python.
INVOCATION: ContextVar[dict[str, Any]] = ContextVar("INVOCATION", default={})  # noqa: B039 (never changed)
_PACKAGES = ("numpy", "onnx", "onnx-ir", "onnxruntime", "torch", "transformers")


def environment() -> Environment:
    """Return this machine, the versions of the packages that affect results, and the time now."""
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return replace(_installed(), date=date, **INVOCATION.get())


@functools.cache
def _installed() -> Environment:
    installed: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            installed[package] = _version(package)
        except metadata.PackageNotFoundError:
            continue
    return Environment(
        sardonyx=_version("sardonyx"),
        python=sys.version.split()[0],
        platform=platform.platform(),
        cpus=os.cpu_count() or 1,
        packages=installed,
    )


def _version(package: str) -> str:
    """Return the version in a package's metadata; only that line is parsed, which is ten times faster than all."""
    lines = (metadata.distribution(package).read_text("METADATA") or "").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Version:")), "")
