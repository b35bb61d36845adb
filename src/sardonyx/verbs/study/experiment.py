"""What experiments share: their interface, cells, and functions about graphs after some passes.

An experiment has cells that are computed and stored one by one, and tables and findings from them.

A cell is the smallest piece of work that a killed study does not repeat. It runs in a child process (several at once
unless it is timed), gets nothing but its own fields, and returns plain JSON data. Tables and findings are computed
from the answers alone, so that a resumed study has the same result as an uninterrupted one.

`shape_of` is a hash of the structure of a graph, equal for graphs that are equal up to names. The hash of a value is
computed from its operator and the hashes of the operands: hash(v) = H(operator, attributes, hash(operand 1), …). So
names, the order of nodes, the order of the operands of commutative operators, and explicit default attributes do not
matter. How often a value is computed does.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import onnx
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import asdict, replace

from sardonyx.common.temporary import temporary_folder
from sardonyx.fleet.cells import Cell
from sardonyx.fleet.sources import download
from sardonyx.fleet.storage import Store
from sardonyx.fleet.work import Answer, Needs, Task, estimated_memory
from sardonyx.inputs.generator import BATCH, LENGTH, at_size, dynamic_dims
from sardonyx.ir import io
from sardonyx.ir.ops import COMMUTATIVE, VARIADIC
from sardonyx.ir.origins import tagged
from sardonyx.ir.plain_data import default_attributes
from sardonyx.ir.shapes.expr import symbol, total, value_of
from sardonyx.ir.tensors import FileTensor
from sardonyx.passes import Pass
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.runtime.timed import Settings, TimedModel
from sardonyx.verbs.analyze.census import Census
from sardonyx.verbs.analyze.costs.dataflow import moved
from sardonyx.verbs.analyze.costs.onnx_program import program_of
from sardonyx.verbs.analyze.costs.program import OpKind
from sardonyx.verbs.bench import interleaving
from sardonyx.verbs.optimize.candidates import Candidate, RewriteJob
from sardonyx.verbs.optimize.pipeline import select
from sardonyx.verification.subject import Subject as ModelSubject

SECONDS = 12.0  # for the measurements of one timed cell
_MODEL = "model"  # the folder that a model at a URL is copied to


class Subject(Struct, frozen=True):
    """A model of the study."""

    name: str
    path: Path  # an ONNX file; of a model at a URL, its name
    family: str | None = None  # its true architecture family, for models of the built-in zoo
    url: str | None = None


NO_MODEL = Subject("", Path())  # the subject of cells that need no model


class StudyOptions(Struct, frozen=True):
    """The options of a study; experiments copy those that matter to them into their cells."""

    target: str = "portable"
    seed: int = 0
    threads: int = 1  # of timed runs
    seconds: float = SECONDS  # time limit for the measurements of one timed cell
    thorough: bool = False  # more seeds, sizes and shuffles

    def only(self, *names: str) -> dict[str, Any]:
        """Return some options, as options of a cell; those left out must not change its answer."""
        return {name: getattr(self, name) for name in names}


class CellAnswer(Struct, frozen=True):
    """A cell, its model and its answer."""

    cell: Cell
    subject: Subject
    answer: Answer


Answers: TypeAlias = Sequence[CellAnswer]
Tables: TypeAlias = Mapping[str, Table]  # by name


class Experiment(ABC):
    """An experiment: a class with one instance in the list `runner.ALL`."""

    name: ClassVar[str]  # for `only` and `skip`, and the folder of its cells
    key: ClassVar[str] = ""  # of the only cell of each model
    reads: ClassVar[tuple[str, ...]] = ("target",)  # the options that change the answer of that cell
    uses: ClassVar[tuple[str, ...]] = ()  # earlier experiments in the list whose tables it reads
    of_models: ClassVar[bool] = True  # False: it needs no model, and `cells` is called once with NO_MODEL

    def cells(self, subject: Subject, options: StudyOptions) -> Sequence[Cell]:
        """Return the cells for one model, without any heavy computation."""
        return (Cell(self.name, subject.name, self.key, options.only(*self.reads)),)

    @abstractmethod
    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Compute the answer of one cell from its fields and the model's file."""

    def then(self, subject: Subject, answers: Answers, options: StudyOptions) -> Sequence[Cell]:
        """Return further cells for a model that depend on the answers of the first ones."""
        return ()

    def makes(self, subject: Subject) -> str | None:
        """Return the name of the model in the store of the study, if a cell makes it."""
        return None

    def is_there(self, store: Store, subject: Subject, answer: Answer) -> bool:
        """Return whether the model that a cell made, if it makes one, is in the store, unchanged."""
        return True

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return all answers of this experiment as tables; `others` are the tables of earlier experiments."""
        return ()

    def findings(self, tables: Tables) -> Iterable[Finding]:
        """Return the conclusions of this experiment from all tables of the study."""
        return ()


class CellWork(Task):
    """A cell as a piece of work; `makes` is the store and the name in it of the model that the cell makes, if any."""

    def __init__(
        self, experiment: Experiment, cell: Cell, subject: Subject, makes: tuple[Store, str] | None = None
    ) -> None:
        self._experiment, self._cell, self._makes = experiment, cell, makes
        self.name = f"{cell.experiment} of {cell.model}" if cell.model else cell.experiment
        self._subject = replace(subject, path=subject.path.absolute())  # a worker has another working directory
        self.needs = Needs(estimated_memory(self._subject.path), cell.timed)

    def fetch(self, folder: Path) -> None:
        """Copy a model at a URL."""
        if self._subject.url is not None and self._makes is None:
            download(self._subject.url, folder / _MODEL)

    def compute(self, folder: Path) -> Answer:
        """Run the experiment."""
        path, url = self._subject.path, self._subject.url
        if self._makes is not None:
            path = folder / path.name
        elif url is not None:
            path = folder / _MODEL / url.rpartition("/")[2]
        return self._experiment.run(self._cell, replace(self._subject, path=path))

    def publish(self, folder: Path, answer: Answer) -> None:
        """Move the model that the cell made to the store."""
        if self._makes is not None:
            store, name = self._makes
            store.upload(folder / self._subject.path.name, name)


_ANY_ORDER = COMMUTATIVE | VARIADIC  # of their operands, up to rounding
_MAX_SIZES = 64  # elements of a constant whose values are part of the structure: sizes, axes
_NEWEST = onnx.defs.onnx_opset_version()
_Contents = Callable[[ir.TensorProtocol], bytes]  # what of a constant counts besides its type and shape


def shape_of(model: ir.Model) -> str:
    """Return a hash of the graph: weights by type and shape, and only small integer constants by value."""

    def small_integers(tensor: ir.TensorProtocol) -> bytes:
        return tensor.tobytes() if tensor.size <= _MAX_SIZES and tensor.dtype.is_integer() else b""

    return _hashed(model, small_integers)


def values_of(model: ir.Model) -> str:
    """Return a hash of the graph with the values of all constants."""
    sums: dict[object, bytes] = {}

    def values(tensor: ir.TensorProtocol) -> bytes:
        # A tensor that is shared is read once.
        place = (tensor.file.path, tensor.offset, tensor.length) if isinstance(tensor, FileTensor) else id(tensor)
        if place not in sums:
            sums[place] = hashlib.sha256(tensor.tobytes()).digest()
        return sums[place]

    return _hashed(model, values)


def _hashed(model: ir.Model, contents: _Contents) -> str:
    bodies = sorted((each.identifier(), _graph(each.graph, {}, contents)) for each in model.functions.values())
    return _digest(_graph(model.graph, {}, contents), bodies).hex()[:16]


def _graph(graph: ir.Graph, outside: Mapping[ir.Value, bytes], contents: _Contents) -> bytes:
    hashes = {**outside, **{value: _digest("input", index) for index, value in enumerate(graph.inputs)}}
    for value in graph.initializers.values():
        if value.const_value is not None:
            hashes[value] = _constant(value.const_value, contents)
    nodes: list[bytes] = []
    for node in graph:
        nodes.append(_node(node, hashes, contents))
        hashes.update((value, _digest(nodes[-1], index)) for index, value in enumerate(node.outputs))
    return _digest([hashes[value] for value in graph.outputs], sorted(nodes))


def _node(node: ir.Node, hashes: Mapping[ir.Value, bytes], contents: _Contents) -> bytes:
    inputs = [b"" if value is None else hashes[value] for value in node.inputs]
    if node.op_type in _ANY_ORDER and not node.domain:
        inputs.sort()
    default = defaults(node)
    attributes = [
        (name, _attribute(attribute, hashes, contents))
        for name, attribute in sorted(node.attributes.items())
        if attribute.is_ref() or name not in default or attribute.value != default[name].value
    ]
    return _digest(node.domain, node.op_type, node.overload, len(node.outputs), attributes, inputs)


def defaults(node: ir.Node) -> Mapping[str, ir.Attr]:
    """Return the attributes of a node's operator that have a default."""
    version = node.version or (node.graph.opset_imports.get(node.domain) if node.graph is not None else None)
    return default_attributes(node.domain, node.op_type, version or _NEWEST)


