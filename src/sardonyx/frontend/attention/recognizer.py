"""Finds attention in a graph by its structure: a softmax between two products.

Before the softmax, casts, masks (added or filled), scales and regroupings of the leading axes lead back to the product
of queries and keys. After it, dropout and casts lead to the product with the values. Around this core are the
projections, and the splitting and merging of heads.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import fx

from sardonyx.frontend.attention import opaque_ops
from sardonyx.frontend.attention.graph_calls import (
    ARRANGING,
    GraphCall,
    constant,
    example_of,
    is_number,
    rank_of,
    read,
    same_sizes,
    shape_of,
    writes_in_place,
)
from sardonyx.frontend.attention.roles import (
    AttentionMatch,
    Bias,
    Cast,
    Dropout,
    Fill,
    NotAttention,
    Operand,
    Regroup,
    Role,
    Scale,
    Step,
)

_ARRANGING_HEADS = ARRANGING | {"repeat"}
_ELLIPSIS = "*"
_EXAMPLES = "example inputs are needed to decide"
_PRODUCTS = frozenset({"matmul", "baddbmm", "einsum"})
_GROUPINGS = frozenset({"view", "expand", "unflatten", "flatten", "unsqueeze", "squeeze"})
_METADATA = frozenset({"size", "new_ones", "prototype"})


class _NoAttention(Exception):
    """Why a softmax is in no attention, or not with certainty."""


class _Scores(Struct, frozen=True, eq=False):
    """A product of queries and keys, and what leads from it to the softmax."""

    product: fx.Node
    query: Operand
    key: Operand
    steps: tuple[Step, ...] = ()
    nodes: tuple[fx.Node, ...] = ()


class _Mix(Struct, frozen=True, eq=False):
    """A product of weights and values with the permutation to its axes, and what leads from the softmax to it."""

    product: fx.Node
    value: Operand
    perm: tuple[int, ...] | None = None
    steps: tuple[Step, ...] = ()
    dropout: Dropout | None = None
    nodes: tuple[fx.Node, ...] = ()


def find_attentions(graph: fx.Graph) -> list[AttentionMatch]:
    """Return every attention of the graph in execution order."""
    return [site for site in survey(graph) if isinstance(site, AttentionMatch)]


def survey(graph: fx.Graph) -> list[AttentionMatch | NotAttention]:
    """Return for every softmax of the graph the attention it is in, or why it is in none."""
    live: set[fx.Node] = set()  # what the outputs depend on, and what has side effects
    for node in reversed(graph.nodes):
        if node.op == "output" or node.is_impure() or writes_in_place(node) or any(user in live for user in node.users):
            live.add(node)
    sites: list[AttentionMatch | NotAttention] = []
    for node in graph.nodes:
        call = read(node) if node in live else None
        if call is not None and call.name in ("softmax", "safe_softmax"):
            try:
                sites.append(_match(call, live))
            except _NoAttention as reason:
                sites.append(NotAttention(node, str(reason)))
    return sites


def _match(call: GraphCall, live: Set[fx.Node]) -> AttentionMatch:
    _require_last_axis(call)
    scores, mix = _trace_scores(call.get("x")), _trace_weights(call.node, live)
    dtype = torch.float32 if call.get("half_to_float") else call.get("dtype")
    query_steps, query = _unscaled(scores.query)
    key_steps, key = _unscaled(scores.key)
    softmax_cast = (Cast(call.node, dtype),) if dtype is not None else ()
    steps = (*query_steps, *key_steps, *scores.steps, *softmax_cast)
    before, after = (scores.product, *scores.nodes), (*mix.nodes, mix.product)
    core = sorted({*before, call.node, *after})
    # A projection counts if its whole result goes into this attention. One that computes all three operands has the
    # role of the first. Other uses of the core, such as returned weights, are not followed.
    roles: dict[fx.Node, Role] = {}
    for operand, role in ((query, Role.PROJECT_Q), (key, Role.PROJECT_K), (mix.value, Role.PROJECT_V)):
        _add_operand_roles(operand.node, role, set(core), roles)
    _add_result_roles(mix.product, roles)
    roles |= dict.fromkeys(_rearranging(scores.product, key.node), Role.SCORES)
    roles |= dict.fromkeys(before, Role.SCORES) | dict.fromkeys(after, Role.MIX)
    kinds: dict[type, Role] = {Scale: Role.SCALE, Bias: Role.MASK, Fill: Role.MASK}
    roles |= {step.node: kinds.get(type(step), Role.SCORES) for step in steps if step.node is not scores.product}
    if mix.dropout is not None:
        roles[mix.dropout.node] = Role.DROPOUT
    roles[call.node] = Role.SOFTMAX
    return AttentionMatch(
        query=query,
        key=key,
        value=mix.value,
        steps=steps,
        softmax=call.node,
        after=mix.steps,
        dropout=mix.dropout,
        scores=scores.product,
        mix=mix.product,
        result_perm=mix.perm,
        safe=call.name == "safe_softmax",
        roles=roles,
        core=tuple(core),
        read_elsewhere=tuple(
            node
            for node in core
            if node is not mix.product
            and any(user in live and user not in core and not is_metadata(user, node) for user in node.users)
        ),
    )


def _require_last_axis(softmax: GraphCall) -> None:
    dim = softmax.get("dim")
    if dim == -1:
        return
    rank = rank_of(softmax.node)
    if not isinstance(dim, int):
        raise _NoAttention("the axis of the softmax is not written in the graph")
    if not rank.exact:
        raise _NoAttention(f"the softmax is over axis {dim}, which may not be the last: {_EXAMPLES}")
    if dim % rank.least != rank.least - 1:
        raise _NoAttention(f"the softmax is over axis {dim}, not over the keys")


# From the softmax to the products on both sides of it


def _trace_scores(node: Any) -> _Scores:
    """Walk back from the operand of a softmax to the product that it comes from."""
    call = read(node)
    if call is None:
        raise _NoAttention(f"the scores come from {_described(node)}, not from a product of queries and keys")
    if call.name in _PRODUCTS:
        return _scores_of(call)
    failures: list[_NoAttention] = []
    for operand, step in _sources(call):
        try:
            path = _trace_scores(operand)
        except _NoAttention as reason:
            failures.append(reason)
        else:
            steps = path.steps if step is None else (*path.steps, step)
            return replace(path, steps=steps, nodes=(*path.nodes, call.node))
    raise failures[-1 if call.name == "mul" else 0]


def _sources(call: GraphCall) -> list[tuple[Any, Step | None]]:
    """Return the operands of a call that may be the scores, and what it does to them."""
    left, right, node = call.get("x"), call.get("y"), call.node
    match call.name:
        case "same":
            return [(left, None)]
        case "cast":
            return [(left, _cast(call, "scores"))]
        case "mul" if not isinstance(left, fx.Node) or is_number(left):
            return [(right, Scale(node, left))]
        case "mul":
            other = [(right, Scale(node, left))] if isinstance(right, fx.Node) else []
            return [(left, Scale(node, right)), *other]
        case "div":
            if "rounding_mode" in call.arguments:
                raise _NoAttention("the scores are divided with rounding")
            return [(left, Scale(node, right, divides=True))]
        case "add" | "sub":
            alpha = call.get("alpha", 1)
            if not isinstance(alpha, (int, float)):
                raise _NoAttention("what is added to the scores is scaled by a computed number")
            times = float(-alpha if call.name == "sub" else alpha)
            if isinstance(right, fx.Node) and right.target is opaque_ops.additive_mask and times == 1:
                return [(left, Bias(node, right.args[0], as_sdpa=True))]
            sources: list[tuple[Any, Step | None]] = []
            if isinstance(left, fx.Node):
                sources.append((left, Bias(node, right, times)))
            if isinstance(right, fx.Node) and times == 1:
                sources.append((right, Bias(node, left)))
            if not sources:
                raise _NoAttention("a number is no score")
            return sources
        case "masked_fill" | "where":
            choices = [(left, right, False), (right, left, True)]
            if call.name == "masked_fill":
                choices = [(left, call.get("value"), True)]
            for main, filling, where_true in choices:
                value = constant(filling)
                if value is not None and isinstance(main, fx.Node):
                    return [(main, Fill(node, call.get("mask"), value, where_true))]
            raise _NoAttention("the scores are filled with a value that is not a constant")
        case _ if call.name in _GROUPINGS:
            return [(left, _regroup(call))]
        case _:
            raise _NoAttention(f"the scores come from {_described(node)}, not from a product of queries and keys")


def _trace_weights(node: fx.Node, live: Set[fx.Node]) -> _Mix:
    """Walk on from the weights to their product with the values."""
    failures: list[_NoAttention] = []
    for user in node.users:
        call = read(user)
        if user in live and call is not None and not is_metadata(user, node):
            try:
                return _trace_use(call, node, live)
            except _NoAttention as reason:
                failures.append(reason)
    raise failures[0] if failures else _NoAttention("the weights are not multiplied with values")


def _trace_use(call: GraphCall, weights: fx.Node, live: Set[fx.Node]) -> _Mix:
    if call.name in _PRODUCTS:
        return _mix_of(call, weights)
    if call.get("x") is not weights:
        raise _NoAttention(f"the weights are read by {_described(call.node)}")
    steps: tuple[Step, ...] = ()
    if call.name == "cast":
        steps = (_cast(call, "weights"),)
    elif call.name in _GROUPINGS:
        steps = (_regroup(call),)
    elif call.name not in ("same", "dropout"):
        raise _NoAttention(f"the weights go through {_described(call.node)} before they are multiplied with values")
    path = _trace_weights(call.node, live)
    dropout = path.dropout
    if call.name == "dropout":
        p, training = call.get("p", 0.5), call.get("training", call.node.op == "call_function")
        is_known = isinstance(p, (int, float)) and isinstance(training, (bool, type(None)))
        if dropout is not None or not is_known:
            raise _NoAttention("the dropout of the weights depends on values at run time")
        module = str(call.node.target) if call.node.op == "call_module" else None
        dropout = Dropout(call.node, float(p), training, module)
    return replace(path, steps=(*steps, *path.steps), dropout=dropout, nodes=(call.node, *path.nodes))


def _cast(call: GraphCall, what: str) -> Cast:
    if (dtype := _cast_to(call)) is None:
        raise _NoAttention(f"the {what} go through {_described(call.node)}, which is more than a change of dtype")
    return Cast(call.node, dtype)


def _cast_to(call: GraphCall) -> Any:
    """Return the dtype of a cast, or the node whose dtype it uses; None if it does more, such as moving devices."""
    value = example_of(call.get("x"))
    if isinstance(call.get("dtype"), torch.dtype):
        device = call.get("device")
        same_device = device is None or (isinstance(value, torch.Tensor) and value.device == device)
        return call.get("dtype") if same_device else None
    for argument in (*call.node.args[1:], *call.node.kwargs.values()):
        if isinstance(argument, torch.dtype):
            return argument
        if isinstance(argument, fx.Node) and argument.target is getattr:
            return argument.args[0] if argument.args[1] == "dtype" else None
        if isinstance(argument, fx.Node):
            return argument
    return None


def _regroup(call: GraphCall) -> Regroup:
    """Return a regrouping of the leading axes, which must not change the last two."""
    old, new = shape_of(call.get("x")), shape_of(call.node)
    if old is None or new is None:
        raise _NoAttention(f"{_described(call.node)} may regroup rows and columns of the scores: {_EXAMPLES}")
    if len(old) < 2 or len(new) < 2 or not same_sizes(old[-2:], new[-2:]):
        raise _NoAttention(f"{_described(call.node)} regroups rows or columns of the scores")
    if call.name == "expand" and not same_sizes(old, new):
        raise _NoAttention(f"{_described(call.node)} repeats the scores")
    return Regroup(call.node)


def _described(node: Any) -> str:
    target: Any = getattr(node, "target", node)
    return f"`{target if isinstance(target, str) else getattr(target, '__name__', target)}`"


# The products


def _scores_of(call: GraphCall) -> _Scores:
    """Read a product as that of queries and keys, with the keys on its last axis."""
    if call.name == "matmul":
        return _Scores(call.node, Operand(call.get("x")), _keys_of(call.get("y")))
    if call.name == "baddbmm":
        alpha, beta = call.get("alpha", 1), call.get("beta", 1)
        if not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)):
            raise _NoAttention("the product and the added term are scaled by computed numbers")
        scaled = (Scale(call.node, alpha),) if alpha != 1 else ()
        added = (Bias(call.node, call.get("x"), float(beta)),) if beta != 0 else ()
        return _Scores(call.node, Operand(call.get("y")), _keys_of(call.get("z")), (*scaled, *added))
    equation, (left, right, result), (first, second) = call.get("equation"), _equation(call), call.get("operands")
    if result[-1] in left:
        left, right, first, second = right, left, second, first
    lead, row, column = result[:-2], result[-2:-1], result[-1:]
    shared = [label for label in left if label in right and label not in result]
    if len(shared) != 1 or column in left or row in right:
        raise _NoAttention(f"the equation {equation!r} is not a product of queries and keys")
    query, key = _permuted(first, left, lead + row + shared[0]), _permuted(second, right, lead + column + shared[0])
    if query is None or key is None:
        raise _NoAttention(f"the equation {equation!r} broadcasts an operand over axes that it does not have")
    return _Scores(call.node, query, key)


def _mix_of(call: GraphCall, weights: fx.Node) -> _Mix:
    """Read a product as that of weights and values over the weights' last axis."""
    if call.name == "matmul":
        if call.get("y") is weights or call.get("x") is not weights:
            raise _NoAttention(
                "the weights are the right side of the product, so the softmax is over another axis than the values"
            )
        return _Mix(call.node, Operand(call.get("y")))
    if call.name == "baddbmm":
        raise _NoAttention("the product of the weights has a third term")
    equation, (left, right, result), (first, second) = call.get("equation"), _equation(call), call.get("operands")
    if first is not weights:
        left, right, first, second = right, left, second, first
    lead, row, column = left[:-2], left[-2:-1], left[-1:]
    features = [label for label in right if label not in left]
    mixes = column in right and column not in result and row in result and row not in right and len(features) == 1
    if second is weights or not mixes:
        raise _NoAttention(f"the equation {equation!r} does not multiply values over the weights' last axis")
    value, labels = _permuted(second, right, lead + column + features[0]), lead + row + features[0]
    if value is None or sorted(labels) != sorted(result):
        raise _NoAttention(f"the equation {equation!r} broadcasts or sums other axes")
    perm = tuple(labels.index(label) for label in result)
    if _ELLIPSIS in labels and perm != tuple(range(len(perm))):
        raise _NoAttention(f"the equation {equation!r} permutes axes around an ellipsis")
    return _Mix(call.node, value, None if perm == tuple(range(len(perm))) else perm)


