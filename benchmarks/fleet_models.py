"""A set of models for benchmarks/fleet.py: exported architectures, files from packages and drawn graphs.

    python benchmarks/fleet_models.py FOLDER [--count 1000] [--exported 350] [--packages FOLDER …]

FOLDER/models.jsonl has one line for each model: its source and name, where it comes from, its family, and its size.
Weights are random with a seed. A model that is there is not made again, so a run that was stopped goes on. Exported
are models of the catalogue (see catalogue.md) that the catalogue exports; graphs are drawn as by benchmarks/fuzz.py.
Files are those of the packages of `make precision`, and of any other folder that is named.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import shutil
import sys
import sysconfig
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

os.environ["OMP_NUM_THREADS"] = "1"  # before torch

import onnx

from fuzzing import families, judging, running
from fuzzing.draft import Rejected

HERE = Path(__file__).parent
MANIFEST = "models.jsonl"
COUNT, EXPORTED = 1000, 350
SMALL, MEDIUM, LARGE = 2.0, 6.0, 26.0  # millions of parameters: 8, 24 and 104 MB
SLOWEST = 9.0  # seconds of an export, as the catalogue measured it
LIMIT, WAITS, DRAWN_LIMIT = 100, 20, 10  # CPU seconds of an architecture, its clock time, seconds of a drawn graph
# One run takes 4 s with the runtime's optimizations off, and verification minutes: longer than a worker of
# `fleet.py chaos` lives.
LEFT_OUT = {("transformers", "conditional_detr"), ("transformers", "deformable_detr")}
LEAST_BYTES, MOST_BYTES = 3_000, 150_000_000  # of a file of a package
Variant = tuple[Literal["dynamo", "torchscript"], int]  # exporter and seed
VARIANTS: tuple[tuple[Variant, ...], ...] = (
    (("dynamo", 0), ("torchscript", 1)),
    (("dynamo", 0),),
    (("dynamo", 0), ("torchscript", 1), ("dynamo", 2)),
)
Row = dict[str, Any]
Given = TypeVar("Given")
Made = TypeVar("Made")


class Plan(NamedTuple):
    """An architecture and the exports to make of it."""

    library: str
    name: str
    variants: tuple[Variant, ...]


# ------------------------------------------------------------------------------------------ exported


class Known(NamedTuple):
    """What the catalogue says about an export."""

    parameters: float  # millions
    seconds: float


def known(text: str) -> dict[tuple[str, str, str], Known]:
    """Return the verified exports of the catalogue's table, by library, name and exporter."""
    found: dict[tuple[str, str, str], Known] = {}
    library = exporter = ""
    for line in text.splitlines():
        if match := re.match(r"## (\w+), (dynamo|torchscript)$", line):
            library, exporter = match.groups()
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        size = re.match(r"([\d.]+) ([Mk])", cells[2]) if library and len(cells) > 8 and cells[4] == "yes" else None
        if size is not None:
            millions = float(size[1]) * (1 if size[2] == "M" else 1e-3)
            found[library, cells[0], exporter] = Known(millions, float(cells[7]))
    return found


def plans(keys: Sequence[tuple[str, str]], table: dict[tuple[str, str, str], Known], count: int) -> list[Plan]:
    """Return architectures in the catalogue's order with their exports, until there are enough.

    Small models are exported more than once, with different exporters and seeds. Of large models one in four is taken,
    so that most of the set is small.
    """
    found: list[Plan] = []
    left, large = count, 0
    for library, name in keys:
        about = table.get((library, name, "dynamo"))
        if about is None or about.parameters > LARGE or about.seconds > SLOWEST or (library, name) in LEFT_OUT:
            continue
        large += about.parameters > MEDIUM
        if about.parameters > MEDIUM and large % 4 != 1:
            continue
        variants = VARIANTS[len(found) % len(VARIANTS)] if about.parameters <= SMALL else VARIANTS[1]
        found.append(Plan(library, name, variants[:left]))
        left -= len(found[-1].variants)
        if left <= 0:
            break
    return found


