"""A model loaded to be measured, with every setting that affects its speed under control.

`Session` is for verification and keeps the runtime's optimizations off. Here they are on by default, as are memory
patterns, and the feeds are prepared once, so that a run measures the runtime alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.runtime import library
from sardonyx.runtime.library import Feeds, Source, Value
from sardonyx.runtime.sessions import Runtime


class Level(StrEnum):
    """The graph optimization level of the runtime."""

    OFF = "off"
    BASIC = "basic"
    EXTENDED = "extended"
    LAYOUT = "layout"
    ALL = "all"


_WEIGHTS_FILE = "session.optimized_model_external_initializers_file_name"
_WEIGHTS_SIZE = "session.optimized_model_external_initializers_min_size_in_bytes"


class Settings(Struct, frozen=True):
    """The conditions of a measurement."""

    threads: int = 1  # within an operator; operators run one after another
    provider: str = "cpu"  # as `providers()` names them
    level: Level = Level.ALL
    runtime: Runtime = Runtime.ORT


def providers() -> tuple[str, ...]:
    """Return the execution providers of this installation by short names: "cpu", "cuda" and so on."""
    return tuple(_short_name(name) for name in library.onnxruntime().get_available_providers())


class TimedModel:
    """One model in the runtime under given settings.

    The runtime's profile goes to a path with the prefix `profile`, the graph after its optimizations to `optimized`,
    with the weights next to it.

    Raises:
        RuntimeFailure: if the runtime does not accept the model.
        UsageError: for a provider that is not installed.
    """

    def __init__(
        self, source: Source, settings: Settings, *, profile: Path | None = None, optimized: Path | None = None
    ) -> None:
        options = library.session_options()
        level = "ORT_DISABLE_ALL" if settings.level is Level.OFF else f"ORT_ENABLE_{settings.level.upper()}"
        options.graph_optimization_level = getattr(library.onnxruntime().GraphOptimizationLevel, level)
        options.intra_op_num_threads = settings.threads
        options.inter_op_num_threads = 1
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
            options.add_session_config_entry(_WEIGHTS_FILE, weights_beside(optimized).name)
            options.add_session_config_entry(_WEIGHTS_SIZE, "1024")
        available: list[str] = library.onnxruntime().get_available_providers()
        wanted = settings.provider.lower()
        provider = next((name for name in available if wanted in (_short_name(name), name.lower())), None)
        if provider is None:
            hint = f"it has {', '.join(providers())}"
            raise UsageError(f"ONNX Runtime has no provider {settings.provider!r} here", hint=hint)
        start = time.perf_counter()
        try:
            self._session: Any = library.open_session(source, options, [provider])
        except RuntimeFailure as failure:
            from sardonyx.runtime.load_failures import explained  # slow to import

            raise explained(source, failure) from failure
        self.load_seconds = time.perf_counter() - start
        if provider not in self._session.get_providers():  # the runtime falls back to another provider silently
            raise RuntimeFailure(f"ONNX Runtime could not start its provider {settings.provider!r} here")
        self.inputs: tuple[str, ...] = tuple(value.name for value in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(value.name for value in self._session.get_outputs())

    @property
    def name(self) -> str:
        """The runtime and its version."""
        return f"onnxruntime {library.onnxruntime().__version__}"

    def ready(self, feeds: Feeds) -> Callable[[], list[Value]]:
        """Return a function that runs the model once on those of the feeds that are inputs of the model."""
        inputs = {name: feeds[name] for name in self.inputs if name in feeds}
        run, options, errors = self._session.run, library.run_options(), library.errors()

        def run_once() -> list[Value]:
            try:
                return run(None, inputs, options)
            except errors as error:
                raise RuntimeFailure(f"ONNX Runtime cannot run the model: {library.one_line(error)}") from error

        return run_once

    def end_profile(self) -> Path:
        """Stop profiling and return the file that the runtime wrote."""
        return Path(self._session.end_profiling())


def weights_beside(optimized: Path) -> Path:
    """Return where the weights of an optimized graph go; a dangling link there keeps them from being written."""
    return optimized.with_name(optimized.name + ".weights")


def _short_name(name: str) -> str:
    return name.removesuffix("ExecutionProvider").lower()