def _equation(call: GraphCall) -> tuple[str, str, str]:
    """Return the labels of both operands and of the result of an einsum."""
    equation = call.get("equation")
    if not isinstance(equation, str) or len(call.get("operands")) != 2:
        raise _NoAttention("the product is not one of two operands")
    sides = equation.replace(" ", "").replace("...", _ELLIPSIS).split("->")
    labels = (*sides[0].split(","), *sides[1:])
    if len(labels) != 3 or any(len(set(part)) != len(part) or len(part) < 2 for part in labels):
        raise _NoAttention(f"the equation {equation!r} is not a plain product of two operands")
    if any(_ELLIPSIS in part[1:] for part in labels) or len({_ELLIPSIS in part for part in labels}) != 1:
        raise _NoAttention(f"the equation {equation!r} has an ellipsis that is not in front")
    return labels[0], labels[1], labels[2]


def _permuted(node: fx.Node, labels: str, target: str) -> Operand | None:
    if sorted(labels) != sorted(target):
        return None
    perm = tuple(labels.index(label) for label in target)
    count = len(perm)
    if perm == tuple(range(count)):
        return Operand(node)
    if perm == (*range(count - 2), count - 1, count - 2):
        return Operand(node, swap=True)
    return None if _ELLIPSIS in labels else Operand(node, perm)


