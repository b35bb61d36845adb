"""Each rule covers the documented operations; bytes across region boundaries are computed by hand."""

from __future__ import annotations

from analysis.costs.building import Building
from analysis.costs.traffic import bytes_unfused
from sardonyx.records.analysis import ALONE
from sardonyx.verbs.analyze.costs.dataflow import Region
from sardonyx.verbs.analyze.costs.fusion_regions import partition
from sardonyx.verbs.analyze.costs.program import OpKind, Program

B, S, D, H = 2, 5, 8, 4  # batch, length, width, heads
ROWS = B * S * D * 4  # bytes of an activation
SQUARE = D * D * 4


def _by_rule(program: Program) -> dict[str, list[Region]]:
    result = dict[str, list[Region]]()
    for region in partition(program):
        result.setdefault(region.rule, []).append(region)
    return result


def _kinds(program: Program, region: Region) -> list[OpKind]:
    return [program.operations[step].kind for step in region.operations if program.operations[step].kind != OpKind.VIEW]


def linear(building: Building, read: int, width: int = D, module: str = "") -> int:
    """As torch records it: two views around `addmm`, the weight seen transposed."""
    rows = building.view(read, (B * S, D), module=module)
    weight, bias = building.weight((width, D)), building.weight((width,))
    turned = building.view(weight, (D, width), module=module)
    flat = building.op(OpKind.MATMUL, [bias, rows, turned], (B * S, width), module=module, macs=B * S * D * width)
    return building.view(flat, (B, S, width), module=module)


