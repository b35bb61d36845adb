"""Models traced without timing: the optimized graph of the runtime, and the origin of its kernels."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx

from sardonyx.ir import origins
from sardonyx.ir.origins import tagged
from sardonyx.records import provenance as p
from sardonyx.records.bench import TracedBy
from sardonyx.runtime.timed import Level, Settings
from sardonyx.verbs.profile import kernel_origins
from sardonyx.verbs.profile.kernel_origins import Trace, Tracer, through, trace
from sardonyx.verbs.profile.profiler import saving


@dataclass(frozen=True)
class Kernel:
    """A kernel, the nodes it comes from and the module that owns it."""

    op_type: str
    nodes: frozenset[str]
    owner: str
    by: TracedBy


@dataclass(frozen=True)
class Traced:
    """A model beside the graph as run."""

    file: kernel_origins.Steps
    stages: list[kernel_origins.Steps]  # each derived from the previous one, the first from the file
    traces: dict[kernel_origins.GraphStep, Trace]

    @property
    def kernels(self) -> list[Kernel]:
        """All kernels of the main graph."""
        return [_kernel(step, self.traces[step]) for step in self.stages[-1].steps]

    def only(self, op_type: str) -> Kernel:
        """The one kernel of an operator."""
        [match] = [kernel for kernel in self.kernels if kernel.op_type == op_type]
        return match

    def tracers(self) -> list[Tracer]:
        """Each stage beside the one before it."""
        before = [self.file, *self.stages]
        return [Tracer(stage, earlier) for stage, earlier in zip(self.stages, before, strict=False)]


def traced(source: Path | onnx.ModelProto, level: Level = Level.ALL) -> Traced:
    """Trace a model as the profiler does."""
    file = kernel_origins.of_file(tagged(source).model.graph)
    levels = [level] if level is not Level.ALL else [Level.EXTENDED, level]
    with tempfile.TemporaryDirectory() as folder:
        stages: list[kernel_origins.Steps] = []
        for each in levels:
            saved = Path(folder) / f"{each}.onnx"
            saving(source, Settings(level=each), saved)
            stages.append(kernel_origins.as_run(saved))
    traces = trace(stages[0], file)
    for later, earlier in zip(stages[1:], stages, strict=False):
        traces = through(trace(later, earlier), traces)
    return Traced(file, stages, traces)


def _kernel(step: kernel_origins.GraphStep, result: Trace) -> Kernel:
    nodes = [each.node for each in result.steps if each.node is not None]
    owner = p.owner_of(p.merge(origins.origins(node) for node in nodes))
    return Kernel(step.op_type, frozenset(node.name or node.outputs[0].name or "" for node in nodes), owner, result.by)