def _keys_of(node: Any) -> Operand:
    """Return the keys of a node that has their last two axes swapped."""
    call = read(node)
    while call is not None and call.name == "same":
        call = read(call.get("x"))
    if call is None:
        return Operand(node, swap=True)
    inner, rank = call.get("x"), rank_of(call.node)
    if call.name == "permute" and isinstance(call.get("dims"), (tuple, list)):
        dims = call.get("dims")
        perm = tuple(axis % len(dims) for axis in (*dims[:-2], dims[-1], dims[-2]))
        return Operand(inner, None if perm == tuple(range(len(perm))) else perm)
    swaps_last_two = call.name == "swap_last"
    if call.name == "transpose_matrix":
        swaps_last_two = rank_of(inner).exact and rank_of(inner).least == 2
    axes = (call.get("a"), call.get("b"))
    if call.name == "transpose" and all(isinstance(axis, int) for axis in axes):
        places = {axis % rank.least - rank.least if rank.exact else axis for axis in axes}
        swaps_last_two = places == {-1, -2}
    return Operand(inner) if swaps_last_two else Operand(node, swap=True)


def _unscaled(operand: Operand) -> tuple[list[Step], Operand]:
    """Remove scales by numbers and widening casts of queries or keys before their product, and return them as steps."""
    steps: list[Step] = []
    while (call := read(operand.node)) is not None and not writes_in_place(call.node):
        left, right, name = call.get("x"), call.get("y"), call.name
        dtype = _cast_to(call) if name == "cast" else None
        if name == "mul" and is_number(left) and isinstance(right, fx.Node):
            steps.append(Scale(call.node, left))
            operand = replace(operand, node=right)
        elif not isinstance(left, fx.Node):
            break
        elif (
            name in ("mul", "div")
            and is_number(right)
            and not is_number(left)
            and "rounding_mode" not in call.arguments
        ):
            steps.append(Scale(call.node, right, divides=name == "div"))
            operand = replace(operand, node=left)
        elif dtype in (torch.float32, torch.float64):
            steps.append(Cast(call.node, dtype))
            operand = replace(operand, node=left)
        elif operand.swap and not (unswapped := _keys_of(operand.node)).swap:
            operand = unswapped
        else:
            break
    return steps[::-1], operand


