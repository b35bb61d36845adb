"""Reporting does not import the packages that compute."""

from __future__ import annotations

import subprocess
import sys


def test_the_report_imports_neither_torch_nor_onnx_nor_a_runtime() -> None:
    code = (
        "import pkgutil, sys, sardonyx.reporting.gate, sardonyx.reporting as package; "
        "[__import__(f'sardonyx.reporting.{module.name}') for module in pkgutil.iter_modules(package.__path__)]; "
        "print([name for name in ('torch', 'onnx', 'onnx_ir', 'onnxruntime', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
