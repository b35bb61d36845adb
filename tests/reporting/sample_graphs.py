"""The two graphs of the sample Run: which nodes each module has before and after, how they are wired, what changed.

Every count of the sample follows from the lists here, so that a page's sums can be compared with its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sardonyx.records.run import AttentionForm, AttentionSite, Event, ModuleCount, NodeRef, OpCount, RewriteKind, Wiring

LAYERS = 12
CONSTANTS = 96  # of the source; the result has none
_ATTENTION = (*["MatMul"] * 5, *["Transpose"] * 8, *["Add"] * 2, "Identity")
_OUTPUT = ("MatMul", "Add", *["Transpose"] * 4, "Add", "Identity")
_POOLER = ("Gemm", "Add", "Transpose", "Transpose", "MatMul", "Identity")
_ROOT = (*["Gather"] * 5, *["Softmax"] * 3, *["Add"] * 6, *["Transpose"] * 16)
_FOLDED = {"attention": 6, "output": 1, "": 16, "pooler": 0}  # Transposes of constants, by the module's last name
_BYTES = {"attention": (900_000, 899_000), "output": (500_000, 500_000), "pooler": (262_400, 262_400)}
_ROOT_BYTES = (349_945, 347_600)


def _modules() -> dict[str, Sequence[str]]:
    """Operators of the source by owner, in the order they run."""
    layers = {
        f"encoder.layer.{index}.{part}": ops
        for index in range(LAYERS)
        for part, ops in (("attention", _ATTENTION), ("output", _OUTPUT))
    }
    return {"": _ROOT, **layers, "pooler": _POOLER}


def nodes_before() -> list[NodeRef]:
    """A chain: every node reads the output of the previous one, and a weight where it multiplies."""
    made: list[NodeRef] = []
    last = "input_ids"
    for path, ops in _modules().items():
        seen: Counter[str] = Counter()
        for op_type in ops:
            seen[op_type] += 1
            name = f"/{path.replace('.', '/')}/{op_type}_{seen[op_type]}".replace("//", "/")
            weights = (f"{path}.weight",) if op_type in ("MatMul", "Gemm") else ()
            made.append(NodeRef(name, op_type, (last, *weights), (f"{name}_out",), path))
            last = f"{name}_out"
    return made


def _rewritten(node: NodeRef) -> str:
    """The pass that rewrites a node in the sample run, or ""."""
    part, number = node.owner.rpartition(".")[2], int(node.name.rpartition("_")[2])
    if node.op_type == "Identity":
        return "eliminate-identity"
    if node.op_type == "Transpose" and number <= _FOLDED[part]:
        return "fold-constants"
    return "fuse-gemm" if part == "output" and node.op_type in ("MatMul", "Add") and number == 1 else ""


def nodes_after() -> list[NodeRef]:
    """The result: the chain without the removed nodes, and one Gemm in every layer."""
    left: list[NodeRef] = []
    last = "input_ids"
    for node in nodes_before():
        done = _rewritten(node)
        if done in ("eliminate-identity", "fold-constants") or (done == "fuse-gemm" and node.op_type == "MatMul"):
            continue
        extra = (f"{node.owner}.weight", f"{node.owner}.bias") if done == "fuse-gemm" else node.inputs[1:]
        op_type = "Gemm" if done == "fuse-gemm" else node.op_type
        left.append(NodeRef(node.name, op_type, (last, *extra), node.outputs, node.owner))
        last = node.outputs[0]
    return left


def sample_events() -> tuple[Event, ...]:
    """As many events as the records of the passes count."""
    gemms = {node.name: node for node in nodes_after() if node.op_type == "Gemm"}
    events: list[Event] = []
    product: NodeRef | None = None
    for node in nodes_before():
        done = _rewritten(node)
        if done == "eliminate-identity":
            events.append(_event(done, RewriteKind.BYPASS, (node,), (), "tidy/eliminate_identity.py:12"))
        elif done == "fold-constants":
            events.append(_event(done, RewriteKind.FOLD, (node,), (), "folding/fold_constants.py:40"))
        elif done == "fuse-gemm" and node.op_type == "MatMul":
            product = node
        elif done == "fuse-gemm" and product is not None:
            events.append(
                _event(done, RewriteKind.FUSE, (product, node), (gemms[node.name],), "products/fuse_gemm.py:31")
            )
    order = ("eliminate-identity", "fold-constants", "fuse-gemm")
    return tuple(sorted(events, key=lambda event: order.index(event.pass_name)))


def _event(name: str, kind: RewriteKind, before: Sequence[NodeRef], after: Sequence[NodeRef], source: str) -> Event:
    owner = before[-1].owner
    root = before[-1].outputs[0]
    return Event(name, kind, root, tuple(before), tuple(after), (owner,), owner, "", f"sardonyx/passes/{source}")


def sample_modules() -> tuple[ModuleCount, ...]:
    """Layer tags differ by their number; layers are folded by their shape."""
    before, after = (Counter(node.owner for node in nodes) for nodes in (nodes_before(), nodes_after()))
    counts: list[ModuleCount] = []
    for path in _modules():
        steps = path.split(".")
        tag = {"": "/BertModel", "pooler": "/BertModel/BertPooler"}.get(path) or f"/BertModel/BertLayer.{steps[2]}"
        old, new = _BYTES.get(steps[-1], _ROOT_BYTES)
        counts.append(ModuleCount(path, tag, before[path], after[path], old // 4, old, new))
    return tuple(sorted(counts, key=lambda count: (count.path != "", count.path.startswith("encoder"))))


def sample_ops() -> tuple[OpCount, ...]:
    """Node counts by operator, before and after."""
    before, after = (Counter(node.op_type for node in nodes) for nodes in (nodes_before(), nodes_after()))
    before["Constant"] = CONSTANTS
    return tuple(OpCount(op_type, before[op_type], after[op_type]) for op_type in sorted(before))


def wiring_of(nodes: Sequence[NodeRef]) -> Wiring:
    """The wiring of these nodes; the last one produces the output."""
    modules = tuple(dict.fromkeys(node.owner for node in nodes))
    producers = {value: place for place, node in enumerate(nodes) for value in node.outputs}
    edges = [
        (producers[value], place) for place, node in enumerate(nodes) for value in node.inputs if value in producers
    ]
    first = tuple(place for place, node in enumerate(nodes) if "input_ids" in node.inputs)
    return Wiring(
        modules=modules,
        names=tuple(node.name for node in nodes),
        ops=tuple(node.op_type for node in nodes),
        owners=tuple(modules.index(node.owner) for node in nodes),
        edges=tuple(dict.fromkeys(edges)),
        inputs={"input_ids": first, "unused": ()},
        outputs={"last_hidden_state": len(nodes) - 2, "pooler_output": len(nodes) - 1},
    )


def sample_attention() -> tuple[AttentionSite, ...]:
    """One site per layer; the first has another mask, and was not fused for a reason."""
    return tuple(_site(index) for index in range(LAYERS))


def _site(index: int) -> AttentionSite:
    module = f"encoder.layer.{index}.attention"
    forms = [
        AttentionForm("", tuple(node.name for node in nodes if node.owner == module and node.op_type == "MatMul"))
        for nodes in (nodes_before(), nodes_after())
    ]
    mask, why = ("from an input", "needs opset 23; the opset may not be raised that far") if index else ("none", "")
    return AttentionSite(module, 12, 12, 64, mask, False, False, False, forms[0], forms[1], why)
