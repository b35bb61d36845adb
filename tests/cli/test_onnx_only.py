"""Commands on ONNX files need neither torch nor transformers nor onnxscript.

Every command of README.md and docs/tour.md runs where these packages cannot be imported, also not by a process that it
starts; `make without-torch` runs this file where they are not installed. A handmade file takes the place of the export.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "tour.md")
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "onnxscript"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
HINT = 'hint: in a checkout of sardonyx: pip install ".[torch]"'
LAYER = """
q{n} = MatMul(h{n}, wq) k{n} = MatMul(h{n}, wk) t{n} = Transpose<perm=[0,2,1]>(k{n}) s{n} = MatMul(q{n}, t{n})
p{n} = Softmax<axis=-1>(s{n}) a{n} = MatMul(p{n}, h{n}) r{n} = Add(h{n}, a{n})
u{n} = MatMul(r{n}, wu) v{n} = Add(u{n}, bu) h{m} = Relu(v{n})
"""
TEXT = f"""
<ir_version: 10, opset_import: ["": 20]>
g (int64[batch,sequence] input_ids) => (float[batch,sequence,32] last_hidden_state) {{
h0 = Gather<axis=0>(table, input_ids) {LAYER.format(n=0, m=1)} {LAYER.format(n=1, m=2)} last_hidden_state = Identity(h2)
}}
"""


def write_model(path: Path) -> None:
    """Write two layers, each with an attention and a linear layer, whose node names tell the modules."""
    model = onnx.parser.parse_model(TEXT)
    for node in model.graph.node:
        layer = re.search(r"\d", node.output[0])
        part = "attention/self" if node.output[0][0] in "qktsp" else "output"
        scope = "embeddings" if node.op_type == "Gather" else f"encoder/layer.{layer[0]}/{part}" if layer else "pooler"
        node.name = f"/{scope}/{node.op_type}_{node.output[0]}"
    random = np.random.default_rng(0)
    shapes = {"table": (50, 32), "wq": (32, 32), "wk": (32, 32), "wu": (32, 32), "bu": (32,)}
    for name, shape in shapes.items():
        array = random.normal(0, 0.2, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    onnx.save(model, path)


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of every `sardonyx` in the console blocks of a page."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("$ sardonyx ")]
    return [shlex.split(re.split(r" \| |;", line)[0])[2:] for line in lines]


def run(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Return the exit code and the output of a command, with the packages hidden from it and from its children."""
    paths = [str(folder / "hidden"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "sardonyx", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.stem == "README" else pytest.mark.campaign, id=page.stem) for page in PAGES],
)
def test_commands_of_the_pages_run_without_torch(page: Path, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDDEN)
    for arguments in commands(page):
        if any(word.startswith("hf-config:") for word in arguments):
            code, output = run(arguments, tmp_path)
            assert (code, output.splitlines()[1:]) == (2, [HINT]), output
            if arguments[0] == "export":
                write_model(tmp_path / arguments[arguments.index("-o") + 1])
            if "--live" not in arguments:
                continue
            arguments = arguments[: arguments.index("--live")]
        words = ["0.2" if word == "10" else word for word in arguments if word != "export.json"]  # 10 s of a benchmark
        code, output = run(words, tmp_path)
        assert code in (0, 3, 4), f"{words}\n{output}"  # locate finds a difference; a gate is not met
