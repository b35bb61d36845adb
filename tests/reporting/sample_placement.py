"""Handmade Placements of both files of the sample run, on a device with a reason of each kind and on one with none."""

from __future__ import annotations

from reporting.sample_graphs import nodes_after, nodes_before
from sardonyx.records.bench import Away, AwayNodes, PlacedModule, Placement
from sardonyx.records.run import NodeRef

WHERE: dict[str, Away] = {"Softmax": "elsewhere", "Gather": "fails", "Identity": "unknown"}
HOST = "Transpose"  # of the model itself


def placements_of_run() -> tuple[Placement, ...]:
    """What becomes of the operators in WHERE on "toy"; all run on "other"."""
    sides = {"model.onnx": nodes_before(), "small.onnx": nodes_after()}
    return tuple(_placed(device, name, nodes) for device in ("other", "toy") for name, nodes in sides.items())


def _placed(device: str, name: str, nodes: list[NodeRef]) -> Placement:
    known = WHERE if device == "toy" else {}
    host = tuple(node.name for node in nodes if device == "toy" and node.op_type == HOST and not node.owner)
    groups = {op: [node for node in nodes if node.op_type == op] for op in known}
    away = tuple(
        AwayNodes(op, ("float",), known[op], tuple(n.name for n in group), tuple({n.owner for n in group}))
        for op, group in groups.items()
        if group
    )
    counts = {where: sum(len(each.nodes) for each in away if each.where == where) for where in WHERE.values()}
    return Placement(
        model=name,
        device=device,
        runtime="onnxruntime-toy 1.0",
        measured="2026-01-01, a machine",
        nodes=len(nodes),
        device_nodes=len(nodes) - len(host) - sum(counts.values()),
        host_nodes=len(host),
        fallback_nodes=counts["elsewhere"],
        unsupported_nodes=counts["fails"],
        unknown_nodes=counts["unknown"],
        copies=len(away),
        away_flops=0.25 * bool(away),
        away=away,
        modules=tuple(_module(path, nodes, known) for path in dict.fromkeys(node.owner for node in nodes)),
        host=host,
    )


def _module(path: str, nodes: list[NodeRef], known: dict[str, Away]) -> PlacedModule:
    own = [node for node in nodes if node.owner == path]
    away = sum(node.op_type in known for node in own)
    return PlacedModule(path, f"/Model/{path}", len(own), away, 10 * len(own), 10 * away)