def _attribute(attribute: ir.Attr, hashes: Mapping[ir.Value, bytes], contents: _Contents) -> object:
    if attribute.is_ref():
        return attribute.ref_attr_name
    match attribute.type:
        case ir.AttributeType.GRAPH:
            return _graph(attribute.as_graph(), hashes, contents)
        case ir.AttributeType.GRAPHS:
            return [_graph(body, hashes, contents) for body in attribute.as_graphs()]
        case ir.AttributeType.TENSOR:
            return _constant(attribute.as_tensor(), contents)
        case kind:
            return kind, attribute.value


def _constant(tensor: ir.TensorProtocol, contents: _Contents) -> bytes:
    return _digest("constant", tensor.dtype.name, tensor.shape.numpy(), contents(tensor))


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


TIMES = ("ratio", "low", "high", "floor", "finding", "rounds")  # columns of a comparison
SLOT_SECONDS = 0.02  # of one turn: short, since many models are timed at once
NARROW_WIDTH = 0.02  # width of an interval at which timing stops
_LOADED_BYTES = 3e9  # of model files, so that sessions of all fit into the memory of a small machine


def candidate(path: Path, target: str, passes: Sequence[Pass] | None = None) -> Candidate:
    """Return the model after these passes in this order; None: all passes of the target."""
    chosen = tuple(select(target) if passes is None else passes)
    return RewriteJob(path, chosen, target, lambda _phase, _fraction: None).candidate()


