"""Measure which operators, versions and element types a device runs, and write its profile.

    python benchmarks/device_profiles.py cuda|openvino|ort-cpu|wasm|webgpu OUTPUT.json [FILE.onnx …] [--add]

Every case of `device_cases.py` is loaded by the runtime with its graph optimizations off, and the runtime says where it
put the node: on the device, elsewhere (on the CPU), or that it cannot run it. Nodes with operators of ONNX Runtime also
run, since some runtimes take such an operator and leave out what they do not know of it: their values are compared with
those on the CPU. Files add combinations of types that real models have. With `--add`, what the profile in OUTPUT has is
kept, and only what it lacks is measured. `webgpu` and `wasm` run onnxruntime-web in Chromium as `verify --runtime
web-webgpu` does.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.parser

from device_cases import Case, node_cases, nodes_of, typed, varied, written_by_passes
from sardonyx.errors import RuntimeFailure
from sardonyx.runtime.web import WebSession

BATCH = 100  # nodes in one model
IR_VERSION = 10
NOTHING = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float x) => (float y) { y = Abs(x) }')
HERE, THERE, WRONG = "device", "elsewhere", "wrong"
CLOSE = 2e-3  # of the largest number, or of 1: what a kernel leaves out changes far more
Answered = list[tuple[str, dict[str, Any]]]  # what becomes of a node with these attributes
Placements = dict[str, str]  # the provider of each node by its name


def merged(cases: Sequence[tuple[int, Case]]) -> bytes:
    """Cases of one opset as one model, whose nodes have the numbers of the cases as names."""
    graph = onnx.GraphProto(name="cases")
    for number, case in cases:
        part = onnx.GraphProto()
        part.CopyFrom(case.model.graph)
        rename = lambda name, at=number: f"{at}_{name}" if name else ""  # noqa: E731
        for port in (*part.input, *part.output, *part.initializer):
            port.name = rename(port.name)
        (node,) = part.node
        node.name = str(number)
        node.input[:] = [rename(name) for name in node.input]
        node.output[:] = [rename(name) for name in node.output]
        graph.MergeFrom(
            onnx.GraphProto(node=[node], input=part.input, output=part.output, initializer=part.initializer)
        )
    model = onnx.ModelProto(graph=graph, ir_version=IR_VERSION, opset_import=cases[0][1].model.opset_import)
    return bytes(model.SerializeToString())


class Native:
    """ONNX Runtime with a provider in this process."""

    def __init__(self, provider: str) -> None:
        """Use a provider by its full name."""
        import onnxruntime

        self._runtime, self.provider = onnxruntime, provider
        package = next(name for name in ("onnxruntime-gpu", "onnxruntime") if _installed(name))
        self.runtime, self.machine = f"{package} {onnxruntime.__version__}", platform.machine()

    def place(self, model: bytes) -> Placements | str:
        """Where each node is put, or why the model cannot be loaded."""
        options = self._runtime.SessionOptions()
        options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        providers = list(dict.fromkeys((self.provider, "CPUExecutionProvider")))
        try:
            session = self._runtime.InferenceSession(model, options, providers=providers)
        except Exception as error:  # the runtime has an exception class for each of its status codes
            return str(error)
        parts = session.get_provider_graph_assignment_info()
        return {node.name: part.ep_name for part in parts for node in part.get_nodes()}

    def run(self, model: bytes, feeds: dict[str, Any]) -> Any:
        """The first result of a model."""
        exact = {"use_tf32": "0"} if self.provider == "CUDAExecutionProvider" else {}
        session = self._runtime.InferenceSession(model, providers=[(self.provider, exact), "CPUExecutionProvider"])
        return session.run(None, feeds)[0]


class OpenVino:
    """OpenVINO on the CPU: one model for each case, since it runs all or nothing."""

    provider = "CPU"

    def __init__(self) -> None:
        """Load the package."""
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it connects to a server
        import openvino

        self._core: Any = openvino.Core()
        self.runtime, self.machine = f"openvino {metadata.version('openvino')}", platform.machine()

    def place(self, model: bytes) -> Placements | str:
        """Where each node is put, or why the model cannot be loaded."""
        names = [node.name for node in onnx.ModelProto.FromString(model).graph.node]
        try:
            self._core.compile_model(self._core.read_model(model), "CPU")
        except (RuntimeError, ValueError, TypeError) as error:
            return str(error)
        return dict.fromkeys(names, self.provider)

    def run(self, model: bytes, feeds: dict[str, Any]) -> Any:
        """The first result of a model."""
        return self._core.compile_model(self._core.read_model(model), "CPU")(feeds)[0]


class Browser:
    """onnxruntime-web in Chromium, which says in its log where it puts nodes."""

    def __init__(self, provider: str) -> None:
        """Take a provider of onnxruntime-web."""
        self._asked = provider
        self.provider = {"webgpu": "WebGpuExecutionProvider", "wasm": "CPUExecutionProvider"}[provider]
        self._session = WebSession(NOTHING, provider, verbose=True)
        self.runtime = f"onnxruntime-web {self._session.version}"
        _, *used = self._session.name.split(", ")
        self.machine = f"{platform.machine()}, {', '.join(used)}"

    def place(self, model: bytes) -> Placements | str:
        """Where each node is put, or why the model cannot be loaded."""
        try:
            self._session.load(model)
        except RuntimeFailure as failure:
            return failure.message
        found, provider = {}, ""
        for line in self._session.log.splitlines():
            if whole := re.search(r"All nodes placed on \[(\w+)\]", line):  # they are not listed then
                return {node.name: whole[1] for node in onnx.ModelProto.FromString(model).graph.node}
            if heading := re.search(r"placed on \[(\w+)\]", line):
                provider = heading[1]
            elif provider and (node := re.search(r"VerifyEachNodeIsAssignedToAnEp\]\s+\w+ \((\S+)\)", line)):
                found[node[1]] = provider
        return found  # nothing where the runtime computed all of it while it loaded the model

    def run(self, model: bytes, feeds: dict[str, Any]) -> Any:
        """The first result of a model."""
        self._session.load(model)
        return self._session.run(feeds)[0]


def _installed(name: str) -> bool:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return bool(metadata.version(name))
    return False


def outcomes(device: Native | OpenVino | Browser, cases: Sequence[Case]) -> Iterator[tuple[Case, str]]:
    """Where each case is put: on the device, elsewhere, or the reason why it fails."""
    groups: dict[str, list[tuple[int, Case]]] = defaultdict(list)
    native = Native("CPUExecutionProvider")  # what it refuses is tried alone, so that batches seldom have to be halved
    for number, case in enumerate(cases):
        single = isinstance(device, OpenVino) or isinstance(native.place(merged([(number, case)])), str)
        imported = sorted((each.domain, each.version) for each in case.model.opset_import)
        groups[str(number) if single else str(imported)].append((number, case))
    done = 0
    for group in groups.values():
        for start in range(0, len(group), BATCH):
            for number, outcome in _placed(device, group[start : start + BATCH]):
                case = cases[number]
                compared = outcome == HERE and case.domain and device.provider != native.provider
                yield case, ran(device, native, case.model) if compared else outcome
                done += 1
            print(f"\r{done} of {len(cases)}", end="", file=sys.stderr, flush=True)


def ran(device: Native | OpenVino | Browser, native: Native, model: onnx.ModelProto) -> str:
    """What becomes of a node on the device when it runs: its first result may be another one than on the CPU."""
    numbers, feeds = np.random.default_rng(0), dict[str, Any]()
    for port in model.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        shape = [each.dim_value or 2 for each in port.type.tensor_type.shape.dim]
        small = 1 / np.sqrt(max(1.0, np.prod(shape) / 256))  # so that sums over large weights do not become large
        feeds[port.name] = (
            (small * numbers.standard_normal(shape)).astype(kind) if kind.kind == "f" else np.ones(shape, kind)
        )
    data = bytes(model.SerializeToString())
    try:
        expected = native.run(data, feeds)
    except Exception as error:  # the runtime has an exception class for each of its status codes
        print(f"\nnot compared: {str(error)[:200]}", file=sys.stderr)
        return HERE
    try:
        result = device.run(data, feeds)
    except Exception as error:  # likewise
        return f"fails: {str(error)[:300]}"
    gap = np.max(np.abs(result.astype(np.float64) - expected), initial=0)
    return HERE if gap <= CLOSE * max(1.0, float(np.max(np.abs(expected.astype(np.float64)), initial=0))) else WRONG


def _placed(device: Native | OpenVino | Browser, cases: Sequence[tuple[int, Case]]) -> Iterator[tuple[int, str]]:
    """Place a batch; one that cannot be loaded is halved until the case is found."""
    found = device.place(merged(cases))
    if isinstance(found, str):
        if len(cases) == 1:
            yield cases[0][0], f"fails: {' '.join(found.split())[:300]}"
            return
        half = len(cases) // 2
        yield from _placed(device, cases[:half])
        yield from _placed(device, cases[half:])
        return
    for number, case in cases:
        if (provider := found.get(str(number))) is not None:
            yield number, HERE if provider == device.provider else THERE
        elif len(cases) > 1:  # its function is inlined: which nodes are its own shows only alone
            yield from _placed(device, [(number, case)])
        else:
            inner = {name for node, name in found.items() if not node.startswith("Memcpy")}
            yield number, HERE if inner <= {device.provider} else THERE


def profile(name: str, device: Native | OpenVino | Browser, found: Iterable[tuple[Case, str]]) -> dict[str, Any]:
    """The profile: for each operator and version, what becomes of each combination of element types."""
    operators: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    depends: dict[str, Answered] = defaultdict(list)
    for case, outcome in found:
        key, types = _key(case), _types(case)
        answer = outcome.split(":")[0]
        known = operators[key][str(case.opset)]
        # The same types with other attributes may be placed otherwise: then the node is said to depend on them.
        known[types] = answer if known.get(types, answer) == answer else "depends"
        depends[f"{key} {case.opset} {types}"].append((answer, _attributes(case.node)))
    return {
        "device": name,
        "runtime": device.runtime,
        "provider": device.provider,
        "machine": device.machine,
        "measured": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "how": f"python benchmarks/device_profiles.py {name}",
        "operators": {
            key: {at: _grouped(each[at]) for at in sorted(each, key=int)} for key, each in sorted(operators.items())
        },
        "depends": {key: deciding(cases) for key, cases in sorted(depends.items()) if len(set(_answers(cases))) > 1},
        "avoided": {},  # written by hand from times, and kept by --add
    }


def _answers(cases: Answered) -> list[str]:
    return [answer for answer, _ in cases]


def deciding(cases: Answered) -> Answered:
    """The cases with the one flag or word that decides alone, if there is one; otherwise with all attributes."""
    values = [item for _, attributes in cases for item in attributes.items()]
    sizes = {name for name, value in values if not isinstance(value, str) and value not in (0, 1)}
    for name in sorted({name for name, _ in values} - sizes):
        by_value: dict[str, Answered] = defaultdict(list)
        for answer, attributes in cases:
            kept = {name: attributes[name]} if name in attributes else {}
            by_value[str(kept)].append((answer, kept))
        if all(len(set(_answers(group))) == 1 for group in by_value.values()):
            return [group[0] for group in by_value.values()]
    return cases


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The numbers and strings among the attributes."""
    values = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    plain = {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}
    return {name: value for name, value in plain.items() if isinstance(value, (int, float, str, list))}


