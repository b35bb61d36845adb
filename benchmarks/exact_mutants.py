"""Plant faults in single rewrites, and count which of them exact arithmetic refuses.

    python benchmarks/exact_mutants.py [--count 10000] [--first SEED] [--target ort]

Every rewrite of a random model that is equal in exact arithmetic is changed in one place after it: an attribute by one
(a float by one unit in the last place), numbers of an attribute in reverse, operands swapped, the last operand dropped,
one element of a constant by one unit in the last place. A changed rewrite that still counts as equal is judged by both
sides in double precision on random values: it is harmless if they agree, not valid if the new nodes do not run, and
missed otherwise.
"""

from __future__ import annotations

import argparse
import collections
import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from fuzzing import families
from fuzzing.draft import Rejected
from sardonyx.errors import ModelError
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Rule
from sardonyx.ir.transaction import Substitution
from sardonyx.records.run import Accuracy
from sardonyx.verbs.optimize.candidates import RewriteJob
from sardonyx.verbs.optimize.pipeline import select
from sardonyx.verification.border_values import Generator, Style
from sardonyx.verification.exact_check import EQUAL, Claim, decide
from sardonyx.verification.rewrite_check import Check, State
from sardonyx.verification.rewrite_models import Excerpt, SmallModel
from sardonyx.verification.upcast import upcast

SYMMETRIC = {"Add", "Mul", "And", "Or", "Max", "Min", "Sum", "Equal"}
MOST_NODES = 60
SAME = 1e-9  # of the largest element, in double precision
WAYS, SEEDS = 40, 3