# The nodes around the core


def _rearranging(product: fx.Node, key: fx.Node) -> list[fx.Node]:
    """Return the nodes between the keys and their product: they rearrange the keys."""
    for node in product.all_input_nodes:
        path: list[fx.Node] = []
        while node is not key and (call := read(node)) is not None and isinstance(call.get("x"), fx.Node):
            path.append(node)
            node = call.get("x")
        if node is key:
            return path
    return []


def is_projection(call: GraphCall | None) -> bool:
    """Return whether the call multiplies an activation by a weight of the model."""
    if call is None:
        return False
    weight: object = {"matmul": call.get("y"), "addmm": call.get("z")}.get(call.name)
    while (arranged := read(weight)) is not None and arranged.name in _ARRANGING_HEADS:
        weight = arranged.get("x")
    return call.name == "linear" or (isinstance(weight, fx.Node) and weight.op == "get_attr")


def _add_operand_roles(operand: fx.Node, role: Role, core: Set[fx.Node], roles: dict[fx.Node, Role]) -> None:
    """Follow an operand back to its projection."""
    visited: dict[fx.Node, None] = {}
    projections: list[fx.Node] = []
    waiting = [operand]
    while waiting:
        node = waiting.pop()
        if node in visited or node.op in ("placeholder", "get_attr") or is_number(node) or is_metadata(node):
            continue
        visited[node] = None
        if is_projection(read(node)):
            projections.append(node)
        else:
            waiting.extend(node.all_input_nodes)
    if len(projections) != 1 or not _ends_in(projections[0], core):
        projections, visited = [], {}
        call = read(operand)
        while call is not None and call.name in _ARRANGING_HEADS:
            visited[call.node] = None
            call = read(call.get("x"))
    for node in visited:
        call = read(node)
        if node in projections:
            roles.setdefault(node, role)
        elif call is not None and call.name in _ARRANGING_HEADS:
            roles.setdefault(node, Role.SPLIT_HEADS)


