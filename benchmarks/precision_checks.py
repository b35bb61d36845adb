"""What else must hold for quantized files: every node has a module, other commands read them, memory stays bounded."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

import sardonyx
from measure import memory_of_all
from precision_models import Case

LARGE = {"layers": 3, "hidden": 2112}  # 1.2 GB of weights
_RUN = """
import sys
from pathlib import Path
from sardonyx.ir import io
from sardonyx.inputs.generator import at_size
from sardonyx.runtime.timed import Settings, TimedModel
path = Path(sys.argv[1])
TimedModel(path, Settings(1)).ready(at_size(io.load(path)))()
"""


class Tagged(msgspec.Struct, frozen=True):
    """What the other commands find in a quantized file."""

    nodes: int
    unowned: int  # nodes whose module is unknown
    profiled: float  # share of the time that belongs to modules
    extracted: str  # the module that was extracted and verified
    unmatched: tuple[str, ...]  # modules that `compare` finds in one of the two files only


class Memory(msgspec.Struct, frozen=True):
    """Peaks in MB of private memory, and of pages of mapped files, which the system may drop."""

    what: str
    private: int
    mapped: int


def tagged(case: Case, path: Path) -> Tagged:
    """Run `inspect`, `profile`, `extract` and `compare` on a quantized file.

    Raises:
        AssertionError: A node belongs to no module, or a command finds nothing.
    """
    found = sardonyx.inspect(path)
    before = sardonyx.inspect(case.model).coverage
    cover = found.coverage
    profiled = sardonyx.profile(path, runs=2)
    compared = sardonyx.compare(case.model, path)
    module = _largest_leaf(found)
    sardonyx.extract(path, module)
    assert cover.root <= before.root, f"{cover.root} nodes without a module, {before.root} in float32"
    assert not compared.same, "compare finds no difference"
    unmatched = (*compared.only_before, *compared.only_after)
    nodes = cover.direct + cover.inherited + cover.root
    return Tagged(nodes, cover.root, profiled.models[0].attributed, module, unmatched)


def _largest_leaf(found: sardonyx.Inspection) -> str:
    modules = [module for module in found.modules if module.path and module.nodes]
    return max(modules, key=lambda module: module.parameters).path


def memory(folder: Path, forms: Sequence[str]) -> list[Memory]:
    """Return the peaks of one run of a file of 1.2 GB, and of quantizing it."""
    import large

    path = folder / "large.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        large.make(path, **LARGE)
    found = [Memory("one run", *memory_of_all([sys.executable, "-c", _RUN, str(path)]))]
    for form in forms:
        with tempfile.TemporaryDirectory(dir=folder) as target:
            output = str(Path(target) / "q.onnx")
            command = [sys.executable, "-m", "sardonyx", "quantize", str(path), "-o", output, "--to", form, "-q"]
            found.append(Memory(f"quantize --to {form}", *memory_of_all([*command, "--threads", "1"])))
    return found


def section(folder: Path) -> str:
    """Return what was found of modules and memory, as a part of the page."""
    tags = [msgspec.json.decode(file.read_bytes(), type=Tagged) for file in sorted(folder.glob("tags/*/*.json"))]
    parts: list[str] = []
    if tags:
        models = len(list(folder.glob("tags/*")))
        least = min(tag.profiled for tag in tags)
        parts.append(
            f"## Modules\n`inspect`, `profile`, `extract` and `compare` run on {len(tags)} quantized files of {models} "
            f"models. Of {sum(tag.nodes for tag in tags):,} nodes\n{sum(tag.unowned for tag in tags)} have no module; "
            f"at least {100 * least:.0f} % of the time of kernels belongs to modules; "
            f"{sum(bool(tag.unmatched) for tag in tags)} files have modules that the float32\nfile does not have."
        )
    file = folder / "memory.json"
    if file.exists():
        found = msgspec.json.decode(file.read_bytes(), type=list[Memory])
        run = found[0]
        rows = [f"| {each.what} | {each.private} | {each.private - run.private} | {each.mapped} |" for each in found]
        head = "| | private MB | beyond one run | mapped files, MB |\n|---|---|---|---|\n"
        parts.append("## Memory on a file of 1.2 GB\n" + head + "\n".join(rows))
    return "\n\n".join(parts)
