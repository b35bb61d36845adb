"""Every command under strace: none connects to or looks up a host, and none leaves a file of telemetry.

    python benchmarks/network.py [--only optimize …]

Counts system calls with an internet address other than the machine's own; a look-up in DNS is one. Needs strace.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

CALLS = "connect,sendto,sendmsg,sendmmsg"
_ADDRESS = re.compile(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"')
_MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.attention(x, x, x, need_weights=False)[0])

def build():
    torch.manual_seed(0)
    return Net().eval(), torch.ones(2, 5, 16)
"""
_CLUSTER = """
from distributed import LocalCluster

def local():
    return LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None)
"""
_SIZES = "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=16,vocab_size=50"
_CONFIG = f"hf-config:BertConfig?{_SIZES}"
_GENERATOR = f"hf-config:LlamaForCausalLM?{_SIZES},num_key_value_heads=2"
COMMANDS = (
    "export model.py:build -o model.onnx",
    "export model.py:build -o scripted.onnx --exporter torchscript",
    f"export '{_CONFIG}' -o bert.onnx --dynamic auto",
    f"export '{_GENERATOR}' -o generator --for-generation",
    "optimize model.onnx -o small.onnx --run runs/one",
    "optimize bert.onnx -o tuned.onnx --tune",
    "optimize model.onnx bert.onnx --out-dir fleet",
    "optimize model.onnx bert.onnx --out-dir cluster --cluster cluster.py:local",
    "verify model.onnx small.onnx --runtime ort --runtime openvino --runtime reference",
    "quantize bert.onnx -o int8.onnx --to int8",
    "locate model.onnx small.onnx",
    "bench model.onnx small.onnx --seconds 2",
    "profile model.onnx",
    "inspect model.onnx",
    "extract model.onnx --module attention -o part.onnx",
    "decompose model.py:build",
    "analyze model.onnx",
    f"analyze '{_CONFIG}'",
    "dag model.onnx",
    "adopt model.onnx -o tagged.onnx",
    "compare model.onnx small.onnx",
    "study model.onnx -o study --only attribution --seconds 1",
    "report runs/one -o report.html",
    "passes",
    "completion bash",
    "demo tour",
)


def connections(command: list[str], folder: Path) -> tuple[int, list[str], str]:
    """Run a command under strace: its exit code, the calls with an address of another machine, and its last line."""
    trace = folder / "trace"
    strace = ["strace", "-f", "-qq", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(trace)]
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    done = subprocess.run(
        [*strace, *command], cwd=folder, env={**os.environ, "TMPDIR": str(temporary)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    last = (done.stderr or done.stdout).strip().splitlines()
    return done.returncode, foreign(trace.read_text(errors="replace")), last[-1] if last else ""


def foreign(trace: str) -> list[str]:
    """The lines of a trace that name an address of another machine."""
    found: list[str] = []
    for line in trace.splitlines():
        address = _ADDRESS.search(line)
        if address and not (address[1] or address[2]).startswith(("127.", "::1")):
            found.append(line)
    return found


def main() -> int:
    """Run the commands in order, since each may use the files of earlier ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="verbs")
    verbs = parser.parse_args().only
    total = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(_MODEL)
        (folder / "cluster.py").write_text(_CLUSTER)
        for command in COMMANDS:
            words = shlex.split(command)
            if verbs and words[0] not in ("export", *verbs):
                continue
            code, calls, last = connections([sys.executable, "-m", "sardonyx", *words], folder)
            left = sorted(path.name for path in folder.rglob(".ses"))
            total += len(calls) + len(left)
            print(
                f"{command[:72]:72} exit {code}, {len(calls)} connections, {len(left)} files of telemetry", flush=True
            )
            for line in (*calls[:3], *([last] if code else [])):
                print(f"    {line}", flush=True)
    print(f"{total} connections, look-ups or files of telemetry")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
