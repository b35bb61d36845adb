"""A model loaded to be measured: as a user would run it, with every setting that changes its speed said aloud.

`Session` is for proofs and keeps the runtime's optimizations off; here they are on unless asked otherwise, memory
patterns are on, and the feeds are bound once, so that a run is the runtime's own work and nothing of ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.runtime import library
from sardonyx.runtime.values import Feeds, Source, Value


class Level(StrEnum):
    """How far the runtime may optimize by itself."""

    OFF = "off"
    BASIC = "basic"
    EXTENDED = "extended"
    LAYOUT = "layout"
    ALL = "all"


_LEVELS = {
    Level.OFF: "ORT_DISABLE_ALL",
    Level.BASIC: "ORT_ENABLE_BASIC",
    Level.EXTENDED: "ORT_ENABLE_EXTENDED",
    Level.LAYOUT: "ORT_ENABLE_LAYOUT",
    Level.ALL: "ORT_ENABLE_ALL",
}
_WEIGHTS_FILE = "session.optimized_model_external_initializers_file_name"
_WEIGHTS_SIZE = "session.optimized_model_external_initializers_min_size_in_bytes"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a measurement is made under."""

    threads: int = 1  # within an operator; operators run one after another
    provider: str = "cpu"  # as `providers()` names them
    level: Level = Level.ALL


def providers() -> tuple[str, ...]:
    """The execution providers of this installation, in short: "cpu", "cuda" and so on."""
    return tuple(_short(name) for name in library.onnxruntime().get_available_providers())


class Timed:
    """One model in the runtime under given settings.

    Args:
        source: the model.
        settings: threads, provider and level.
        profile: where the runtime's profile is to begin its name; no profile where None.
        optimized: where to keep the graph as the runtime has optimized it, weights beside it; nowhere where None.

    Raises:
        RuntimeFailure: where the runtime does not take the model.
        UsageError: for a provider that is not installed.
    """

    def __init__(
        self, source: Source, settings: Settings, *, profile: Path | None = None, optimized: Path | None = None
    ) -> None:
        options = library.session_options()
        options.graph_optimization_level = getattr(
            library.onnxruntime().GraphOptimizationLevel, _LEVELS[settings.level]
        )
        options.intra_op_num_threads = settings.threads
        options.inter_op_num_threads = 1
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
            options.add_session_config_entry(_WEIGHTS_FILE, weights_beside(optimized).name)
            options.add_session_config_entry(_WEIGHTS_SIZE, "1024")
        provider = _full(settings.provider)
        began = time.perf_counter()
        self._session: Any = library.opened(source, options, [provider])
        self.load_seconds = time.perf_counter() - began
        if provider not in self._session.get_providers():  # it falls back in silence
            raise RuntimeFailure(f"ONNX Runtime could not start its provider {settings.provider!r} here")
        self.inputs: tuple[str, ...] = tuple(each.name for each in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(each.name for each in self._session.get_outputs())

    def ready(self, feeds: Feeds) -> Callable[[], list[Value]]:
        """One run on those of the feeds that the model takes, to be called as often as one likes."""
        taken = {name: feeds[name] for name in self.inputs if name in feeds}
        run, options, errors = self._session.run, library.run_options(), library.errors()

        def once() -> list[Value]:
            try:
                return run(None, taken, options)
            except errors as error:
                raise RuntimeFailure(f"ONNX Runtime cannot run the model: {library.one_line(error)}") from error

        return once

    def end_profile(self) -> Path:
        """Stop profiling; the file that the runtime wrote."""
        return Path(self._session.end_profiling())


def weights_beside(optimized: Path) -> Path:
    """Where the weights of an optimized graph go; a link to nowhere put there keeps them from being written at all."""
    return optimized.with_name(optimized.name + ".weights")


def _full(provider: str) -> str:
    for name in library.onnxruntime().get_available_providers():
        if provider.lower() in (_short(name), name.lower()):
            return name
    raise UsageError(f"ONNX Runtime has no provider {provider!r} here", hint=f"it has {', '.join(providers())}")


def _short(name: str) -> str:
    return name.removesuffix("ExecutionProvider").lower()
