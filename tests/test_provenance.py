"""The merge rule and the tag codec."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sardonyx.records import provenance as p

part = st.text("abcxyz0123", min_size=1, max_size=3)
paths = st.lists(part, max_size=5).map(".".join)
origins = st.frozensets(paths, max_size=5)


def is_ancestor(ancestor: str, path: str) -> bool:
    """Whether `ancestor` is `path` or contains it."""
    return ancestor in (p.ROOT, path) or path.startswith(ancestor + ".")


@given(origins, origins, origins)
def test_merging_is_associative_commutative_and_idempotent(a: p.Origins, b: p.Origins, c: p.Origins) -> None:
    assert p.merge([p.merge([a, b]), c]) == p.merge([a, p.merge([b, c])])
    assert p.merge([a, b]) == p.merge([b, a])
    assert p.merge([a, a]) == a
    assert p.merge([a, p.UNKNOWN]) == a


@given(st.lists(paths, min_size=1, max_size=6))
def test_the_owner_contains_every_origin_and_nothing_deeper_does(some: list[str]) -> None:
    owner = p.owner_of(frozenset(some))
    assert all(is_ancestor(owner, path) for path in some)
    for path in some:
        parts = path.split(".") if path else []
        depth = len(owner.split(".")) if owner else 0
        if len(parts) > depth:
            child = ".".join(parts[: depth + 1])
            assert not all(is_ancestor(child, other) for other in some)


def test_paths_with_a_common_text_prefix_share_only_their_parent() -> None:
    assert p.lowest_common(["layer.1.a", "layer.10.a"]) == "layer"


def test_scoped_names_with_containers_written_twice() -> None:
    assert p.read_scoped_name("/layer1/layer1.0/conv1/Conv") == {"layer1.0.conv1"}
    assert p.read_scoped_name("/encoder/layer.0/attention/self/MatMul") == {"encoder.layer.0.attention.self"}
    assert p.read_scoped_name("/a/a.0/a.0.1/Relu") == {"a.0.1"}
    assert p.read_scoped_name("/Add") == {""}
    assert p.read_scoped_name("Identity_3") is None


def torch_props(scopes: list[str], classes: list[str]) -> dict[str, str]:
    """Metadata as torch's exporter writes it."""
    return {p.NAME_SCOPES: repr(scopes), p.CLASS_HIERARCHY: repr(classes), p.NAMESPACE: "old"}


RESNET = [
    torch_props(
        ["", f"{layer}", f"{layer}.{i}", f"{layer}.{i}.conv", "c"],
        ["v.ResNet", "torch.nn.S", "v.Block", "torch.nn.C", "aten"],
    )
    for layer in ("layer1", "layer2")
    for i in range(2)
]


def hierarchy(props: list[dict[str, str]]) -> tuple[list[p.Reading], p.Hierarchy]:
    readings = [reading for each in props if (reading := p.read_metadata(each))]
    return readings, p.Hierarchy(readings)


def test_colliding_siblings_get_the_shortest_distinguishing_key() -> None:
    _, tags = hierarchy(RESNET)
    assert tags.tag("layer1.0.conv") == "/ResNet/Block.layer1.0"
    classes = ["m.Bert", "m.Encoder", "m.Layer", "aten"]
    bert = [torch_props(["", "enc", f"enc.layer.{i}", "x"], classes) for i in range(12)]
    _, tags = hierarchy(bert)
    assert tags.tag("enc.layer.1") == "/Bert/Encoder/Layer.1"
    assert len({tags.tag(f"enc.layer.{i}") for i in range(12)}) == 12


def test_tags_written_are_read_back() -> None:
    readings, tags = hierarchy(RESNET)
    merged = p.merge(reading.origins for reading in readings[:2])
    written = tags.metadata(merged)
    assert written[p.MODULE_PATH] == "layer1"
    assert json.loads(written[p.HIERARCHY_TAGS]) == ["/ResNet/Block.layer1.0", "/ResNet/Block.layer1.1"]
    again = p.read_metadata(written)
    assert again is not None
    assert again.origins == merged
    assert p.Hierarchy([again]).metadata(merged) == written


def test_namespace_of_a_merged_node_is_its_owners() -> None:
    _, tags = hierarchy(RESNET)
    props = tags.torch_metadata(frozenset({"layer1.0.conv", "layer1.1.conv"}), "fused/node", "Conv")
    assert props[p.NAMESPACE] == ": v.ResNet/layer1: torch.nn.S/fused_node: Conv"
    reading = p.read_metadata(props)
    assert reading is not None
    assert reading.origins == {"layer1"}


def test_a_node_without_torch_metadata_has_no_origin() -> None:
    reading = p.read_metadata(torch_props(["_empty_nn_module_stack_from_metadata_hook", "x"], ["m.M", "aten"]))
    assert reading is not None
    assert (reading.origins, reading.classes) == (p.UNKNOWN, {})


def test_names_with_quotes_are_read_from_torch_metadata() -> None:
    props = torch_props(["", "it's", "x"], ["m.M", 'm."K"', "aten"])
    reading = p.read_metadata(props)
    assert reading is not None
    assert reading.origins == {"it's"}


@given(st.text(max_size=30))
def test_hostile_metadata_never_breaks_reading(text: str) -> None:
    for key in (p.NAME_SCOPES, p.MODULE_PATHS, p.HIERARCHY_TAGS):
        p.read_metadata({key: text, p.MODULE_PATH: "a", p.CLASS_HIERARCHY: text})
        p.read_metadata({p.NAME_SCOPES: text, p.CLASS_HIERARCHY: text})