def heads(building: Building, read: int) -> int:
    return building.view(building.view(read, (B, S, H, D // H)), (B * H, S, D // H))


def attention(building: Building, q: int, k: int, v: int, mask: int | None = None) -> int:
    """softmax(q @ k^T * scale + mask) @ v on heads, then a copy that puts them side by side."""
    square, row = (B * H, S, S), (B * H, S, D // H)
    scale = building.weight(())
    scores = building.op(OpKind.MATMUL, [q, building.view(k, (B * H, D // H, S))], square, macs=B * H * S * S * D // H)
    scores = building.op(OpKind.ARITHMETIC, [scores, scale], square)
    scores = scores if mask is None else building.op(OpKind.ARITHMETIC, [scores, mask], square)
    weights = building.op(OpKind.SOFTMAX, [scores], square)
    mixed = building.op(OpKind.MATMUL, [weights, v], row, macs=B * H * S * S * D // H)
    return building.view(building.op(OpKind.COPY, [mixed], row), (B, S, D))


def test_a_linear_layer_and_its_activation_by_hand() -> None:
    building = Building()
    x = building.input((B, S, D))
    wide = linear(building, x, 4 * D, module="mlp.up")
    acted = building.op(OpKind.ACTIVATION, [wide], (B, S, 4 * D), module="mlp.act")
    narrow_weight = building.weight((4 * D, D))
    y = building.op(OpKind.MATMUL, [acted, narrow_weight], (B, S, D), module="mlp.down")
    program = building.program(y)
    up, down = partition(program)
    assert _kinds(program, up) == [OpKind.MATMUL, OpKind.ACTIVATION]
    assert (up.rule, up.module, up.depends_on) == ("linear-activation", "mlp", ())
    assert (down.rule, down.module, down.depends_on) == (ALONE, "mlp.down", (0,))
    assert (up.bytes_in, up.weight_bytes, up.bytes_out) == (ROWS, 4 * SQUARE + 4 * D * 4, 4 * ROWS)
    assert (up.internal_bytes, up.reread_bytes) == (
        2 * 4 * ROWS,
        0,
    )  # the value that the activation reads back was written once
    assert (down.bytes_in, down.weight_bytes, down.bytes_out, down.internal_bytes) == (4 * ROWS, 4 * SQUARE, ROWS, 0)
    assert up.macs == B * S * D * 4 * D
    assert up.bytes == 5 * ROWS + 4 * SQUARE + 16 * D


def test_attention_and_its_projections_by_hand() -> None:
    building = Building()
    x, mask = building.input((B, S, D)), building.input((S, S))
    q, k, v = (heads(building, linear(building, x)) for _ in range(3))
    program = building.program(linear(building, attention(building, q, k, v, mask)))
    regions = _by_rule(program)
    (projections,), (region,), (out,) = regions["parallel-qkv"], regions["attention"], regions[ALONE]
    square = B * H * S * S * 4
    assert _kinds(program, region) == [
        OpKind.MATMUL, OpKind.ARITHMETIC, OpKind.ARITHMETIC, OpKind.SOFTMAX, OpKind.MATMUL, OpKind.COPY,
    ]  # fmt: skip
    assert (region.bytes_in, region.weight_bytes, region.bytes_out) == (3 * ROWS + S * S * 4, 4, ROWS)
    assert region.internal_bytes == 8 * square + 2 * ROWS  # scores, scaled, masked, weights; the result before the copy
    assert (projections.bytes_in, projections.bytes_out) == (ROWS, 3 * ROWS)
    assert projections.weight_bytes == 3 * (SQUARE + 4 * D)
    assert (projections.internal_bytes, projections.reread_bytes) == (0, 2 * ROWS)
    assert bytes_unfused(out) == out.bytes == 2 * ROWS + SQUARE + 4 * D


def test_a_mask_shared_by_two_attentions_is_outside_both_regions() -> None:
    building = Building()
    x, kept = building.input((B, S, D)), building.input((S, S), "bool")
    mask = building.op(OpKind.SELECT, [kept], (S, S))
    q, k, v = (heads(building, linear(building, x)) for _ in range(3))
    once = attention(building, q, k, v, mask)
    q, k, v = (heads(building, linear(building, once)) for _ in range(3))
    twice = attention(building, q, k, v, mask)
    program = building.program(twice)
    regions = _by_rule(program)
    assert [len(regions[rule]) for rule in ("attention", "parallel-qkv", ALONE)] == [2, 2, 1]
    assert _kinds(program, regions[ALONE][0]) == [OpKind.SELECT]


def test_requested_attention_weights_escape_and_are_written() -> None:
    building = Building()
    x = building.input((B, S, D))
    y = attention(building, *(heads(building, linear(building, x)) for _ in range(3)))
    asked = next(one.writes[0] for one in building.operations if one.kind is OpKind.SOFTMAX)
    (region,) = _by_rule(building.program(y, asked))["attention"]
    assert region.escapes == (asked,)
    assert region.bytes_out == ROWS + B * H * S * S * 4
    assert region.bytes_in == 3 * ROWS


def test_a_gated_mlp_is_no_qkv() -> None:
    building = Building()
    x = building.input((B, S, D))
    gate, up = linear(building, x, 4 * D), linear(building, x, 4 * D)
    acted = building.op(OpKind.ACTIVATION, [gate], (B, S, 4 * D))
    program = building.program(linear(building, building.op(OpKind.ARITHMETIC, [acted, up], (B, S, 4 * D))))
    regions = _by_rule(program)
    (region,) = regions["parallel-linears"]
    assert "parallel-qkv" not in regions
    assert _kinds(program, region) == [OpKind.MATMUL, OpKind.MATMUL, OpKind.ACTIVATION, OpKind.ARITHMETIC]
    assert (region.bytes_in, region.bytes_out, region.reread_bytes) == (ROWS, 4 * ROWS, ROWS)
    assert region.internal_bytes == 6 * 4 * ROWS


def test_cross_attention_keys_and_values_of_one_tensor() -> None:
    building = Building()
    x, memory = building.input((B, S, D)), building.input((B, S, D))
    q, k, v = (heads(building, linear(building, read)) for read in (x, memory, memory))
    gate = linear(building, memory)  # same input, another use
    mixed = attention(building, q, k, v)
    program = building.program(building.op(OpKind.ARITHMETIC, [mixed, gate], (B, S, D)))
    (pair,) = _by_rule(program)["parallel-qkv"]
    assert _kinds(program, pair) == [OpKind.MATMUL, OpKind.MATMUL]
    assert pair.bytes_in == ROWS


def test_keys_shared_by_two_attentions_are_projected_once() -> None:
    building = Building()
    x, later = building.input((B, S, D)), building.input((B, S, D))
    first, k, v = (heads(building, linear(building, x)) for _ in range(3))
    second = heads(building, linear(building, later))
    program = building.program(attention(building, first, k, v), attention(building, second, k, v))
    regions = _by_rule(program)
    assert [_kinds(program, region) for region in regions["parallel-qkv"]] == [[OpKind.MATMUL, OpKind.MATMUL]]
    assert [len(regions[rule]) for rule in ("attention", ALONE)] == [2, 2]


def test_a_copy_used_elsewhere_is_not_part_of_an_attention_region() -> None:
    building = Building()
    x = building.input((B, S, D))
    q, k, v = (heads(building, linear(building, x)) for _ in range(3))
    copied, scaled = (
        building.op(kind, [one], (B * H, S, D // H)) for kind, one in ((OpKind.COPY, k), (OpKind.ARITHMETIC, q))
    )
    mixed = attention(building, scaled, copied, v)
    inside = _by_rule(building.program(mixed))["attention"][0]
    without = _by_rule(building.program(mixed, copied))["attention"][0]
    assert len(_kinds(building.program(mixed), inside)) == 7
    assert len(_kinds(building.program(mixed), without)) == 6
    assert (inside.bytes_in, without.bytes_in, without.escapes) == (3 * ROWS, 3 * ROWS, ())


def test_a_product_of_two_activations_with_a_bias_is_no_linear_layer() -> None:
    building = Building()
    x, other, bias = building.input((B, S, D)), building.input((B, D, D)), building.weight((D,))
    both = [building.op(OpKind.MATMUL, [bias, x, other], (B, S, D)) for _ in range(2)]
    assert [region.rule for region in partition(building.program(*both))] == [ALONE, ALONE]


def test_a_decomposed_activation_is_matched_whole() -> None:
    building = Building()
    y = linear(building, building.input((B, S, D)))
    half, one = building.weight(()), building.weight(())
    cubed = building.op(OpKind.ARITHMETIC, [y], (B, S, D))
    inner = building.op(OpKind.ACTIVATION, [building.op(OpKind.ARITHMETIC, [y, cubed], (B, S, D))], (B, S, D))
    outer = building.op(
        OpKind.ARITHMETIC, [building.op(OpKind.ARITHMETIC, [inner, one], (B, S, D)), y, half], (B, S, D)
    )
    (region,) = partition(building.program(outer))
    assert (region.rule, region.escapes, region.bytes_out) == ("linear-activation", (), ROWS)
    asked = partition(building.program(outer, inner))  # ends because of the operation in between
    assert [region.rule for region in asked] == [ALONE, "elementwise", "elementwise"]
    assert all(not region.escapes for region in asked)


def test_a_residual_joins_the_next_norm_and_escapes_where_it_is_used_later() -> None:
    building = Building()
    x = building.input((B, S, D))
    summed = building.op(OpKind.ARITHMETIC, [x, linear(building, x)], (B, S, D))
    normed = building.op(OpKind.NORM, [summed, building.weight((D,)), building.weight((D,))], (B, S, D))
    wide = linear(building, normed)
    program = building.program(building.op(OpKind.ARITHMETIC, [summed, wide], (B, S, D)))
    (region,) = _by_rule(program)["norm-residual"]
    assert _kinds(program, region) == [OpKind.ARITHMETIC, OpKind.NORM]
    assert region.escapes == (summed,)
    assert (region.bytes_in, region.bytes_out, region.internal_bytes) == (2 * ROWS, 2 * ROWS, ROWS)


def test_a_decomposed_norm() -> None:
    building = Building()
    x, eps, gamma = building.input((B, S, D)), building.weight(()), building.weight((D,))
    mean = building.op(OpKind.REDUCTION, [building.op(OpKind.ARITHMETIC, [x], (B, S, D))], (B, S, 1))
    scale = building.op(OpKind.ARITHMETIC, [building.op(OpKind.ARITHMETIC, [mean, eps], (B, S, 1))], (B, S, 1))
    scaled = building.op(OpKind.ARITHMETIC, [x, scale], (B, S, D))
    program = building.program(building.op(OpKind.ARITHMETIC, [gamma, scaled], (B, S, D)))
    (region,) = partition(program)
    assert (region.rule, region.bytes_in, region.bytes_out) == ("norm-residual", ROWS, ROWS)
    assert (region.reread_bytes, region.internal_bytes) == (ROWS, 4 * ROWS + 3 * 2 * B * S * 4)


def test_a_reduction_that_is_not_applied_to_its_input_is_no_norm() -> None:
    building = Building()
    x = building.input((B, S, D))
    pooled = building.op(OpKind.REDUCTION, [building.op(OpKind.ACTIVATION, [x], (B, S, D))], (B, 1, D))
    program = building.program(building.op(OpKind.ACTIVATION, [pooled], (B, 1, D)))
    assert [region.rule for region in partition(program)] == [ALONE] * 3


def test_a_cumulative_sum_is_no_norm() -> None:
    building = Building()
    x = building.input((B, S, D))
    running = building.op(OpKind.REDUCTION, [x], (B, S, D))
    program = building.program(building.op(OpKind.ARITHMETIC, [x, running], (B, S, D)))
    assert [region.rule for region in partition(program)] == [ALONE] * 2


def test_a_convolution_takes_one_residual() -> None:
    building = Building()
    x, y = building.input((B, D, S, S)), building.input((B, D, S, S))
    made = building.op(OpKind.CONVOLUTION, [x, building.weight((D, D, 3, 3))], (B, D, S, S))
    once = building.op(OpKind.ARITHMETIC, [made, x], (B, D, S, S))
    program = building.program(building.op(OpKind.ARITHMETIC, [once, y], (B, D, S, S)))
    assert [_kinds(program, region) for region in partition(program)] == [
        [OpKind.CONVOLUTION, OpKind.ARITHMETIC],
        [OpKind.ARITHMETIC],
    ]
