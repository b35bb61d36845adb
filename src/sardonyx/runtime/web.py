"""A model in onnxruntime-web, as a browser runs it: by WebAssembly, or by WebGPU with an adapter in software.

The package is the user's own, from npm; nothing is downloaded. WebGPU in software has the values of a GPU, and no
timings: each run takes as long as this machine needs to compute it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sardonyx.errors import RuntimeFailure
from sardonyx.ir.io.data_files import external_files
from sardonyx.runtime import browser, library
from sardonyx.runtime.browser import Browser, Content, Message
from sardonyx.runtime.library import Feeds, Source, Value

_FOLDER = "SARDONYX_NODE_MODULES"
_SCRIPTS = {"wasm": "ort.wasm.min.js", "webgpu": "ort.webgpu.min.js"}
_KINDS = "fbiu"  # of numpy's types; there are no complex numbers and no float8


class Installed(NamedTuple):
    """What runs models in a browser. A worker gets it with each model: the environment may change after it began."""

    package: Path
    browser: str  # the executable


def installed() -> Installed:
    """Return the folder of the npm package (in SARDONYX_NODE_MODULES, or in node_modules here or above) and a browser.

    Raises:
        RuntimeFailure: There is none, or no browser for it.
    """
    named = os.environ.get(_FOLDER)
    here = Path.cwd()
    folders = [Path(named)] if named else [parent / "node_modules" for parent in (here, *here.parents)]
    found = next((folder / "onnxruntime-web" for folder in folders if (folder / "onnxruntime-web").is_dir()), None)
    if found is None:
        raise RuntimeFailure(
            "onnxruntime-web is not installed" + (f" in {named}" if named else ""),
            hint=f"npm install onnxruntime-web, or set {_FOLDER} to the node_modules folder that has it",
        )
    executable = browser.path()
    if executable is None:
        raise RuntimeFailure(
            "models run in a browser need Chromium, which is not installed",
            hint="install chromium, or set CHROME_PATH",
        )
    return Installed(found.absolute(), executable)


class WebSession:
    """A model in onnxruntime-web, in a browser of its own. Close it when done.

    Args:
        source: The model.
        provider: "wasm" or "webgpu".
        threads: Threads of WebAssembly; 1 if None.
        using: The package and the browser; what is found if None.
        level: The graph optimizations of the runtime: "disabled", "basic", "extended", "layout" or "all".
        verbose: Keep what the runtime logs while it loads the model.

    Raises:
        RuntimeFailure: if the package or the browser is not installed, or the runtime does not accept the model.
    """

    def __init__(
        self,
        source: Source,
        provider: str,
        *,
        threads: int | None = None,
        using: Installed | None = None,
        level: str = "disabled",
        verbose: bool = False,
    ) -> None:
        self._package, self._executable = using or installed()
        self._provider = provider
        page = Path(__file__).with_name("web_page.html").read_text()
        self._files: dict[str, Content] = {"": page.replace("SCRIPT", _SCRIPTS[provider]).encode()}
        self._request = {"provider": provider, "level": level, "threads": threads or 1, "verbose": verbose}
        self._browser: Browser | None = None
        self.seconds = 0.0  # of the last run
        self.dispatches = 0  # kernels that it started on the GPU
        self.load(source)

    def load(self, source: Source) -> None:
        """Load a model in place of the one before.

        Raises:
            RuntimeFailure: if the runtime does not accept it.
        """
        content = library.loadable(source)
        self._files["model"] = content if isinstance(content, bytes) else Path(content)
        self._weights = [] if isinstance(content, bytes) else external_files(content)
        for number, location in enumerate(self._weights):
            self._files[f"external/{number}"] = Path(os.fsdecode(content)).parent / location
        self._open()

    def _open(self) -> Browser:
        """Load the model in the browser, which is started if there is none."""
        self._browser = self._browser or Browser(
            self._executable, self._files, self._package / "dist", gpu=self._provider == "webgpu"
        )
        request = {"request": "load", "external": self._weights, **self._request}
        loaded = self._ask(self._browser, request)[0]
        self.load_seconds: float = loaded["seconds"]
        self.inputs: tuple[str, ...] = tuple(loaded["inputs"])
        self.log: str = loaded["log"]
        return self._browser

    @property
    def version(self) -> str:
        """The version of the package."""
        return json.loads((self._package / "package.json").read_text())["version"]

    @property
    def name(self) -> str:
        """The runtime and its version, the provider, and the browser."""
        adapter = " of SwiftShader" if self._provider == "webgpu" else ""
        used = self._browser.version if self._browser is not None else ""
        return f"onnxruntime-web {self.version}, {self._provider}{adapter}, Chromium {used}"

    def run(self, feeds: Feeds) -> list[Value]:
        """Return all graph outputs in order."""
        tensors: list[dict[str, Any]] = []
        buffers: list[bytes] = []
        for name, value in feeds.items():
            if name in self.inputs:
                described, buffer = _tensor(value, name)
                tensors.append({"name": name, **described})
                buffers.append(buffer)
        header, results = self._ask(self._browser or self._open(), {"request": "run", "tensors": tensors}, buffers)
        self.seconds, self.dispatches = header["seconds"], header["dispatches"]
        return [_array(described, data) for described, data in zip(header["tensors"], results, strict=True)]

    def time(self, seconds: float) -> float:
        """Run the model on the last feeds again and again for this long; return the seconds of the fastest run."""
        assert self._browser is not None, "it was run before it is timed"
        return self._ask(self._browser, {"request": "time", "seconds": seconds})[0]["seconds"]

    def close(self) -> None:
        """End the browser."""
        if self._browser is not None:
            self._browser.close()
            self._browser = None

    def __del__(self) -> None:
        """End the browser: a session is closed by dropping it."""
        with contextlib.suppress(AttributeError):
            self.close()

    def _ask(self, asked: Browser, header: dict[str, Any], buffers: Sequence[bytes] = ()) -> Message:
        """Send a request; after a failure that the page does not survive, the next run starts another browser."""
        try:
            reply = asked.ask(header, buffers)
        except RuntimeFailure:
            self.close()
            raise
        if "error" not in reply[0]:
            return reply
        if reply[0]["broken"]:
            self.close()
        verb = "load" if header["request"] == "load" else "run"
        reason = library.one_line(RuntimeError(reply[0]["error"]))
        raise RuntimeFailure(f"onnxruntime-web cannot {verb} the model: {reason}")


def _tensor(value: Value, name: str) -> tuple[dict[str, Any], bytes]:
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return {"type": "string", "dims": value.shape, "strings": [str(item) for item in value.reshape(-1)]}, b""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in _KINDS:
        raise RuntimeFailure(f"onnxruntime-web has no values like those of '{name}'")
    return {"type": value.dtype.name, "dims": value.shape}, value.tobytes()


def _array(described: dict[str, Any], data: bytes) -> Value:
    if described["type"] == "string":
        return np.array(described["strings"], object).reshape(described["dims"])
    return np.frombuffer(data, described["type"]).reshape(described["dims"]).copy()