def export_all(folder: Path, count: int, have: set[str]) -> Iterator[Row]:
    """Export what is missing, each architecture in a copy of a process in which everything is imported."""
    from catalogue import warm
    from catalogue_case import in_process
    from catalogue_models import Subject, subjects

    def made(plan: Plan) -> tuple[Plan, int, float, Row]:
        subject, began = Subject(plan.library, plan.name), time.monotonic()
        due = [each for each in plan.variants if f"exported/{subject.key}.{each[0]}.{each[1]}" not in have]
        answer = in_process(lambda: export(subject, due, folder), LIMIT, WAITS) if due else {}
        return plan, len(due), time.monotonic() - began, answer

    everything = [(each.library, each.name) for each in subjects()]
    warm()
    chosen = plans(everything, known((HERE / "catalogue.md").read_text()), 2 * count)  # some fail
    for plan, due, seconds, answer in ahead(made, chosen):
        if count <= sum(name.startswith("exported/") for name in have):
            return
        rows = answer.get("rows", ())
        for row in rows:
            have.add(row["name"])
            yield row
        if due:
            faults = answer.get("faults", answer.get("error", ""))
            print(f"{plan.library}.{plan.name}: {len(rows)} of {due}, {seconds:.1f} s {faults}", flush=True)


def ahead(work: Callable[[Given], Made], items: Iterable[Given]) -> Iterator[Made]:
    """Yield the results in order; as many are computed at a time as there are cores."""
    waiting = deque[Future[Made]]()
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 4 * cores:  # a slow one does not hold up the others
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def export(subject: Any, variants: Sequence[Variant], folder: Path) -> Row:
    """Export one architecture; the first config of which example inputs can be derived."""
    import sardonyx
    from catalogue_case import TRIES, failure
    from catalogue_models import modules
    from sardonyx.frontend.inputs.examples import derive
    from sardonyx.frontend.models import resolve

    rows: list[Row] = []
    faults: list[str] = []
    for module, source, _ in itertools.islice(modules(subject, folder / "configs" / subject.key), TRIES):
        try:
            derive(module)
        except Exception as error:
            faults.append(failure(error)["error"][:80])
            continue
        where, _, task = source.partition(" --task ")
        for exporter, seed in variants:
            name = f"exported/{subject.key}.{exporter}.{seed}"
            path = folder / f"{name}.onnx"
            path.parent.mkdir(parents=True, exist_ok=True)
            seeded = resolve(where, task=task or None, seed=seed).module if seed else module
            try:
                sardonyx.export(seeded, None, path, exporter=exporter, verify="off", threads=1, force=True)
            except Exception as error:
                faults.append(f"{exporter}: {failure(error)['error'][:80]}")
                continue
            rows.append(row_of(path, name, "exported", subject.key) | {"exporter": exporter, "seed": seed})
        break
    return {"rows": rows, "faults": faults}


# ------------------------------------------------------------------------------------------ packages


def package_all(folder: Path, places: Sequence[Path], have: set[str]) -> Iterator[Row]:
    """Copy the model files of packages; the same file is taken once."""
    seen: set[str] = set()
    for place in places:
        for file in sorted(place.rglob("*.onnx")):
            if not LEAST_BYTES <= file.stat().st_size <= MOST_BYTES:
                continue
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            parts = file.relative_to(place).with_suffix("").parts
            short = re.sub(r"[^\w-]", "_", "-".join((parts[0], parts[-1]) if len(parts) > 1 else parts))
            name = f"packages/{short}-{digest[:6]}"
            if digest in seen or name in have:
                seen.add(digest)
                continue
            seen.add(digest)
            path = folder / f"{name}.onnx"
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, path)
            try:
                row = row_of(path, name, "packages", short)
            except Exception as error:  # not a model, or weights in a file that is not there
                print(f"{file.name}: {type(error).__name__}")
                path.unlink()
                continue
            have.add(name)
            yield row


# ------------------------------------------------------------------------------------------ drawn


def draw_all(folder: Path, count: int, have: set[str]) -> Iterator[Row]:
    """Draw graphs that the runtime accepts, seed by seed, until there are enough."""
    from catalogue_case import in_process

    (folder / "drawn").mkdir(parents=True, exist_ok=True)
    made = sum(name.startswith("drawn/") for name in have)
    seed = max((int(name.rsplit(".", 1)[1]) for name in have if name.startswith("drawn/")), default=-1) + 1
    for answer in ahead(
        lambda seed: in_process(lambda: {"row": draw(seed, folder)}, DRAWN_LIMIT, 3), range(seed, 10**6)
    ):
        if made >= count:
            return
        if answer.get("row"):
            made += 1
            have.add(answer["row"]["name"])
            yield answer["row"]