def graph_sizes(model: ir.Model) -> dict[str, Any]:
    """Return the counts of a graph and the hash of its structure."""
    return asdict(Census.of(model).counts) | {"shape": shape_of(model)}


def costs(source: Path | onnx.ModelProto | ir.Model) -> dict[str, int]:
    """Return nodes, bytes, FLOPs and bytes moved of a graph, with default sizes for dynamic dimensions."""
    model = tagged(source).model
    counts, program = Census.of(model).counts, program_of(model)
    shapes = ((value.name, value.shape[0]) for value in model.graph.inputs if value.shape)
    first = {repr(symbol(dim.value or f"{name}_0")) for name, dim in shapes if not isinstance(dim, int)}
    sizes = {dim: BATCH if dim in first else LENGTH for dim in program.symbols}
    flops = (operation.flops for operation in program.operations if operation.kind is not OpKind.VIEW)
    return {
        "nodes": counts.nodes,
        "bytes": counts.bytes,
        "flops": value_of(total(flops), sizes),
        "traffic": value_of(total(transfer.bytes for transfer in moved(program)), sizes),
    }


def time_models(
    source: Path, others: Mapping[str, ir.Model], pairs: Mapping[str, str | None], options: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Time models against each other in one process, in interleaved turns.

    Args:
        source: the reference; all models get its inputs.
        others: the other models by name.
        pairs: the comparisons, as a model and the model to compare it with; None: the source.
        options: of the cell: threads of the runtime, seconds for all comparisons, seed of the inputs and of the order.

    Returns:
        The comparison of each pair, by the name of its model.
    """
    seed = options["seed"]
    model = io.load(source)
    inputs = at_size(model, dynamic_dims(model, opened=ModelSubject(source).any_session), seed=seed)
    at_once = max(1, int(_LOADED_BYTES // max(1, source.stat().st_size)) - 3)
    names = list(pairs)

    def slot(file: Path) -> interleaving.Run:
        return interleaving.slot(
            TimedModel(file, Settings(threads=options["threads"])).ready(inputs), seconds=SLOT_SECONDS
        )

    groups = [names[start : start + at_once] for start in range(0, len(names), at_once)]
    comparisons: dict[str, dict[str, Any]] = {}
    for group in groups:
        loaded = dict.fromkeys((*filter(None, (pairs[name] for name in group)), *group))
        with temporary_folder() as folder:
            runs, twin = {"": slot(source)}, slot(source)
            for index, name in enumerate(loaded):
                file = Path(folder) / f"{index}.onnx"
                io.save(others[name], file, durable=False)
                runs[name] = slot(file)
            limit = options["seconds"] / len(groups)
            race = interleaving.race(runs, seconds=limit, narrow=NARROW_WIDTH, twin=twin, seed=seed)
        for name in group:
            one = race.comparison(name, against=pairs[name])
            comparisons[name] = {each: getattr(one, each) for each in TIMES} | {"finding": str(one.finding)}
    return comparisons


def integer(entry: Entry) -> int:
    """Return an entry of a table if it is an integer, otherwise 0."""
    return entry if isinstance(entry, int) else 0


def several(count: int, noun: str) -> str:
    """Return a count with its noun: 1 model, 2 models."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
