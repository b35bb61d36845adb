"""Equal values and sizes are recognized before anything runs."""

from __future__ import annotations

import onnx

from sardonyx.ir.io import from_proto
from sardonyx.verbs.profile.kernel_origins import Steps, Values, of_file


def graph(text: str) -> Steps:
    return of_file(from_proto(onnx.parser.parse_model(text)).graph)


def test_equal_steps_are_equivalent_also_through_constants_and_identities() -> None:
    steps = graph("""
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[4] x, float[4] z) => (float[4] y) {
            c = Constant<value = float {2.0}>()  d = Constant<value = float {2.0}>()
            e = Constant<value = float {3.0}>()
            a = Mul(x, c)  i = Identity(x)  b = Mul(i, d)  other = Mul(x, e)  p = Exp(a)  q = Exp(b)  r = Exp(other)
            s = Sum(p, q, r)  y = Add(s, z)
        }
    """)
    values = Values(steps)
    at = {step.outputs[0]: index for index, step in enumerate(steps.steps)}
    assert set(values.twins(at["p"])) == {at["p"], at["q"]}
    assert values.class_of("a") == values.class_of("b") != values.class_of("other")
    assert values.class_of("p") == values.class_of("q") != values.class_of("r")


def test_random_steps_and_steps_with_another_attribute_are_not_equivalent() -> None:
    steps = graph("""
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[4] x) => (float[4] y) {
            a = RandomUniformLike(x)  b = RandomUniformLike(x)
            c = LeakyRelu<alpha = 0.1>(x)  d = LeakyRelu<alpha = 0.2>(x)
            y = Sum(a, b, c, d)
        }
    """)
    values = Values(steps)
    assert len({values.class_of(name) for name in "abcd"}) == 4


def test_values_computed_from_shapes_and_constants_alone_are_sizes() -> None:
    steps = graph("""
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[N, 4] x) => (float[N, 4] y, int64[M] m) {
            s = Shape(x)  one = Constant<value = int64[1] {1}>()  t = Add(s, one)  k = Cast<to = 1>(t)
            j = Cast<to = 7>(x)  m = NonZero(j)  y = Identity(x)
        }
    """)
    values = Values(steps)
    assert {name for name in ("s", "t", "k", "j", "m", "y", "one") if values.is_size(name)} == {"s", "t", "k", "one"}
