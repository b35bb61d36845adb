"""One model of the catalogue measured: built and given inputs once, then each exporter in a process of its own.

Every stage starts as a copy of the process that has the model and its inputs, so both exporters find the same state:
nothing is cached by one for the other, and a crash or an endless loop of one costs the other nothing. Times are CPU
seconds of one thread, which other work on the machine does not change much.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import re
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sardonyx
from catalogue_models import Subject, modules
from catalogue_table import LIMIT
from fresh_inputs import array, compared, tags
from sardonyx.errors import SardonyxError
from sardonyx.frontend.inputs.examples import Example, derive
from sardonyx.frontend.tracing.adapter import ModuleCall

Row = dict[str, Any]
WAITS = 10  # times as long may pass on the clock, where other processes use the machine
TRIES = 6  # configs, where the module accepts no example
PATIENCE = 25  # CPU seconds, after which no other config is tried
PHASES = ("model", "inputs", "export", "verification", "writing")


def in_process(work: Callable[[], Row], limit: int = LIMIT, waits: int = WAITS) -> Row:
    """What the work answers in a copy of this process; a row that says why, where there is no answer.

    Args:
        work: what is done there.
        limit: CPU seconds of that process, those that it starts not counted.
        waits: how many times as long may pass on the clock.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, there, limit))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(limit * waits) else {"error": f"not done after {limit * waits} s"}
    except EOFError:
        process.join()
        late = process.exitcode == -signal.SIGPROF
        return {"error": f"not done after {limit} s of CPU" if late else f"crashed with exit {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _answer(work: Callable[[], Row], pipe: Any, limit: int) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limit)  # a resource limit would also hold for the worker that runs models
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    pipe.send(work())


def failure(error: BaseException) -> Row:
    """An exception as a row: the library's own errors by their message, anything else by where it came from."""
    if isinstance(error, SardonyxError):
        return {"error": error.message, "kind": type(error).__name__}
    inner = error
    while inner.__cause__ is not None:  # torch wraps its reasons in advice
        inner = inner.__cause__
    lines = [line for line in str(inner).strip().splitlines() if line.strip()] or [""]
    place = traceback.extract_tb(inner.__traceback__)[-1:]
    where = f"{Path(place[0].filename).name}:{place[0].lineno}" if place else ""
    return {"error": f"{type(inner).__name__}: {lines[0].strip()[:300]}", "kind": type(inner).__name__, "at": where}


def measure(subject: Subject, exporter: str, folder: Path, plain: Row | None = None, limit: int = LIMIT) -> Row:
    """Everything about one model and exporter.

    Args:
        subject: the model.
        exporter: ours; plain torch is always torch.export.
        folder: where its config is kept.
        plain: what plain torch made of it, where that is known already.
        limit: CPU seconds of each stage.
    """
    row: Row = {}
    began = time.process_time()
    chosen: tuple[torch.nn.Module, Example] | None = None
    try:
        for module, source, size in itertools.islice(modules(subject, folder), TRIES):
            row = {"source": source, "size": size, "class": type(module).__name__}
            row["parameters"] = sum(parameter.numel() for parameter in module.parameters())
            try:
                chosen = module, derive(module)
            except Exception as error:
                row["ours"] = failure(error) | {"stage": "inputs"}
                if time.process_time() - began < PATIENCE:
                    continue  # a cut may have made the sizes of the config disagree
            break
    except Exception as error:
        return row or {"unbuildable": failure(error)["error"]}
    if chosen is None:
        return row or {"unbuildable": "larger than the limit, however its config is cut"}
    module, example = chosen
    row |= {"inputs": list(_described(example)), "unread": unread(module, example)}
    with tempfile.TemporaryDirectory() as written:
        path = Path(written) / "model.onnx"
        row["ours"] = in_process(lambda: ours(module, exporter, path), limit)
        if row["ours"].get("verified"):
            axes = row["ours"]["dynamic"]
            row["fresh"] = in_process(lambda: {"answer": compared(path, module, example, axes)}, limit)
            tagged = in_process(lambda: {"tags": tags(path, module, example, _feeds(module, example))}, limit)
            row["fresh"]["tags"] = tagged["tags"] if "tags" in tagged else [f"not compared: {tagged['error']}"]
    row["plain"] = plain or in_process(lambda: plainly(module, example), limit)
    return row


def _feeds(module: torch.nn.Module, example: Example) -> dict[str, np.ndarray]:
    return {name: array(tensor) for name, tensor in ModuleCall(module, example.args, example.kwargs).feeds.items()}


def _described(example: Example) -> Iterator[str]:
    named = {**{str(number): value for number, value in enumerate(example.args)}, **example.kwargs}
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            yield f"{name}={str(value.dtype).removeprefix('torch.')}{list(value.shape)}".replace(" ", "")
        else:
            yield f"{name}={value!r}"[:60]


class _Reads(TorchDispatchMode):
    """Notes the storages that operations read."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor):
                self.storages.add(value.untyped_storage()._cdata)
        return func(*args, **(kwargs or {}))


def unread(module: torch.nn.Module, example: Example) -> list[str]:
    """Modules with parameters of which no operation reads any, own or below: the inputs do not reach them.

    A single parameter that only training reads, beside others that are read, does not count.
    """
    with torch.no_grad(), _Reads() as reads:
        module(*example.args, **example.kwargs)
    found: list[str] = []
    for name, each in module.named_modules():
        weights = list(each.parameters())
        if weights and not any(parameter.untyped_storage()._cdata in reads.storages for parameter in weights):
            found.append(name)
    return found


def ours(module: torch.nn.Module, exporter: str, path: Path) -> Row:
    """Export with dynamic dimensions and verification as a user does, and count the nodes, raw and optimized."""
    marks: list[tuple[str, float]] = []

    def mark(phase: str, _fraction: float | None) -> None:
        if phase in PHASES:
            marks.append((phase, time.process_time()))

    row: Row = {"exported": False, "verified": False}
    how: dict[str, Any] = {"exporter": exporter, "dynamic": "auto", "threads": 1, "progress": mark}
    try:
        record = sardonyx.export(module, None, path, **how)
        row["verified"] = True
    except Exception as error:
        row |= failure(error) | {"stage": marks[-1][0] if marks else "inputs"}
        return row | {"exported": row["stage"] == "verification"}
    ended = [*(moment for _, moment in marks[1:]), time.process_time()]
    row["seconds"] = dict.fromkeys((phase for phase, _ in marks), 0.0)
    for (phase, start), end in zip(marks, ended, strict=True):  # with fewer dimensions, some phases run again
        row["seconds"][phase] += end - start
    cover = record.coverage
    row |= {
        "exported": True,
        "nodes": record.counts.nodes,
        "root": cover.root / max(1, cover.direct + cover.inherited + cover.root),
        "notes": list(record.notes),
        "unreached": list(getattr(record, "unreached", ())),
        "dynamic": {each.name: each.dynamic for each in record.inputs if each.dynamic},
    }
    return row | _optimized(path)


def _optimized(path: Path) -> Row:
    row: Row = {}
    for target in ("portable", "ort"):
        try:
            row[target] = sardonyx.optimize(path, target=target, verify="off", threads=1).after.nodes
        except Exception as error:
            row[f"{target}_error"] = failure(error)["error"]
    return row


def plainly(module: torch.nn.Module, example: Example) -> Row:
    """torch.onnx.export on the same inputs, and whether its file answers what the module does."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ImportError):
        try:
            program: Any = torch.onnx.export(
                module, example.args, kwargs=example.kwargs, dynamo=True, verbose=False, report=False
            )
            program.save(str(Path(folder) / "model.onnx"))
        except Exception as error:
            return failure(error) | {"exported": False}
        row = {"exported": True, "seconds": time.process_time() - began}
        return row | {"nodes": sum(1 for _ in program.model.graph), "answers": _answers(program, module, example)}


def _answers(program: Any, module: torch.nn.Module, example: Example) -> str:
    """Either "same", or "differs", or the reason why the file does not run."""
    try:
        with torch.no_grad():
            expected = module(*example.args, **example.kwargs)
        wanted = [leaf for leaf in torch.utils._pytree.tree_leaves(expected) if isinstance(leaf, torch.Tensor)]
        found = program(*example.args, **example.kwargs)
        pairs = list(zip(wanted, found, strict=True))
        same = all(torch.allclose(a.double(), b.double(), 1e-3, 1e-4, equal_nan=True) for a, b in pairs)
    except Exception as error:
        return re.sub(r"\s+", " ", failure(error)["error"])
    return "same" if same else "differs"