def _ends_in(projection: fx.Node, core: Set[fx.Node]) -> bool:
    """Return whether all uses of the projection end in the core, except sizes and outputs of the model (caches)."""
    inside, waiting = set[fx.Node](), [*core]
    while waiting:
        node = waiting.pop()
        if node not in inside and not node < projection:
            inside.add(node)
            waiting.extend(node.all_input_nodes)
    waiting, seen = [projection], {*core}
    while waiting:
        node = waiting.pop()
        if node in seen or node.op == "output" or is_metadata(node):
            continue
        if node not in inside:
            return False
        seen.add(node)
        waiting.extend(node.users)
    return True


def _add_result_roles(result: fx.Node, roles: dict[fx.Node, Role]) -> None:
    node = result
    while len(node.users) == 1:
        node = next(iter(node.users))
        call = read(node)
        if is_projection(call):
            roles.setdefault(node, Role.PROJECT_OUT)
            return
        if call is None or call.name not in _ARRANGING_HEADS:
            return
        roles.setdefault(node, Role.MERGE_HEADS)


def is_metadata(node: fx.Node, of: fx.Node | None = None) -> bool:
    """Return whether the node reads only sizes, dtype or device of its argument (of this one, if given)."""
    call = read(node)
    if call is None:
        return (node.target is getattr and node.args[1] in ("shape", "dtype", "device")) or is_check(node)
    takes_dtype = call.name == "cast" and of is not None and call.get("x") is not of
    return takes_dtype or call.name in _METADATA


def is_check(node: fx.Node) -> bool:
    """Return whether the node only checks a tensor's metadata against that of the traced one."""
    return node.target is torch.ops.aten._assert_tensor_metadata.default
