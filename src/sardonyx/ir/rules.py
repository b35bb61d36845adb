"""The interface between passes and the rewriter: matches, refusals, rules, the builder of new nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, ParamSpec

import numpy as np
import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.ir.expressions import Expression, literal
from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.precision import rounded
from sardonyx.ir.scopes import Names, Scope, label
from sardonyx.records.run import Accuracy

P = ParamSpec("P")
# The IR version since which an initializer need not be a graph input, and is overridable by callers if it is one.
BARE_INITIALIZERS = 4


class Builder:
    """Creates nodes, as in `op.Conv(x, w, strides=[2, 2])`, and constants, as in `op.constant(array)`."""

    def __init__(self, root: ir.Node, facts: Facts, names: Names) -> None:
        """Build at the position of `root`."""
        self.nodes: list[ir.Node] = []
        self.separate_nodes: set[ir.Node] = set()
        self._building_separate = False
        self.constants: list[ir.Value] = []
        self._facts = facts
        self._names = names
        self._base = label(root)
        self.scope: Scope = facts.scope(root)

    @contextmanager
    def separate(self) -> Generator[None, None, None]:
        """Attribute the nodes created inside to the `separate` nodes of the match.

        A mask that many layers share belongs to none of them.
        """
        self._building_separate = True
        try:
            yield
        finally:
            self._building_separate = False

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        """Return a function that creates a node of this operator of the default domain."""
        if not op_type[:1].isupper():
            raise AttributeError(op_type)

        def make(*inputs: ir.Value | None, **attributes: Any) -> ir.Value:
            return self.node(op_type, inputs, attributes)[0]

        return make

    def node(
        self,
        op_type: str,
        inputs: tuple[ir.Value | None, ...],
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
    ) -> tuple[ir.Value, ...]:
        """Create a node and return its outputs. Attributes are Python values or `ir.Attr`; None omits one."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        present = {key: value for key, value in (attributes or {}).items() if value is not None}
        node = ir.node(op_type, list(inputs), present, domain=domain, num_outputs=outputs)
        node.name = self._names.fresh(f"{self._base}_{op_type}")
        for output in node.outputs:
            output.name = self._names.fresh(f"{node.name}_out")
        self.nodes.append(node)
        if self._building_separate:
            self.separate_nodes.add(node)
        return tuple(node.outputs)

    def like(self, node: ir.Node, inputs: tuple[ir.Value | None, ...], **changed: Any) -> ir.Value:
        """Create the same operator on other inputs, with the same attributes except `changed` (None removes one)."""
        attributes: dict[str, Any] = {**node.attributes, **changed}
        return self.node(node.op_type, inputs, attributes, domain=node.domain, outputs=len(node.outputs))[0]

    def constant(self, data: np.ndarray | ir.TensorProtocol, hint: str = "const") -> ir.Value:
        """Create a constant, which takes over the tensor.

        It is an initializer, or a Constant node in functions and in old files, where an initializer must also be an
        input.
        """
        tensor = ir.Tensor(data) if isinstance(data, np.ndarray) else data  # ir.tensor() is slow
        name = self._names.fresh(f"{self._base}_{hint}")
        if self.scope.in_function or self._facts.model.ir_version < BARE_INITIALIZERS:
            (value,) = self.node("Constant", (), {"value": tensor})
        else:
            tensor.name = name
            shape = ir.Shape(tensor.shape.numpy())
            value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
            self.constants.append(value)
        self._facts.learn(value, tensor.dtype, tuple(int(dim) for dim in tensor.shape.numpy()))
        return value

    def folded(self, exact: Expression | np.ndarray, dtype: ir.DataType, hint: str = "const") -> ir.Value:
        """Create a constant that is computed in double precision; refuse the rewrite if `dtype` cannot hold it."""
        return self.constant(rounded(literal(exact) if isinstance(exact, np.ndarray) else exact, dtype), hint)

    def learn(self, value: ir.Value, dtype: ir.DataType | None, shape: Shape | None) -> ir.Value:
        """State the type and shape of an intermediate value, so that later matches do not have to infer them."""
        self._facts.learn(value, dtype, shape)
        return value


Replacement = ir.Value | Sequence[ir.Value | None]


class Match(Struct, frozen=True, eq=False):
    """Nodes that a rewrite replaces; the new nodes are inserted at the last of them.

    Matched nodes that are still read elsewhere stay. `build` builds the replacements; a rule with a `rewrite` of its
    own passes data to it in `details` instead. If an existing node computes the result from now on, it is the
    `survivor` and inherits the origins of the matched nodes. The origins of the `separate` nodes are inherited only by
    nodes built within `op.separate()`.
    """

    nodes: tuple[ir.Node, ...]
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: tuple[ir.Value, ...] | None = None  # the values to replace; the outputs of the root if None
    survivor: ir.Node | None = None
    separate: frozenset[ir.Node] = frozenset()
    build: Callable[[Builder], Replacement] | None = None

    @property
    def root(self) -> ir.Node:
        """Return the node at whose position the new ones are inserted."""
        return self.nodes[-1]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """Return the values that get a replacement."""
        return tuple(self.root.outputs) if self.outputs is None else self.outputs


class NoMatch(Exception):
    """Raised in a matcher where the rule does not apply; to return None says the same."""


class Refused(Exception):
    """A near miss, with the reason why the rewrite does not apply, to raise or to return.

    It is about the node that is matched if it names no others.
    """

    def __init__(self, reason: str, nodes: tuple[ir.Node, ...] = ()) -> None:
        """State the reason and the nodes that are shown with it."""
        super().__init__(reason)
        self.reason = reason
        self.nodes = nodes


class Drop(Struct, frozen=True, eq=False):
    """An initializer that nothing reads."""

    value: ir.Value


class Share(Struct, frozen=True, eq=False):
    """Initializers that equal another one."""

    duplicates: tuple[ir.Value, ...]
    kept: ir.Value


class Proposal(Struct, frozen=True, eq=False):
    """A match with its rewrite, for rules that look at a whole model at once."""

    match: Match
    rewrite: Callable[[Builder], Replacement]


class Rule(ABC):
    """The common attributes of all rules."""

    name: str  # of a pass; passes of one run have different names
    accuracy: ClassVar[Accuracy]


class NodeRule(Rule):
    """A rule that looks at one node and its surroundings."""

    roots: ClassVar[tuple[str, ...]]
    opset: ClassVar[int] = 1  # the lowest opset that it can read
    needs: ClassVar[int] = 1  # the opset of the operators that it creates; the model is raised to it if possible

    @abstractmethod
    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Return a match if the rule applies here, `Refused` for a near miss to report (or raise it), or None."""

    @staticmethod
    def outcome(
        match: Callable[P, Match | Refused | None], *args: P.args, **kwargs: P.kwargs
    ) -> Match | Refused | None:
        """Return what a matcher returns or raises."""
        try:
            return match(*args, **kwargs)
        except NoMatch:
            return None
        except Refused as refused:
            return refused.with_traceback(None)  # which would keep the frames alive

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build and return the replacements of the matched outputs."""
        if match.build is None:
            raise NotImplementedError(f"{self.name} has no rewrite, and its match no build")
        return match.build(op)


class ModelRule(Rule):
    """A rule that has to see the whole model."""

    @abstractmethod
    def propose(self, graph: Facts) -> Iterator[Proposal | Drop | Share | Refused]:
        """Yield what to change; each proposal is performed before the next one is requested."""
