"""A real S3 server on this machine: moto's, with faults injected in front of it.

`python tests/fleet/s3_server.py` prints its address, and serves until its input is closed. Under `/-/faults`,
`PUT ?rate=0.2&seed=1` makes one request of five fail: refused with 500 or 503, the connection closed, or the answer
lost, late or cut off after the work was done. `&pause=SECONDS` delays every upload. `GET` returns how often each fault
happened.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any
from urllib.parse import parse_qs

Environ = dict[str, Any]
BEFORE = ("500", "503", "closed before")
AFTER = ("lost as 500", "closed after", "late", "cut off")
LATE = 1.5  # seconds; more than the client waits in tests


class FaultyServer:
    """A WSGI application in front of another one."""

    def __init__(self, app: Callable[[Environ, Callable[..., object]], Iterable[bytes]]) -> None:
        self._app, self._lock = app, threading.Lock()
        self._random, self._rate, self._pause = random.Random(0), 0.0, 0.0
        self._counts: Counter[str] = Counter()

    def __call__(self, environ: Environ, start: Callable[..., object]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/-/faults":
            return self._control(environ, start)
        size = int(environ.get("CONTENT_LENGTH") or 0)
        if environ["REQUEST_METHOD"] == "PUT":
            self._counts["uploads"] += 1
            time.sleep(self._pause)
        body = environ["wsgi.input"].read(size) if size else b""
        fault = self._draw()
        if len(body) < size:  # the client is gone
            return self._close(environ)
        if fault in BEFORE:
            return self._refuse(environ, start, fault)
        with self._lock:  # moto looks a key up and writes it in two steps
            status, headers, answer = self._answer({**environ, "wsgi.input": io.BytesIO(body)})
            self._counts["requests"] += 1
        if fault == "late":
            time.sleep(LATE)
        if fault in ("lost as 500", "closed after") or (fault == "cut off" and not answer):
            return self._refuse(environ, start, fault)
        start(status, headers)
        return [answer[: len(answer) // 2] if fault == "cut off" else answer]  # its header says more bytes

    def _draw(self) -> str | None:
        with self._lock:
            if self._random.random() >= self._rate:
                return None
            fault = self._random.choice(BEFORE + AFTER)
            self._counts[fault] += 1
            return fault

    def _answer(self, environ: Environ) -> tuple[str, list[tuple[str, str]], bytes]:
        begun: list[Any] = []
        parts = self._app(environ, lambda status, headers, _=None: begun.extend((status, headers)))
        answer = b"".join(parts)
        return begun[0], begun[1], answer

    def _refuse(self, environ: Environ, start: Callable[..., object], fault: str) -> Iterable[bytes]:
        if "closed" in fault or fault == "cut off":
            return self._close(environ)
        code = "SlowDown" if fault == "503" else "InternalError"
        text = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        start(f"{'503' if fault == '503' else '500'} Injected", [("Content-Length", str(len(text)))])
        return [text]

    def _close(self, environ: Environ) -> Iterable[bytes]:
        with contextlib.suppress(OSError):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError

    def _control(self, environ: Environ, start: Callable[..., object]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT":
            options = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
            with self._lock:
                self._rate, self._pause = float(options.get("rate", 0)), float(options.get("pause", 0))
                self._random = random.Random(int(options.get("seed", 0)))
                self._counts.clear()
        text = json.dumps(self._counts).encode()
        start("200 OK", [("Content-Length", str(len(text)))])
        return [text]


class Server:
    """A running server."""

    def __init__(self, address: str) -> None:
        self.address = address

    def faults(self, rate: float = 0.0, seed: int = 0, pause: float = 0.0) -> None:
        """Set the rate of faults, and reset their counts."""
        query = f"rate={rate}&seed={seed}&pause={pause}"
        with urllib.request.urlopen(urllib.request.Request(f"{self.address}/-/faults?{query}", method="PUT")):
            pass

    def counts(self) -> Counter[str]:
        """Return how often each fault happened."""
        with urllib.request.urlopen(f"{self.address}/-/faults") as answer:
            return Counter(json.load(answer))


@contextlib.contextmanager
def running_server(bucket: str = "bucket") -> Generator[Server]:
    """Start a server with one bucket in a process of its own, and point the clients of this process to it."""
    process = subprocess.Popen([sys.executable, __file__, bucket], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    address = process.stdout.readline().decode().strip()
    assert address, "the server does not start"
    settings = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield Server(address)
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def serve(bucket: str) -> None:
    """Print the address of a new server, and serve until the input is closed."""
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").disabled = True
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - werkzeug prints a traceback for every connection that we close
    application = FaultyServer(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    urllib.request.urlopen(urllib.request.Request(f"{address}/{bucket}", method="PUT")).close()
    print(address, flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    serve(*sys.argv[1:] or ["bucket"])
