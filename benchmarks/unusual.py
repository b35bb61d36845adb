"""Modules that people write themselves, exported beside plain torch and run on inputs of other sizes and values.

    python benchmarks/unusual.py [RESULTS] [--names NAME ...] [--table FILE.md]

Every module of `unusual_modules.py` is exported by Sardonyx with its defaults and by `torch.onnx.export` (dynamo). The
dimensions that differ between the two inputs of a case are dynamic in both. Each file then runs in ONNX Runtime on the
other inputs, twice in a row, and is compared with the module on the same calls: a file that forgets what the module
keeps from call to call is wrong. Tags are compared with an eager run (`truth.py`). RESULTS keeps a row for each case; a
row that is there is not measured again. The exit code is 1 if a file of ours is wrong without a note about it.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a copy of a process waits forever for threads that it does not have

import numpy as np
import onnx_ir as ir
import torch
from torch.utils._pytree import tree_leaves, tree_map

import sardonyx
from catalogue_case import Row, failure, in_process
from fresh_inputs import RIGHT, array, same, session_of, state_of, tag_cell, tags
from sardonyx.frontend.inputs.examples import Example
from sardonyx.frontend.running import initialize
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.prepare import prepared
from sardonyx.ir.metadata import outside_limits
from unusual_modules import CASES, Case, Inputs

Answers = Sequence[Sequence[np.ndarray]]  # of calls in a row
CALLS = 2
AS_WITH_GRADIENTS = f"{RIGHT}, at padded positions as with gradients"
HEAD = "| module | kind | ours | plain torch | tags | what is said about it |\n|---|---|---|---|---|---|"


def call_of(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of inputs as arguments: a module may write into them."""
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    return copy.deepcopy(tuple(args)), copy.deepcopy(dict(kwargs))


def expected(case: Case, *, fast_path: bool = True) -> Answers:
    """The tensors that the module returns in each of several calls, in the order of a file's outputs.

    Without its fast path, PyTorch computes what it does with gradients: the fast path writes zeros at padded positions.
    """
    module = case.module.eval()
    answers: list[list[np.ndarray]] = []
    torch.backends.mha.set_fastpath_enabled(fast_path)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for _ in range(CALLS):
            args, kwargs = call_of(case.fresh)
            outputs = module(*args, **kwargs)
            answers.append([array(leaf) for leaf in _tensors(outputs)])
    return answers


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a result; torch does not look into dataclasses."""
    fields = vars(value) if hasattr(value, "__dataclass_fields__") else value
    for leaf in tree_leaves(fields):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "__dataclass_fields__"):
            yield from _tensors(leaf)


def judged(path: Path, case: Case, names: Sequence[str], calls: Mapping[str, Answers]) -> str:
    """The name of the answers that the file gives, or how it differs from the first of them."""
    verdicts = {name: _compared(path, case, names, answers) for name, answers in calls.items()}
    return next((name for name, verdict in verdicts.items() if verdict == RIGHT), next(iter(verdicts.values())))


def _compared(path: Path, case: Case, names: Sequence[str], calls: Answers) -> str:
    """Either "right", or how the file differs from what the module answers to the other inputs."""
    feeds = {name: array(leaf) for name, leaf in zip(names, _tensors(call_of(case.fresh)), strict=True)}
    try:
        session = session_of(path)
        state, kept = state_of(path)
        outputs = [value.name for value in session.get_outputs()]
        taken = {value.name for value in session.get_inputs()}
        for wanted in calls:
            run = session.run(outputs, {name: value for name, value in (feeds | state).items() if name in taken})
            answers = dict(zip(outputs, run, strict=True))
            state = {name: answers.pop(output) for output, name in kept.items()}
            found = list(answers.values())
            if len(found) != len(wanted) and len({each.tobytes() for each in wanted}) != len(found):
                return f"wrong: {len(found)} outputs, not {len(wanted)}"
            if len(found) == len(wanted) and not all(map(same, wanted, found)):
                limit = _beyond(path, case)
                return "wrong: other values" if limit is None else f"not for these sizes: {limit}"
    except Exception as error:
        return f"fails: {failure(error)['error'][:100]}"
    return RIGHT


def _beyond(path: Path, case: Case) -> str | None:
    """The limit in the file's metadata that the other inputs do not keep, or None."""
    sizes = {dim: int(dim.partition("_")[2]) for axes in differing_axes(case) for dim in axes.values()}
    return outside_limits(ir.load(path), sizes)


def measure(case: Case) -> Row:
    """What both exporters make of a case; the module runs and is exported in processes of their own."""
    calls = {
        name: in_process(lambda fast=fast: {"answers": expected(case, fast_path=fast)})["answers"]
        for name, fast in ((RIGHT, True), (AS_WITH_GRADIENTS, False))
    }
    return {
        "kind": case.kind,
        "ours": in_process(lambda: _guarded(ours, case, calls)),
        "plain": in_process(lambda: _guarded(plain, case, calls)),
    }


def _guarded(work: Callable[[Case, Any], Row], case: Case, calls: Any) -> Row:
    try:
        return work(case, calls)
    except Exception as error:
        return failure(error)


