"""A headless Chromium with one page, which answers requests of this process over HTTP on this machine.

The page fetches a request, computes, and posts its reply, so that no driver of browsers is needed. Its address has a
secret in it: other users of the machine cannot read the model. A fetch that never ends tells when the page is gone.
Use it in a worker process, which ends the browser with everything else that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import RuntimeFailure

NAMES = ("chromium", "chromium-browser", "google-chrome")
# The sandbox needs rights that containers do not give; the others keep the browser from connecting to other machines.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")

_START_SECONDS = 60.0
_EXIT_SECONDS = 5.0
_CONTENT_TYPES = {".wasm": "application/wasm", ".mjs": "text/javascript", ".js": "text/javascript", "": "text/html"}
# With these headers a page may use threads, and its clock has a resolution of 5 µs in place of 100 µs.
_ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}

Message: TypeAlias = "tuple[dict[str, Any], list[bytes]]"
Content: TypeAlias = "bytes | Path"


def path() -> str | None:
    """Return where the machine's Chromium is, or None: CHROME_PATH, or one of `NAMES`."""
    named = os.environ.get("CHROME_PATH")
    return shutil.which(named) if named else next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A browser that shows one page. Close it when done.

    Args:
        executable: The program.
        files: What is served: the content for each path, "" for the page itself.
        folder: A folder whose files are served as "dist/NAME".
        gpu: Use WebGPU, with an adapter in software.

    Raises:
        RuntimeFailure: It does not start.
    """

    def __init__(self, executable: str, files: dict[str, Content], folder: Path, *, gpu: bool = False) -> None:
        self._requests: queue.Queue[bytes] = queue.Queue()
        self._replies: queue.Queue[Message | None] = queue.Queue()  # None: the page is gone
        self._server = self._serve(files, folder)
        self._profile = temporary_folder()
        flags = [flag for flag in FLAGS if flag != "--disable-gpu" or not gpu]
        port = self._server.server_address[1]
        address = f"http://127.0.0.1:{port}/{self._secret}/"
        own = ("--headless=new", f"--user-data-dir={self._profile.name}")
        self._process = subprocess.Popen(
            [executable, *own, *flags, *(SOFTWARE_GPU if gpu else ()), address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self.version: str = self.ask({"request": "version"}, seconds=_START_SECONDS)[0]["version"]
        except RuntimeFailure:
            self.close()
            raise

    def ask(self, header: dict[str, Any], buffers: Sequence[bytes] = (), *, seconds: float | None = None) -> Message:
        """Send a request to the page and return its reply.

        Raises:
            RuntimeFailure: The page is gone, or does not reply in time.
        """
        self._requests.put(packed(header, buffers))
        try:
            reply = self._replies.get(timeout=seconds)
        except queue.Empty:
            raise RuntimeFailure("the browser does not answer") from None
        if reply is None:
            raise RuntimeFailure("the page of the browser ended")
        return reply

    def close(self) -> None:
        """End the browser, and delete its files."""
        self._process.terminate()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._requests.put(b"")
        self._server.shutdown()
        self._server.server_close()
        with contextlib.suppress(OSError):  # a process of the browser may still write into it; the worker's end deletes
            self._profile.cleanup()

    def _serve(self, files: dict[str, Content], folder: Path) -> socketserver.TCPServer:
        self._secret = secrets.token_urlsafe(16)
        requests, replies, start = self._requests, self._replies, f"/{self._secret}/"

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                name = self.path.removeprefix(start)
                if not self.path.startswith(start):
                    self.send_error(404)
                elif name == "next":
                    self._send(requests.get())
                elif name == "alive":
                    self.close_connection = True
                    self._head("text/plain")
                    self.rfile.read(1)  # returns when the page ends
                    replies.put(None)
                elif name in files:
                    self._send_file(files[name])
                elif (asked := folder / Path(name).name).is_file():
                    self._send_file(asked)
                else:
                    self.send_error(404)

            def do_POST(self) -> None:
                replies.put(unpacked(self.rfile.read(int(self.headers["Content-Length"]))))
                self._send(b"")

            def _send_file(self, content: Content) -> None:
                if isinstance(content, bytes):
                    self._send(content)
                    return
                with content.open("rb") as stream:
                    self._head(_CONTENT_TYPES.get(content.suffix, "application/octet-stream"), content.stat().st_size)
                    shutil.copyfileobj(stream, self.wfile)

            def _send(self, body: bytes) -> None:
                self._head("text/html", len(body))
                self.wfile.write(body)

            def _head(self, kind: str, length: int | None = None) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                if length is not None:
                    self.send_header("Content-Length", str(length))
                for name, value in _ISOLATED.items():
                    self.send_header(name, value)
                self.end_headers()

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):  # the browser may end at any time
                    super().handle_one_request()

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


def packed(header: dict[str, Any], buffers: Sequence[bytes]) -> bytes:
    """Return a message: the length of the header, the header as JSON with the sizes of the buffers, the buffers."""
    head = json.dumps(header | {"sizes": [len(buffer) for buffer in buffers]}).encode()
    return b"".join([len(head).to_bytes(4, "little"), head, *buffers])


def unpacked(message: bytes) -> Message:
    """Return the header and the buffers of a message."""
    start = 4 + int.from_bytes(message[:4], "little")
    header: dict[str, Any] = json.loads(message[4:start])
    buffers: list[bytes] = []
    for size in header["sizes"]:
        buffers.append(message[start : start + size])
        start += size
    return header, buffers
