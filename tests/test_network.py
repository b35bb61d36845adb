"""No command connects to another machine, and the runtimes are loaded without their telemetry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

import network

MODEL = """<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[N, 4] x) => (float[N, 4] y) { a = Identity(x)  b = Relu(a)  y = Tanh(b) }"""
# Loaded at the start of every Python process of a command; native code is seen by strace only.
AUDIT = """import os, sys
def told(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        open(os.environ["AUDIT_LOG"], "a").write(f"{event} {arguments}\\n")
sys.addaudithook(told)
"""


def test_addresses_of_other_machines_are_found_in_a_trace() -> None:
    trace = """
        1 connect(7, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("10.0.0.53")}, 16) = 0
        1 connect(7, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("127.0.0.1")}, 16) = 0
        1 connect(7, {sa_family=AF_UNIX, sun_path="/run/nscd/socket"}, 110) = -1 ENOENT
        1 connect(7, {sa_family=AF_INET6, sin6_port=htons(443), inet_pton(AF_INET6, "2001::1", &a)}, 28) = 0"""
    assert [line.split('"')[1] for line in network.foreign(trace)] == ["10.0.0.53", "2001::1"]


@pytest.mark.slow
def test_no_connection_and_no_file_of_telemetry(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "a.onnx")
    runtimes = ["--runtime", "ort", "--runtime", "openvino"]
    command = [sys.executable, "-m", "sardonyx", "optimize", "a.onnx", "-o", "b.onnx", *runtimes]
    if shutil.which("strace"):
        code, calls, last = network.connections(command, tmp_path)
    else:
        (tmp_path / "tmp").mkdir()
        (tmp_path / "sitecustomize.py").write_text(AUDIT)
        log = tmp_path / "log"
        paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
        audited = {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": paths, "AUDIT_LOG": str(log)}
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | audited, capture_output=True, text=True, check=False
        )
        code, last = done.returncode, done.stderr
        calls = log.read_text().splitlines() if log.exists() else []
    assert code == 0, last
    assert calls == []
    assert not list(tmp_path.rglob(".ses"))
