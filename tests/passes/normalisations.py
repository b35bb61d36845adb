"""Layer and root-mean-square normalisation in every known form, as ONNX text, for the tests of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from passes.util import graph_text

Place = Literal["none", "after", "value", "root"]
SHAPES = {"": "", "row": "[4]", "one": "[1]", "ranked": "[1, 1, 4]", "ranked one": "[1, 1, 1]"}


@dataclass(frozen=True)
class NormalisationForm:
    """One way to write a normalisation of `x` over its last axis, of size 4."""

    opset: int = 18
    about_mean: bool = True
    square: str = "Pow(c, two)"
    inverse: str = "Div"
    scale: Place = "after"
    scale_shape: str = "row"
    bias_shape: str | None = "row"
    epsilon_shape: str = ""
    flipped: bool = False
    centred_twice: bool = False
    mean: str = "mean"

    def text(self, kind: str = "float") -> str:
        """The whole model. After centring, `c` is the value that is normalised."""
        body = " ".join(self._lines())
        scale, bias = SHAPES[self.scale_shape], SHAPES[self.bias_shape or "row"]
        constants = [
            constant(kind, "two", "", 2),
            constant(kind, "one", "", 1),
            constant(kind, "half", "", 0.5),
            constant(kind, "minus_half", "", -0.5),
            constant(kind, "eps", SHAPES[self.epsilon_shape], 0.001),
            constant(kind, "gamma", scale, *((0.5, 2, -3, 1) if "4" in scale else (1.5,))),
            constant(kind, "beta", bias, *((1, -1, 0.25, 7) if "4" in bias else (1.5,))),
            constant(kind, "four", "", 4),
            constant(kind, "quarter", "[1]", 0.25),
            "int64[1] last = {-1}",
            "int64[3] column = {0, 0, 1}",
        ]
        values = f"({kind}[N, S, 4] x) => ({kind}[N, S, 4] y) <{', '.join(constants)}>"
        return graph_text(f"agraph {values} {{ {body} }}", self.opset)

    def _mean(self, result: str, of: str) -> str:
        """The mean of a value: ReduceMean, a sum divided by a number, or a mean without the axis and a view."""
        last = "" if self.opset >= 18 else "axes = [2], "
        more = ", last" if self.opset >= 18 else ""
        match self.mean:
            case "sum":
                return f"{result}s = ReduceSum({of}, last)  {result} = Div({result}s, four)"
            case "part of sum":
                return f"{result}s = ReduceSum({of}, last)  {result} = Mul(quarter, {result}s)"
            case "dropped":
                reduced = f"ReduceMean <{last}keepdims = 0> ({of}{more})"
                return f"{result}s = {reduced}  {result} = Unsqueeze({result}s, last)"
            case "viewed":
                reduced = f"ReduceMean <{last}keepdims = 0> ({of}{more})"
                return f"{result}s = {reduced}  {result} = Reshape({result}s, column)"
            case _:
                return f"{result} = ReduceMean <{last}keepdims = 1> ({of}{more})"

    def _product(self, first: str, second: str) -> str:
        return f"Mul({second}, {first})" if self.flipped else f"Mul({first}, {second})"

    def _lines(self) -> list[str]:
        lines = [self._mean("m", "x"), "c = Sub(x, m)"] if self.about_mean else ["c = Identity(x)"]
        top = "c"
        if self.centred_twice and self.about_mean:
            lines += [self._mean("m2", "x"), "c2 = Sub(x, m2)"]
            top = "c2"
        lines += [f"s = {self.square}", self._mean("v", "s"), "e = Add(eps, v)" if self.flipped else "e = Add(v, eps)"]
        if self.scale == "value":
            lines.append(f"top = {self._product(top, 'gamma')}")
            top = "top"
        lines += self._divided(top)
        last = "n"
        if self.scale == "after":
            lines.append(f"g = {self._product(last, 'gamma')}")
            last = "g"
        if self.bias_shape is not None:
            lines.append(f"b = Add(beta, {last})" if self.flipped else f"b = Add({last}, beta)")
            last = "b"
        return [*lines, f"y = Relu({last})"]

    def _divided(self, top: str) -> list[str]:
        match self.inverse:
            case "Div":
                return ["d = Sqrt(e)", f"n = Div({top}, d)"]
            case "Pow":
                return ["d = Pow(e, half)", f"n = Div({top}, d)"]
            case "Reciprocal":
                lines = ["d = Sqrt(e)", "r = Reciprocal(d)"]
            case "one over":
                lines = ["d = Sqrt(e)", "r = Div(one, d)"]
            case _:
                lines = ["r = Pow(e, minus_half)"]
        if self.scale == "root":
            return [*lines, f"rg = {self._product('r', 'gamma')}", f"n = {self._product(top, 'rg')}"]
        return [*lines, f"n = {self._product(top, 'r')}"]


def constant(kind: str, name: str, shape: str, *numbers: float) -> str:
    """A constant as text; in half precision as bits."""
    written: list[object] = list(numbers)
    if kind in ("float16", "bfloat16"):
        written = np.array(numbers, np.dtype(getattr(ml_dtypes, kind, kind))).view(np.uint16).tolist()
    return f"{kind}{shape} {name} = {{{', '.join(map(str, written))}}}"


def forms(*, about_mean: bool, opsets: tuple[int, ...]) -> st.SearchStrategy[NormalisationForm]:
    """All valid forms."""

    def sound(one: NormalisationForm) -> bool:
        return one.scale != "root" or one.inverse not in ("Div", "Pow")

    return st.builds(
        NormalisationForm,
        opset=st.sampled_from(opsets),
        about_mean=st.just(about_mean),
        square=st.sampled_from(["Pow(c, two)", "Mul(c, c)"]),
        inverse=st.sampled_from(["Div", "Pow", "Reciprocal", "one over", "minus half"]),
        scale=st.sampled_from(["none", "after", "value", "root"]),
        scale_shape=st.sampled_from(list(SHAPES)),
        bias_shape=st.sampled_from([None, *SHAPES]) if about_mean else st.none(),
        epsilon_shape=st.sampled_from(["", "one", "ranked one"]),
        flipped=st.booleans(),
        centred_twice=st.booleans(),
        mean=st.sampled_from(["mean", "mean", "mean", "sum", "part of sum", "dropped"]),
    ).filter(sound)
