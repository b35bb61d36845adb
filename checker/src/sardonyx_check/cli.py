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
    seconds = round(time.perf_counter() - began, 2)
    total = sum(report.passes.values(), Counter[str]())
    if given.json:
        outputs = {name: {"answer": answer, "reason": reason} for name, (answer, reason) in report.outputs.items()}
        named = {"source": given.source, "result": given.result, "rewrites": total.total(), "seconds": seconds}
        print(json.dumps({**named, **vars(report), "outputs": outputs}))
    else:
        print(_text(report, total), f"{seconds} s", sep="\n")
    return report.code


def _text(report: Report, total: Counter[str]) -> str:
    lines: list[str] = []
    for name, (answer, reason) in report.outputs.items():
        lines += [f"output {name}: {answer}", *([f"  {reason}"] if reason else [])]
    counted = {f"{total.total()} rewrites": total, **{f"  {name}": each for name, each in report.passes.items()}}
    for name, answers in counted.items():
        lines.append(f"{name}: " + ", ".join(f"{count} {answer}" for answer, count in answers.items()))
    tried = [", ".join(f"{name} {list(shape)}" for name, shape in each.items()) for each in report.inputs_tried]
    ranges = ", ".join(f"{name} in {low}..{high}" for name, (low, high) in report.ranges_of_integers.items())
    lines.append("inputs tried: " + "; ".join(tried) + (f"; integers: {ranges}" if ranges else ""))
    units = f"at most {report.units_in_the_last_place:.2g} units in the last place off"
    return "\n".join([*lines, f"{report.rounded_constants} computed constants, {units}"])