def mutants(excerpt: Excerpt) -> Iterator[tuple[str, Excerpt]]:
    """Copies of an excerpt with one small change after the rewrite, and what was changed."""
    proto, constants = excerpt.exact.proto, excerpt.exact.constants

    def changed(change: Callable[[onnx.GraphProto], object]) -> Excerpt:
        other, model = copy.copy(excerpt), onnx.ModelProto()
        model.CopyFrom(proto)
        change(model.graph)
        other.exact = SmallModel(model, constants)
        return other

    for index, node in enumerate(proto.graph.node):
        for place, attribute in enumerate(node.attribute):
            new = _other(attribute)
            if new is not None:
                yield (
                    f"{node.op_type}.{attribute.name}",
                    changed(lambda g, i=index, k=place, a=new: g.node[i].attribute[k].CopyFrom(a)),
                )
        names = list(node.input)
        if len(set(names[:2])) == 2 and all(names[:2]) and node.op_type not in SYMMETRIC:
            turned = [names[1], names[0], *names[2:]]
            yield node.op_type, changed(lambda g, i=index, n=turned: _rewire(g.node[i], n))
        if len(names) > 2 and names[-1]:
            yield f"{node.op_type} without", changed(lambda g, i=index, n=names[:-1]: _rewire(g.node[i], n))
    for name, tensor in constants.items():
        array = np.array(tensor.numpy())
        if not array.size or array.dtype.kind not in "fiu":
            continue
        middle = np.unravel_index(array.size // 2, array.shape)
        more = np.nextafter(array[middle], array.dtype.type(np.inf)) if array.dtype.kind == "f" else array[middle] - 1
        array[middle] = more
        other = changed(
            lambda g, old=name: [_rewire(n, ["mutant" if i == old else i for i in n.input]) for n in g.node]
        )
        other.exact = SmallModel(other.exact.proto, {**constants, "mutant": ir.tensor(array)})
        yield f"constant {list(array.shape)}", other


def _rewire(node: onnx.NodeProto, names: list[str]) -> None:
    node.input[:] = names


def _other(attribute: onnx.AttributeProto) -> onnx.AttributeProto | None:
    """An attribute with the next number, or its numbers in another order; None for other types."""
    new = onnx.AttributeProto()
    new.CopyFrom(attribute)
    match attribute.type:
        case onnx.AttributeProto.FLOAT:
            new.f = float(np.nextafter(np.float32(attribute.f), np.float32(np.inf)))
        case onnx.AttributeProto.INT:
            new.i = 1 - new.i if new.i in (0, 1) else new.i + 1  # a flag that is set, or is not
        case onnx.AttributeProto.INTS if list(attribute.ints) != list(attribute.ints)[::-1]:
            new.ints[:] = list(attribute.ints)[::-1]
        case onnx.AttributeProto.INTS if attribute.ints:
            new.ints[0] += 1
        case _:
            return None
    return new


def outcome(mutant: Excerpt, rule: Rule) -> str:
    """What becomes of a changed rewrite: a pass of the class exact is also compared in bits, as `optimize` does."""
    decision = decide(mutant)
    if decision.claim not in EQUAL:
        return "refused" if decision.claim is Claim.UNEQUAL else "undecided"
    if rule.accuracy is Accuracy.EXACT and decision.computes:
        mutant.after = mutant.exact
        if Check(mutant, rule.accuracy, 1).outcome().state is State.FAILS:
            return "refused by its bits"
    return judged(mutant)


def judged(excerpt: Excerpt) -> str:
    """Whether both sides agree in double precision, on values that the nodes before the rewrite accept."""
    constants = [*excerpt.before.constants.values(), *excerpt.exact.constants.values()]
    generator = Generator(excerpt.border, constants, excerpt.operators)
    compared = 0
    for way, seed in itertools.product(itertools.islice(generator.ways(), WAYS), range(SEEDS)):
        feeds = generator.generate(way, Style.NORMAL, seed)
        if feeds is None:
            continue
        types = generator.types(way)
        try:
            old = _run(excerpt.before, types, feeds)[: excerpt.results]
        except Exception:  # the evaluator raises anything for values that do not fit
            continue
        try:
            new = _run(excerpt.exact, types, feeds)
        except Exception:  # any runtime refuses it
            return "not valid"
        if not all(itertools.starmap(_agree, zip(old, new, strict=True))):
            return "missed"
        compared += 1
        if compared >= SEEDS:
            break
    return "harmless" if compared else "not judged"


def _run(side: SmallModel, types: dict[str, ir.DataType], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    model = io.from_proto(side.filled(types))
    model = upcast(model, constants="widen", to=ir.DataType.DOUBLE) or model
    names = {value.name for value in model.graph.inputs}
    with np.errstate(all="ignore"):
        evaluator = ReferenceEvaluator(io.to_proto(model))
        results: Any = evaluator.run(None, {name: value for name, value in feeds.items() if name in names})
    return list(results)


def _agree(old: np.ndarray, new: np.ndarray) -> bool:
    old, new = np.asarray(old), np.asarray(new)
    if old.shape != new.shape or old.dtype != new.dtype:
        return False
    if old.dtype.kind != "f":
        return bool(np.array_equal(old, new))
    scale = np.nanmax(np.abs(old[np.isfinite(old)]), initial=0.0)
    return bool(np.allclose(old, new, rtol=0, atol=SAME * scale, equal_nan=True))


def main() -> int:
    """Print the counts by kind, then every mutant that was missed; return 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=900_000)
    parser.add_argument("--target", default="portable")
    arguments = parser.parse_args()
    results: collections.Counter[str] = collections.Counter()
    open_ones: collections.Counter[str] = collections.Counter()
    seen: set[bytes] = set()
    seed = arguments.first

    def observe(facts: Facts, rule: Rule, _root: str, rewrite: Substitution) -> None:
        if not rewrite.pairs:
            return
        narrow = Excerpt.narrowest(facts, rewrite)
        signature = narrow.signature
        if signature in seen:
            return
        seen.add(signature)
        excerpts = (narrow, *itertools.islice(narrow.widened(MOST_NODES), 4))
        equal = next((each for each in excerpts if decide(each).claim in EQUAL), None)
        agrees = equal is not None and judged(equal) == "harmless"  # as far as the judge can tell
        for what, mutant in mutants(equal) if equal is not None else ():
            result = outcome(mutant, rule)
            result = result if result != "missed" or agrees else "not judged"
            results[result] += 1
            if result in ("undecided", "not judged", "missed"):
                open_ones[f"{result}: {rule.name}: {what} (model {seed})"] += 1

    passes = tuple(select(arguments.target))
    while results.total() < arguments.count:
        try:
            job = RewriteJob(families.draw(seed).model, passes, arguments.target, lambda *_: None)
            job.candidate(None, frozenset(), observe)
        except (Rejected, ModelError):
            pass
        seed += 1
        print(f"\r{seed - arguments.first} models: {dict(results)}", end="", file=sys.stderr, flush=True)
    print(f"{results.total()} mutants of {len(seen)} rewrites: {dict(results)}")
    for line, count in open_ones.most_common():
        print(count, line)
    return int(bool(results["missed"]))


if __name__ == "__main__":
    sys.exit(main())
