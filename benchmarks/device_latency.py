"""Time files of the same models against each other on a device, interleaved, with inputs and outputs on it.

    python benchmarks/device_latency.py cuda OUT.json FOLDER [--rounds 100]

FOLDER has files named KIND.MODEL.onnx (raw, portable and ort, say). Weights may be external data in one file of random
numbers: times do not depend on their values. Dynamic dimensions are 1 (the first) or 128.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_, "tensor(int32)": np.int32}
PROVIDERS = {"cuda": ("CUDAExecutionProvider", {"use_tf32": "0"})}
WARM = 10
LENGTH = 128


def session(path: Path, device: str) -> Any:
    """The file, loaded, with everything bound to the device."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    loaded = onnxruntime.InferenceSession(str(path), options, providers=[PROVIDERS[device], "CPUExecutionProvider"])
    bound = loaded.io_binding()
    numbers = np.random.default_rng(0)
    for port in loaded.get_inputs():
        shape = [size if isinstance(size, int) else 1 if axis == 0 else LENGTH for axis, size in enumerate(port.shape)]
        kind = TYPES[port.type]
        array = numbers.standard_normal(shape).astype(kind) if kind is np.float32 else np.ones(shape, kind)
        bound.bind_ortvalue_input(port.name, onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0))
    for port in loaded.get_outputs():
        bound.bind_output(port.name, device, 0)
    return lambda: (loaded.run_with_iobinding(bound), bound.synchronize_outputs())


def main(words: list[str]) -> int:
    """Time, print the medians, and write quartiles in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=PROVIDERS)
    parser.add_argument("output", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    asked = parser.parse_args(words)
    files = sorted(asked.folder.glob("*.onnx"))
    found: dict[str, Any] = {}
    for model in sorted({path.stem.split(".", 1)[1] for path in files}):
        runs: dict[str, Any] = {}
        for path in (path for path in files if path.stem.split(".", 1)[1] == model):
            try:
                runs[path.stem.split(".")[0]] = session(path, asked.device)
            except Exception as error:  # the runtime has an exception class for each of its status codes
                found[path.stem] = str(error)[:300]
        samples: dict[str, list[float]] = {kind: [] for kind in runs}
        for round_number in range(WARM + asked.rounds):
            for kind, run in runs.items():
                began = time.perf_counter()
                run()
                if round_number >= WARM:
                    samples[kind].append(1e3 * (time.perf_counter() - began))
        for kind, each in samples.items():
            found[f"{kind}.{model}"] = [float(number) for number in np.percentile(each, (25, 50, 75))]
        print(model, {kind: round(float(np.median(each)), 3) for kind, each in samples.items()}, flush=True)
        asked.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