def ours(case: Case, calls: Mapping[str, Answers]) -> Row:
    """Export with Sardonyx, as a user does from Python."""
    case.module.eval()
    random = torch.get_rng_state()
    args, kwargs = call_of(case.example)
    with prepared(case.module) as module:
        names = ModuleCall(module, args, kwargs).inputs
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        record = sardonyx.export(
            case.module, args, path, kwargs=kwargs, dynamic=_axes(case, names), options=sardonyx.ExportOptions()
        )
        row: Row = {"notes": list(record.notes), "answer": judged(path, case, names, calls)}
        fixed = getattr(record, "fixed", ())
        row["notes"] += [f"fixed in the graph: {fixed}"] if fixed else []
        feeds = {name: array(leaf) for name, leaf in zip(names, _tensors(call_of(case.example)), strict=True)}
        torch.set_rng_state(random)  # so that lazy layers get the weights that the export gave them
        initialize(case.module, *call_of(case.example))
        return row | {"tags": tags(path, case.module, Example(*call_of(case.example)), feeds)}


def differing_axes(case: Case) -> list[dict[int, str]]:
    """The axes of each tensor that the two inputs have in other sizes, named by both sizes."""
    pairs = zip(_tensors(call_of(case.example)), _tensors(call_of(case.fresh)), strict=True)
    return [
        {axis: f"d{a}_{b}" for axis, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if a != b}
        for one, other in pairs
    ]


def _axes(case: Case, names: Sequence[str]) -> dict[str, dict[int, str]]:
    return {name: axes for name, axes in zip(names, differing_axes(case), strict=True) if axes}


def plain(case: Case, calls: Mapping[str, Answers]) -> Row:
    """Export with torch alone; sizes that differ are left to torch to keep dynamic."""
    args, kwargs = call_of(case.example)
    axes = iter(differing_axes(case))
    shapes = tree_map(
        lambda leaf: dict.fromkeys(next(axes), torch.export.Dim.AUTO) if isinstance(leaf, torch.Tensor) else None,
        (args, kwargs),
    )
    module = case.module.eval()
    dynamic: Any = shapes[1] if kwargs else shapes[0]
    if not isinstance(module, torch.jit.ScriptModule):
        kinds = {p.kind: name for name, p in inspect.signature(module.forward).parameters.items()}
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            dynamic = (shapes[0],)
        elif inspect.Parameter.VAR_KEYWORD in kinds:
            dynamic = {kinds[inspect.Parameter.VAR_KEYWORD]: shapes[1]}
    if args and isinstance(args[-1], dict):
        args = (*args, {})  # torch takes a dict at the end for keywords
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.onnx"
        program: Any = torch.onnx.export(
            module, args, kwargs=kwargs, dynamo=True, verbose=False, dynamic_shapes=dynamic
        )
        program.save(str(path))
        names = [value.name for value in program.model.graph.inputs]
        present = len(list(_tensors((args, kwargs))))
        return {"answer": judged(path, case, names, calls) if len(names) == present else f"fails: {len(names)} inputs"}


def table(rows: dict[str, Row]) -> str:
    """The results as a page."""
    lines = [HEAD]
    for name, row in sorted(rows.items(), key=lambda item: (item[1]["kind"], item[0])):
        notes = [note for note in row["ours"].get("notes", ()) if " generated as " not in note]
        said = row["ours"].get("error") or "; ".join(notes)
        answers = (row[side].get("answer") or "error" for side in ("ours", "plain"))
        lines.append(
            f"| {name} | {row['kind']} | {' | '.join(answers)} | {tag_cell(row['ours'].get('tags'))} | {_cell(said)} |"
        )
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:160]


def summary(rows: dict[str, Row]) -> list[str]:
    """How many are right, and those that plain torch exports right and Sardonyx does not."""
    right = {
        side: {name for name, row in rows.items() if row[side].get("answer", "").startswith(RIGHT)}
        for side in ("ours", "plain")
    }
    wrong = silent(rows)
    missed = sorted(right["plain"] - right["ours"])
    both = len(right["plain"] & right["ours"])
    return [
        f"{len(right['ours'])} of {len(rows)} right on other sizes and values; plain torch {len(right['plain'])}.",
        f"Of the {len(right['plain'])} that plain torch exports right, {both}; not: {', '.join(missed) or 'none'}.",
        f"Wrong without an error or a note: {', '.join(wrong) or 'none'}.",
        f"Tags right in {sum(row['ours'].get('tags') == [] for row in rows.values())} of "
        f"{sum('tags' in row['ours'] for row in rows.values())} files.",
    ]


def silent(rows: dict[str, Row]) -> list[str]:
    """The cases whose file is wrong and says nothing."""
    return sorted(
        name
        for name, row in rows.items()
        if not row["ours"].get("answer", RIGHT).startswith(RIGHT)
        and not [note for note in row["ours"]["notes"] if " generated as " not in note]
    )


def main(arguments: list[str]) -> int:
    """Measure what is not measured yet, and print the table; 1 if a file is wrong and says nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--names", nargs="*", default=list(CASES))
    parser.add_argument("--table", type=Path)
    options = parser.parse_args(arguments)
    kept: Path | None = options.results
    rows: dict[str, Row] = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    for name in options.names:
        if name not in rows:
            rows[name] = measure(CASES[name]())
            print(name, *(rows[name][side].get("answer") or rows[name][side] for side in ("ours", "plain")), flush=True)
        if kept is not None:
            kept.write_text(json.dumps(rows, indent=1))
    print(*summary(rows), sep="\n")
    if options.table is not None:
        about = (__doc__ or "").partition("\n\n")[0]
        options.table.write_text(
            f"# {about}\n\n" + "\n".join(f"- {line}" for line in summary(rows)) + f"\n\n{table(rows)}\n"
        )
    return 1 if silent(rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
