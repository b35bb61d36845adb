"""Without torch, and for a mistake in SOURCE before torch is loaded: one line, a hint, exit 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Runs a command line with some packages hidden and prints at the end whether torch was loaded.
HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from sardonyx.cli.main import run
code = run(sys.argv[2:])
print("torch" in sys.modules)
sys.exit(code)
"""
FROM_PYTHON = """
import sys
sys.modules["torch"] = None
import sardonyx
from sardonyx.errors import SardonyxError

def report(call):
    try:
        call()
    except SardonyxError as error:
        print(error.message, error.hint)

report(lambda: sardonyx.export)
report(lambda: sardonyx.analyze("hf-config:BertConfig"))
report(lambda: sardonyx.analyze("nonsense"))
sardonyx.optimize, sardonyx.verify, sardonyx.extract
"""
BERT = "hf-config:BertConfig?num_hidden_layers=1"
CUT = ("extract", "{model}", "-m", "x", "--live")


def hiding(packages: str, *arguments: str) -> tuple[int, str, list[str]]:
    """Exit code, whether torch was loaded, and the lines on standard error."""
    done = subprocess.run(
        [sys.executable, "-c", HIDING, packages, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("export", BERT),
        ("decompose", BERT),
        ("analyze", BERT),
        (*CUT, BERT),
        ("study", "--zoo", "small", "-o", "{out}"),
    ],
    ids=lambda value: value[0],
)
def test_commands_that_need_torch_print_how_to_install_it(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    places = {"{model}": str(tmp_path / "model.onnx"), "{out}": str(tmp_path / "study")}
    code, loaded, lines = hiding("torch", *(places.get(each, each) for each in arguments))
    assert (code, loaded) == (2, "False")
    assert lines[0].endswith("need torch, which is not installed")
    assert lines[1:] == ['hint: in a checkout of sardonyx: pip install ".[torch]"']


@pytest.mark.slow
def test_hugging_face_models_need_transformers() -> None:
    code, _, lines = hiding("transformers", "export", BERT)
    assert (code, lines) == (
        2,
        [
            "error: Hugging Face models need transformers, which is not installed",
            'hint: in a checkout of sardonyx: pip install ".[torch]"',
        ],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "nonsense"), "'nonsense' is not a model source"),
        (("export", "unknown:thing"), "unknown kind 'unknown'"),
        (("decompose", f"{BERT},depth"), "'depth' is not a config value"),
        (("analyze", "nowhere.py:build"), "nowhere.py does not exist"),
        ((*CUT, "nonsense"), "'nonsense' is not a model source"),
        (("export", "timm:resnet18", "--task", "fill-mask"), "a task selects the head of a Hugging Face model"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_mistake_in_the_source_is_reported_before_torch_is_loaded(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").touch()
    model = str(tmp_path / "model.onnx")
    code, loaded, lines = hiding("nothing", *(model if word == "{model}" else word for word in arguments))
    assert (code, loaded) == (2, "False")
    assert message in lines[0]
    assert lines[1].startswith("hint: ")


@pytest.mark.slow
def test_from_python_it_is_a_sardonyx_error() -> None:
    done = subprocess.run([sys.executable, "-c", FROM_PYTHON], capture_output=True, text=True, check=True)
    need = 'PyTorch models need torch, which is not installed in a checkout of sardonyx: pip install ".[torch]"'
    first, second, third = done.stdout.splitlines()
    assert (first, second) == (need, need)
    assert third.startswith("'nonsense' is not a model source")