def draw(seed: int, folder: Path) -> Row | None:
    """Write the graph of a seed if it runs on any of its feeds."""
    try:
        drawn = families.draw(seed)
        source = judging.Source(drawn.model, running.feeds(drawn.inputs, drawn.sizes, seed))
    except (Rejected, running.Failed):
        return None
    if not source.answers:
        return None
    name = f"drawn/{drawn.family}.{seed}"
    path = folder / f"{name}.onnx"
    path.write_bytes(drawn.model.SerializeToString())
    return row_of(path, name, "drawn", name) | {"family": f"drawn, {drawn.family}", "seed": seed}


# ------------------------------------------------------------------------------------------ the manifest


def row_of(path: Path, name: str, origin: str, architecture: str) -> Row:
    """Return the line of the manifest for a file; seeds and exporters of one architecture share its name."""
    model = onnx.load(path, load_external_data=False)
    weights = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}.data"))
    return {
        "source": f"{name}.onnx",
        "name": name,
        "origin": origin,
        "architecture": architecture,
        "family": family(model),
        "exporter": model.producer_name,
        "seed": 0,
        "optimized": any(_is_optimized(each) for each in model.metadata_props),  # before it came here
        "nodes": len(model.graph.node),
        "bytes": path.stat().st_size + weights,
    }


def _is_optimized(entry: onnx.StringStringEntryProto) -> bool:
    return entry.key == "sardonyx.options" and "optimize" in json.loads(entry.value)


def family(model: onnx.ModelProto) -> str:
    """Return the family of a model by what it takes and what it computes with."""
    weights = {each.name for each in model.graph.initializer}
    inputs = {each.name: each.type.tensor_type for each in model.graph.input if each.name not in weights}
    ranks = [len(each.shape.dim) for each in inputs.values() if each.elem_type in (1, 10, 11, 16)]
    operators = Counter(node.op_type for node in model.graph.node)
    if 3 * operators["ConstantOfShape"] > len(model.graph.node) > 30:
        return "weights as nodes"
    if operators["LSTM"] + operators["GRU"] + operators["RNN"]:
        return "recurrent"
    text = any("ids" in name for name in inputs)
    sound = any(re.search(r"audio|speech|input_(values|features)|wave", name) for name in inputs)
    image = any(re.search(r"pixel|image", name) for name in inputs) or (4 in ranks or 5 in ranks)
    if text + sound + image > 1:
        return "several inputs"
    if text or sound:
        return "text" if text else "sound"
    if image:
        return "images, attention" if _attends(model, operators) else "images, convolution"
    return "other"


def _attends(model: onnx.ModelProto, operators: Counter[str]) -> bool:
    """Whether a product with a softmax is computed, with at most two nodes between them."""
    if operators["Attention"] + operators["MultiHeadAttention"]:
        return True
    after: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            after.setdefault(name, []).append(node)
    reached = [node for node in model.graph.node if node.op_type == "Softmax"]
    for _ in range(3):
        reached = [reader for node in reached for name in node.output for reader in after.get(name, ())]
        if any(node.op_type in ("MatMul", "Einsum") for node in reached):
            return True
    return False


def main(words: Sequence[str]) -> int:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--exported", type=int, help=f"how many of them; default: {EXPORTED} of {COUNT}")
    parser.add_argument("--packages", type=Path, nargs="*", default=[Path(sysconfig.get_paths()["purelib"])])
    asked = parser.parse_args(words)
    asked.folder.mkdir(parents=True, exist_ok=True)
    manifest = asked.folder / MANIFEST
    rows = [json.loads(line) for line in manifest.read_text().splitlines()] if manifest.exists() else []
    have = {row["name"] for row in rows}
    exported = asked.exported if asked.exported is not None else asked.count * EXPORTED // COUNT

    def drawn() -> Iterator[Row]:
        yield from draw_all(asked.folder, asked.count - sum(not name.startswith("drawn/") for name in have), have)

    packaged = package_all(asked.folder, asked.packages, have)
    with manifest.open("a") as file:
        for row in itertools.chain(packaged, export_all(asked.folder, exported, have) if exported else (), drawn()):
            file.write(json.dumps(row) + "\n")
            file.flush()
    print(f"{manifest}: {len(have)} models")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
