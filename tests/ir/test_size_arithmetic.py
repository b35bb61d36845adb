"""Sizes that graphs compute, checked against the runtime: random arithmetic at sizes of zero, one and more.

Inferred shapes and elements of small tensors equal the results at every size at which the model runs. Integer divisors
are never zero, because a processor may end the process otherwise.
"""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import known_sizes
import recorded
from ir.shapes_truth import check_inference
from ir.test_shapes import facts_of
from passes.util import graph_text
from sardonyx.ir.shapes import expr

SIZES = (0, 1, 2, 3, 7)
NUMBERS = (-7, -3, -2, -1, 0, 1, 2, 3, 5, 2049, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))
TYPES = {"int64": 7, "int32": 6, "float": 1, "double": 11, "float16": 10, "int8": 3, "uint8": 2, "bool": 9}


class Writer:
    """Writes a graph of one-element int64 tensors that are computed from the dims of x."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.lines: list[str] = ["s = Shape(x)"]
        self.constants: dict[str, str] = {}
        self.sizes: list[str] = []
        self.count = 0
        for axis in range(3):
            self.sizes.append(self.node(f"Slice(s, {self.number(axis)}, {self.number(axis + 1)})"))

    def node(self, call: str) -> str:
        self.count += 1
        self.lines.append(f"v{self.count} = {call}")
        return f"v{self.count}"

    def number(self, value: int, kind: str = "int64") -> str:
        name = f"{kind}_{value}".replace("-", "m")
        self.constants[name] = f"{kind}[1] {name} = {{{value}}}"
        return name

    def any_size(self) -> str:
        return self.rng.choice(self.sizes) if self.rng.random() < 0.7 else self.number(self.rng.choice(NUMBERS))

    def step(self) -> None:
        """Add one size."""
        make = self.rng.choice([self.arithmetic, self.divided, self.through_floats, self.casted, self.chosen])
        self.sizes.append(make())

    def arithmetic(self) -> str:
        return self.node(
            f"{self.rng.choice(['Add', 'Sub', 'Mul', 'Max', 'Min'])}({self.any_size()}, {self.any_size()})"
        )

    def divided(self) -> str:
        if self.rng.random() < 0.5:
            by = self.number(self.rng.choice([number for number in NUMBERS if number not in (0, -1)]))
        else:
            by = self.node(f"Max({self.any_size()}, {self.number(1)})")
        return self.node(f"{self.rng.choice(['Div', 'Mod', 'Mod <fmod = 1>'])} ({self.any_size()}, {by})")

    def through_floats(self) -> str:
        """Exporters divide floats and round; the divisor may be zero."""
        kind = self.rng.choice(("float", "double"))
        one, other = (self.node(f"Cast <to = {TYPES[kind]}> ({self.any_size()})") for _ in range(2))
        quotient = self.node(f"{self.rng.choice(['Div', 'Mul', 'Mod <fmod = 1>', 'Add'])} ({one}, {other})")
        quotient = self.node(f"{self.rng.choice(['Floor', 'Ceil', 'Identity'])}({quotient})")
        return self.node(f"Cast <to = 7> ({quotient})")

    def casted(self) -> str:
        kind = self.rng.choice(list(TYPES))
        between = self.node(f"Cast <to = {TYPES[kind]}> ({self.any_size()})")
        if kind == "int32" and self.rng.random() < 0.5:
            between = self.node(f"Mul({between}, {between})")
        return self.node(f"Cast <to = 7> ({between})")

    def chosen(self) -> str:
        test = self.rng.choice(["Equal", "Less", "GreaterOrEqual"])
        condition = self.node(f"{test}({self.any_size()}, {self.any_size()})")
        return self.node(f"Where({condition}, {self.any_size()}, {self.any_size()})")

    def end(self) -> None:
        """Add a node whose output shape depends on the sizes."""
        size, other = self.any_size(), self.any_size()
        kind = self.rng.randrange(6)
        if kind == 0:
            parts = self.rng.sample([*self.sizes[:3], self.number(-1), self.number(0), size], 3)
            target = self.node(f"Concat <axis = 0> ({', '.join(parts)})")
            zeros = (
                self.rng.choice(["", "<allowzero = 1> "]) if parts.count("int64_m1") == 0 else ""
            )  # otherwise invalid
            again = self.node(f"Reshape {zeros}(x, {target})")
            self.node(f"Reshape({again}, s)" if self.rng.random() < 0.5 else f"Shape({again})")
        elif kind == 1:
            step = self.number(self.rng.choice((1, 2, -1, -2, -(2**63), 2**63 - 1)))
            self.node(f"Slice(x, {size}, {other}, {self.number(self.rng.randrange(3))}, {step})")
        elif kind == 2:
            small = self.node(f"Min({size}, {self.number(20)})")
            self.node(f"ConstantOfShape({self.node(f'Max({small}, {self.number(0)})')})")
        elif kind == 3:
            small = self.node(f"Max({self.node(f'Min({size}, {self.number(20)})')}, {self.number(-20)})")
            scalar, zero = self.node(f"Squeeze({small})"), self.node(f"Squeeze({self.number(0)})")
            self.node(f"Range({zero}, {scalar}, {self.node(f'Squeeze({self.number(self.rng.choice((-2, 1, 3)))})')})")
        elif kind == 4:
            self.node(f"Expand(x, {self.rng.choice([*self.sizes[:3], self.number(1), self.number(0)])})")
        else:
            part = self.node(f"Max({self.node(f'Min({size}, {self.number(3)})')}, {self.number(0)})")
            self.node(f"Tile(x, {self.node(f'Concat <axis = 0> ({part}, {self.number(1)}, {self.number(2)})')})")

    def model(self) -> onnx.ModelProto:
        """The model; its output is the last value."""
        for _ in range(self.rng.randint(2, 7)):
            self.step()
        for _ in range(3):
            self.end()
        body = "  ".join(self.lines)
        text = (
            f"agraph (float[A, B, C] x) => (float[M] v{self.count}) <{', '.join(self.constants.values())}> {{ {body} }}"
        )
        return onnx.parser.parse_model(graph_text(text))


def feeds() -> list[dict[str, np.ndarray]]:
    shapes = list(itertools.product(SIZES, repeat=3))
    chosen = [*itertools.product((0, 2), repeat=3), *Random(0).sample(shapes, 8)]
    return [{"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)} for shape in chosen]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_inferred_sizes_are_correct(seed: int) -> None:
    verdict = check_inference(Writer(seed).model(), feeds())
    assert not verdict.wrong


@pytest.mark.parametrize("part", range(6))
def test_as_much_is_known_of_computed_sizes_as_before(part: int) -> None:
    """Of random models: how many sizes and elements are known, and how long their formulas are."""
    amounts: dict[str, list[int]] = {}
    for seed in range(part * 20, part * 20 + 20):
        facts, values = facts_of(Writer(seed).model())
        for value in values.values():
            shape, contents = facts.shape(value) or (), facts.contents(value) or ()
            known = [size for size in (*shape, *contents) if size is not None]
            vague = sum(isinstance(size, expr.Expr) and size.is_vague for size in known)
            producer = value.producer()
            operator = "" if producer is None else producer.op_type
            known_sizes.count(amounts, operator, [len(known), vague, sum(map(expr.weight, known))])
    recorded.check("computed_sizes", {f"{part} {operator}": each for operator, each in amounts.items()})


OPERATORS = [  # where engines, types and zeros differ from integer arithmetic
    "f = Cast <to = 1> (n)  p = Mul(n, m)  g = Cast <to = 1> (p)  q = Div(g, f)  y = Cast <to = 7> (q)",
    "f = Cast <to = 1> (n)  g = Cast <to = 1> (m)  q = Div(g, f)  r = Floor(q)  y = Cast <to = 7> (r)",
    "f = Cast <to = 1> (n)  g = Cast <to = 1> (m)  q = Mod <fmod = 1> (g, f)  y = Cast <to = 7> (q)",
    "l = Mul(n, large)  f = Cast <to = 10> (l)  y = Cast <to = 7> (f)",
    "l = Add(n, large)  f = Cast <to = 3> (l)  y = Cast <to = 7> (f)",
    "l = Mul(n, large)  i = Cast <to = 6> (l)  j = Mul(i, i)  y = Cast <to = 7> (j)",
    "l = Add(n, most)  y = Add(l, n)",
    "t = Concat <axis = 0> (m, n, k)  z = Reshape(x, t)  y = Shape(z)",
    "t = Concat <axis = 0> (m, minus, k)  z = Reshape(x, t)  y = Shape(z)",
    "p = Mul(m, k)  t = Concat <axis = 0> (n, p, k)  z = Reshape(x, t)  y = Shape(z)",
    "p = Mul(m, k)  t = Concat <axis = 0> (n, p)  z = Reshape(x, t)  y = Shape(z)",
    "p = Mul(n, m)  t = Concat <axis = 0> (p, k)  z = Reshape(x, t)  u = Reshape(z, s)  y = Shape(u)",
    "z = Slice(x, minus, most, zero, minus)  y = Shape(z)",
    "z = Slice(x, minus, most32, zero, minus)  y = Shape(z)",
    "z = Slice(x, most, least, zero, minus)  y = Shape(z)",
    "z = Slice(x, two, minus, zero, one)  w = Slice(z, one, minus, zero, one)  y = Shape(w)",
    "a, b = Split <axis = 0, num_outputs = 2> (x)  y = Shape(a)",
]
DIMS = """s = Shape(x)  n = Slice(s, zero, one)  m = Slice(s, one, two)  k = Slice(s, two, three)"""
CONSTANTS = """<
    int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] minus = {-1},
    int64[1] large = {2049}, int64[1] most32 = {2147483647}, int64[1] most = {9223372036854775807},
    int64[1] least = {-9223372036854775808}
>"""


@pytest.mark.parametrize("body", OPERATORS)
def test_single_computations_at_every_size(body: str) -> None:
    model = onnx.parser.parse_model(
        graph_text(f"agraph (float[A, B, C] x) => (int64[M] y) {CONSTANTS} {{ {DIMS}  {body} }}")
    )
    verdict = check_inference(model, feeds())
    assert not verdict.wrong
    recorded.check("single_computations", {body: verdict.amounts})
