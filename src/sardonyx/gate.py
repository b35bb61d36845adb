"""`--fail-if` expressions: one name, one comparison, one number; read by a fixed grammar, never evaluated as code."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.analysis_record import Analysis
from sardonyx.errors import GateNotMet, UsageError
from sardonyx.record import Run, Verdict

_FORM = re.compile(
    r"\s*(?:(?P<form>[a-z]+)\.)?(?P<name>[a-z_]+)\s*(?P<sign><=|>=|==|!=|<|>)\s*"
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>%|[A-Za-z]*)\s*",
    re.ASCII,
)
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_UNITS: Mapping[str, float] = {
    "": 1,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "B": 1,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "ms": 1e-3,
    "s": 1,
}
_SIZES = ("nodes", "constants", "initializers", "bytes", "file_bytes")
_REMOVED = tuple(f"{name}_removed" for name in _SIZES)
OF_RUN = (*_SIZES, *_REMOVED, "rewrites", "rolled_back", "seconds")
OF_VERDICT = ("max_abs", "max_rel", "max_ulp", "trials")
_OF_FORM = (
    "nodes", "attentions", "operations", "views", "macs", "flops", "bytes_read", "bytes_written", "traffic_bytes",
    "traffic_if_fused_bytes", "traffic_reduction", "intensity", "regions", "parameters", "weight_bytes", "input_bytes",
    "activation_bytes", "activation_as_run_bytes", "peak_bytes",
)  # fmt: skip
_MB = tuple(name.removesuffix("_bytes") + "_mb" for name in _OF_FORM if name.endswith("_bytes"))
OF_ANALYSIS = (*_OF_FORM, *_MB)
FORMS = ("standard", "decomposed", "fused")  # a name after one of these and a dot asks of that form
_SHARES = ("traffic_reduction",)  # numbers that are a share of something, and may be asked for in percent


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that a gate can ask for, and what a percentage of it is taken of."""

    value: float
    whole: float | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """One parsed expression; the command fails when it is true."""

    text: str
    name: str
    sign: str
    number: float
    relative: bool  # the number is a percentage

    @property
    def needs_verdict(self) -> bool:
        """Whether it asks for something only a verification knows."""
        return self.name in OF_VERDICT

    def tripped(self, measures: Mapping[str, Measure]) -> bool:
        """Whether the expression is true; a number that is not one trips every gate."""
        measure = measures[self.name]
        value = measure.value
        if self.relative:
            assert measure.whole is not None, "percentages are only parsed for names that have a whole"
            value = 100 * value / measure.whole if measure.whole else 0.0
        return math.isnan(value) or _SIGNS[self.sign](value, self.number)


def parse_for_analysis(text: str) -> Gate:
    """An expression about an Analysis; a form and a dot may stand before the name."""
    return parse(text, OF_ANALYSIS, forms=FORMS, shares=_SHARES)


def parse(
    text: str,
    names: Sequence[str] = (*OF_RUN, *OF_VERDICT),
    *,
    forms: Sequence[str] = (),
    shares: Sequence[str] = (*_SIZES, *_REMOVED),
) -> Gate:
    """The expression, or a usage error that says what would be right.

    Args:
        text: as the user wrote it.
        names: what may be asked for.
        forms: what may stand before a name and a dot.
        shares: names of which a percentage makes sense.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(
            f"cannot read --fail-if {text!r}", hint="write a name, a comparison and a number: --fail-if 'nodes>120'"
        )
    name, unit, form = found["name"], found["unit"], found["form"]
    if form is not None and form not in forms:
        raise UsageError(f"--fail-if {text!r}: there is no {form!r} to ask", hint=_forms_hint(name, forms))
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"--fail-if knows no {name!r}", hint=f"{meant}it knows {', '.join(names)}")
    if unit == "%" and name not in shares:
        raise UsageError(f"--fail-if {text!r}: {name} has no percentage", hint="give a plain number")
    if unit != "%" and unit not in _UNITS:
        raise UsageError(
            f"--fail-if {text!r}: unknown unit {unit!r}", hint=f"one of %, {', '.join(filter(None, _UNITS))}"
        )
    if unit not in ("", "%") and name in _MB:
        raise UsageError(
            f"--fail-if {text!r}: {name} is in MB already",
            hint=f"leave the unit out, or ask for {name.removesuffix('_mb')}_bytes",
        )
    number = float(found["number"]) * _UNITS.get(unit, 1)
    return Gate(text.strip(), name if form is None else f"{form}.{name}", found["sign"], number, unit == "%")


def _forms_hint(name: str, forms: Sequence[str]) -> str:
    return f"one of {', '.join(f'{form}.{name}' for form in forms)}" if forms else f"leave it out: {name}"


def measures_of_run(run: Run) -> dict[str, Measure]:
    """What gates may ask of a Run."""
    sizes = {
        "nodes": (run.before.nodes, run.after.nodes),
        "constants": (run.before.constants, run.after.constants),
        "initializers": (run.before.initializers, run.after.initializers),
        "bytes": (run.before.bytes, run.after.bytes),
        "file_bytes": (run.source.bytes, run.result.bytes),
    }
    measures = {name: Measure(after, before) for name, (before, after) in sizes.items()}
    measures |= {f"{name}_removed": Measure(before - after, before) for name, (before, after) in sizes.items()}
    measures["rewrites"] = Measure(sum(record.rewrites for record in run.passes))
    measures["rolled_back"] = Measure(len(run.rolled_back))
    measures["seconds"] = Measure(run.seconds.get("total", 0.0))
    return measures | (measures_of_verdict(run.verdict) if run.verdict else {})


def measures_of_analysis(found: Analysis) -> dict[str, Measure]:
    """What gates may ask of an Analysis: of each form, and without one of the model as it is or of the last file.

    What is not there is no number, so that a gate on it trips.
    """
    figures = {form.name: _with_mb(form.figures()) for form in found.forms}
    nothing = _with_mb(dict.fromkeys(_OF_FORM))
    of_torch = any(source.kind == "torch" for source in found.sources)
    plain = found.forms[0 if of_torch else -1].name
    named = {f"{form}.{name}": value for form in FORMS for name, value in figures.get(form, nothing).items()}
    return {
        name: Measure(math.nan if value is None else value, 1.0) for name, value in (figures[plain] | named).items()
    }


def _with_mb(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    mb = {name: figures[name.removesuffix("_mb") + "_bytes"] for name in _MB}
    return dict(figures) | {name: None if value is None else value / 1e6 for name, value in mb.items()}


def measures_of_verdict(verdict: Verdict) -> dict[str, Measure]:
    """What gates may ask of a Verdict: the worst over all outputs."""
    outputs = verdict.outputs
    return {
        "max_abs": Measure(_worst(output.max_abs for output in outputs)),
        "max_rel": Measure(_worst(output.max_rel for output in outputs)),
        "max_ulp": Measure(_worst(output.max_ulp for output in outputs)),
        "trials": Measure(len(verdict.trials)),
    }


def check(gates: Sequence[Gate], measures: Mapping[str, Measure]) -> None:
    """Raise when any gate is tripped, naming all that are."""
    tripped = [gate for gate in gates if gate.tripped(measures)]
    if tripped:
        said = "; ".join(f"{gate.text} ({gate.name} is {measures[gate.name].value:g})" for gate in tripped)
        raise GateNotMet(f"gate not met: {said}")


def _worst(values: Iterable[float]) -> float:
    """The largest; NaN if any is."""
    seen = list(values)
    return math.nan if any(map(math.isnan, seen)) else max(seen, default=0.0)
