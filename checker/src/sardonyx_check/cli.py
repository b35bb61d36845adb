"""`sardonyx-check SOURCE RESULT CERTIFICATE`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence

from sardonyx_check.check import Report, check
from sardonyx_check.graphs import Refused

_ABOUT = """Check a certificate of `sardonyx optimize`: replay its rewrites on the source, evaluate each in exact
arithmetic, and compare the outcome with the result. Exit: 0 every output is equal for all values or for the orders
tried, 1 some output rests on trials that this program does not run, 2 usage, 3 refused."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser("sardonyx-check", description=_ABOUT)
    parser.add_argument("source", metavar="SOURCE", help="the model before")
    parser.add_argument("result", metavar="RESULT", help="the model after")
    parser.add_argument("certificate", metavar="CERTIFICATE", help="what `sardonyx optimize --certificate` wrote")
    parser.add_argument("--seed", type=int, help="choose other random numbers")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    try:
        report = check(given.source, given.result, given.certificate, seed=given.seed)
    except Refused as error:
        if given.json:
            print(json.dumps({"answer": "refused", "reason": str(error)}))
        print(f"sardonyx-check: refused: {error}", file=sys.stderr)
        return 3
    seconds = time.perf_counter() - began
    print(json.dumps(_json(report, seconds)) if given.json else _text(report, seconds))
    return report.code


def _json(report: Report, seconds: float) -> dict[str, object]:
    outputs = {name: {"answer": answer, "reason": reason} for name, (answer, reason) in report.outputs.items()}
    return {
        "source": report.source,
        "result": report.result,
        "outputs": outputs,
        "rewrites": sum(map(Counter.total, report.passes.values())),
        "passes": report.passes,
        "inputs_tried": report.tried,
        "ranges_of_integers": report.ranges,
        "rounded_constants": report.constants,
        "units_in_the_last_place": report.units,
        "seconds": round(seconds, 2),
    }


def _text(report: Report, seconds: float) -> str:
    lines = [f"output {name}: {answer}" + (f"\n  {reason}" if reason else "")
             for name, (answer, reason) in report.outputs.items()]  # fmt: skip
    total = sum(report.passes.values(), Counter[str]())
    lines.append(f"{total.total()} rewrites: " + ", ".join(f"{total[a]} {a}" for a in total))
    for name, answers in report.passes.items():
        lines.append(f"  {name}: " + ", ".join(f"{count} {answer}" for answer, count in answers.items()))
    tried = ["inputs tried: "] + [", ".join(f"{n} {list(shape)}" for n, shape in each.items()) for each in report.tried]
    ranges = ", ".join(f"{name} in {low}..{high}" for name, (low, high) in report.ranges.items())
    lines.append(tried[0] + "; ".join(tried[1:]) + (f"; integers: {ranges}" if ranges else ""))
    lines.append(f"{report.constants} computed constants, at most {report.units:.2g} units in the last place off")
    lines.append(f"{seconds:.1f} s")
    return "\n".join(lines)