def _key(case: Case) -> str:
    return f"{case.domain}:{case.node.op_type}" if case.domain else case.node.op_type


def _types(case: Case) -> str:
    return ",".join(case.types()) + (f">{case.result()}" if case.node.op_type in ("Cast", "CastLike") else "")


def _grouped(answers: dict[str, str]) -> dict[str, list[str]]:
    """The combinations of types by what becomes of them."""
    return {
        answer: sorted(types for types, one in answers.items() if one == answer)
        for answer in sorted({*answers.values()})
    }


def written(made: dict[str, Any]) -> str:
    """The profile as JSON with a line for each operator."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made.items() if not isinstance(value, dict)]
    for key in ("operators", "depends", "avoided"):
        entries = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in made[key].items())
        lines.append(f"{json.dumps(key)}: {{\n" + ",\n".join(entries) + "\n}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _has(made: dict[str, Any], case: Case) -> bool:
    answers = made["operators"].get(_key(case), {}).get(str(case.opset), {})
    return any(_types(case) in listed for listed in answers.values())


def _joined(before: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    operators = before["operators"]
    for key, versions in made["operators"].items():
        for version, answers in versions.items():
            known = operators.setdefault(key, {}).setdefault(version, {})
            for answer, listed in answers.items():
                known[answer] = sorted({*known.get(answer, ()), *listed})
    return {"operators": dict(sorted(operators.items())), "depends": before["depends"] | made["depends"]}


def device_named(name: str) -> Native | OpenVino | Browser:
    """A device by the name of its profile."""
    if name in ("webgpu", "wasm"):
        return Browser(name)
    if name == "openvino":
        return OpenVino()
    return Native({"cuda": "CUDAExecutionProvider", "ort-cpu": "CPUExecutionProvider"}[name])


def main(words: Sequence[str]) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=("cuda", "openvino", "ort-cpu", "wasm", "webgpu"))
    parser.add_argument("output", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--add", action="store_true")
    asked = parser.parse_intermixed_args(words)
    loaded = (typed(onnx.load(file, load_external_data=False)) for file in asked.files)
    own = [case for model in loaded for case in nodes_of(model) if not case.domain or case.is_shaped()]
    cases = [*varied([*node_cases(), *written_by_passes()]), *own]
    before: dict[str, Any] = json.loads(asked.output.read_text()) if asked.add else {}
    if before:
        cases = [case for case in cases if not _has(before, case)]
    device = device_named(asked.device)
    found = list(outcomes(device, cases))
    made = profile(asked.device, device, found)
    if before:
        if made["runtime"] != before["runtime"]:
            parser.error(f"{asked.output} was measured with {before['runtime']}, and this is {made['runtime']}")
        made |= _joined(before, made) | {"avoided": before.get("avoided", {})}
    asked.output.write_text(written(made))
    answers: Callable[[str], int] = lambda start: sum(each.startswith(start) for _, each in found)  # noqa: E731
    print(f"\n{len(found)} cases: {answers(HERE)} on the device, {answers(THERE)} elsewhere, {answers('fails')} fail")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
