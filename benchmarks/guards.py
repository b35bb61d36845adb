"""Which guards of the source a test holds: mutate one guard, run the tests that reach it, and see whether one fails.

    nice python benchmarks/guards.py --package passes --count 300 [--seed 0] [--budget 5] [--again] [--table]

Packages are `passes`, `ir/exact`, `verification` and `ir`. The tests are those that `TESTS` names for the package. They
are imported once; each mutant is judged in a forked process, in which the code of the mutated function is replaced. The
first run records which statements each test reaches (`benchmarks/results/guards-reach.json`, renewed for test files
that changed). A mutant gets the tests that reach its statement: those that detected others in its file first, then
those of its own test file, those that reach most of its file, and others by time, until they took `--budget` CPU
seconds without the mutant. It counts as killed when a test fails or takes too much time or memory.

Mutants are taken in an order that the seed decides, so that every count is a random sample; survivors of earlier seeds
got tests, others measure what is left. The results (`benchmarks/guards.json`) are kept by mutant as long as its
statement exists, and a second run continues; `--again` judges again what survived. A mutant that changes no result of
any model is in `benchmarks/guards-equivalent.json` with the reason. `--table` writes `benchmarks/guards.md`.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

import guard_mutants
import guards_table

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sardonyx"
RESULTS = ROOT / "benchmarks" / "guards.json"
EQUIVALENT = ROOT / "benchmarks" / "guards-equivalent.json"
REACH = ROOT / "benchmarks" / "results" / "guards-reach.json"
PACKAGES = ("passes", "ir/exact", "verification", "ir")
TESTS = {
    "passes": ["tests/passes", "tests/test_same_bytes.py"],
    "ir/exact": ["tests/exact"],
    "verification": ["tests/verification", "tests/exact", "tests/test_extraction.py", "tests/test_half_precision.py"],
    "ir": [
        "tests/ir", "tests/passes", "tests/optimizer/test_device_targets.py", "tests/cli/test_placement.py",
        "tests/test_damaged.py", "tests/test_same_bytes.py", "tests/test_unsorted.py", "tests/test_unusual.py",
    ],
}  # fmt: skip
EXTRA_MEMORY = 3 << 30  # bytes a mutant may reserve more than the process it was forked from
EXTRA_TIME = 10  # CPU seconds a mutant may take more than three times what the tests take without it
LONGEST = 900  # seconds of wall time, after which a mutant that waits for something is undecided


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file; not to be changed."""
    return ast.parse(path.read_text())


class Mutant:
    """One mutation of one file, found again by its text when lines move."""

    def __init__(self, path: Path, number: int, mutation: guard_mutants.Mutation, copy: int) -> None:
        self.path, self.number, self.mutation = path, number, mutation
        self.file = str(path.relative_to(SOURCE))
        label = mutation.statement or mutation.name
        self.key = " | ".join((self.file, label, mutation.kind, mutation.text, str(copy)))

    def row(self) -> dict[str, Any]:
        """What the results say about the place."""
        m = self.mutation
        return {"file": self.file, "line": m.line, "function": m.function, "kind": m.kind, "text": m.text}


def files(package: str) -> list[Path]:
    """The files of a package, without those of a package of its own within it."""
    found = sorted((SOURCE / package).rglob("*.py"))
    return [path for path in found if guards_table.owner(str(path.relative_to(SOURCE)), PACKAGES) == package]


def mutants(package: str) -> Iterator[Mutant]:
    """Every mutant of a package."""
    for path in files(package):
        copies: Counter[tuple[str, ...]] = Counter()
        for number, mutation in enumerate(guard_mutants.mutations(ast.parse(path.read_text()))):
            place = (mutation.statement, mutation.name, mutation.kind, mutation.text)
            copies[place] += 1
            yield Mutant(path, number, mutation, copies[place])


def sample(package: str, seed: int) -> list[Mutant]:
    """All mutants of a package in the order of a hash, which a change of another place leaves as it is."""
    return sorted(mutants(package), key=lambda m: hashlib.sha256(f"{seed} {m.key}".encode()).digest())


class Campaign:
    """A plugin of pytest: collects as usual, then judges mutants where the tests would run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.failed: list[str] = []
        self.rows: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what failed."""
        if report.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge the mutants that were asked for."""
        self.items = {item.nodeid: item for item in session.items}
        if any("exact/test_evaluate" in nodeid or "ir/test_shapes_truth" in nodeid for nodeid in self.items):
            importlib.import_module("backend.cases").node_cases()  # takes 10 s, here once and not in every child
        for item in session.items:
            test = getattr(item, "function", None)
            own = getattr(test, "_hypothesis_internal_use_settings", settings.default)
            if test is not None and hasattr(test, "hypothesis"):  # a shorter counterexample changes no verdict
                phases = (Phase.explicit, Phase.generate)
                test._hypothesis_internal_use_settings = settings(own, phases=phases)  # type: ignore[attr-defined]
        for package in PACKAGES:
            for path in files(package):
                name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
                try:
                    importlib.import_module(name)
                except pytest.skip.Exception:
                    print(f"{name} needs torch: not mutated")
        gc.unfreeze()
        self.functions: dict[tuple[str, str, int], list[types.FunctionType]] = {}
        for function in gc.get_objects():
            if isinstance(function, types.FunctionType):
                code = function.__code__
                place = (code.co_filename, code.co_qualname, code.co_firstlineno)
                self.functions.setdefault(place, []).append(function)
        gc.freeze()
        self.reach = self._reach()
        self.judge()
        return True

    def judge(self) -> None:
        """Judge the sample, and write each verdict at once."""
        chosen = sample(self.options.package, self.options.seed)
        keys = {mutant.key for mutant in chosen}
        self.rows = {
            key: row
            for key, row in self.rows.items()
            if key in keys or guards_table.owner(row["file"], PACKAGES) != self.options.package
        }
        chosen = [m for m in chosen if m.file.startswith(self.options.only)][: self.options.count]
        killers = Counter((row["file"], row["by"]) for row in self.rows.values() if row["result"] == "killed")
        for number, mutant in enumerate(chosen, 1):
            if mutant.mutation.name and not any(self._readers(mutant.mutation.name)):
                continue  # it is read only where modules are imported, before it could be changed
            old = self.rows.get(mutant.key, {})
            if old.get("result") and not (self.options.again and old["result"] != "killed"):
                continue
            tests, all_of_them = self._tests(mutant, killers)
            result, by = self._verdict(mutant, tests) if tests else ("survived", "no test reaches it")
            if result == "survived" and tests:
                by = f"{len(tests)} of {all_of_them} tests that reach it"
            killers[mutant.file, by] += 1
            seed = old.get("seed", self.options.seed)
            self.rows[mutant.key] = {**mutant.row(), "seed": seed, "result": result, "by": by}
            RESULTS.write_text(json.dumps(self.rows, indent=0, sort_keys=True, ensure_ascii=False) + "\n")
            place = f"{mutant.file}:{mutant.mutation.line}"
            print(f"{number}/{len(chosen)} {result}: {place}: {mutant.mutation.kind}: {mutant.mutation.text} [{by}]")
            sys.stdout.flush()

    def _tests(self, mutant: Mutant, killers: Counter[tuple[str, str]]) -> tuple[list[str], int]:
        """The tests to run, in order, and how many reach the mutant."""
        statement = f"{mutant.file}: {mutant.mutation.statement}"
        wanted = {statement} if mutant.mutation.statement else set(self._readers(mutant.mutation.name))
        reaching = [(i, t) for i, t in self.reach.items() if wanted & t["statements"] and i in self.items]
        if not reaching and mutant.mutation.statement:  # changed since the record: those that reach its function
            prefix = f"{mutant.file}: {mutant.mutation.function}:"
            reaching = [
                (i, t)
                for i, t in self.reach.items()
                if i in self.items and any(s.startswith(prefix) for s in t["statements"])
            ] or [  # a function that is called on import: those that reach its file
                (i, t)
                for i, t in self.reach.items()
                if i in self.items and any(s.startswith(f"{mutant.file}: ") for s in t["statements"])
            ]
        stem = mutant.path.stem.lstrip("_")
        package = guards_table.owner(mutant.file, PACKAGES).rpartition("/")[2]

        prefix = f"{mutant.file}: "
        reached = Counter({i: sum(s.startswith(prefix) for s in t["statements"]) for i, t in reaching})
        widest = {i for i, _ in reached.most_common(4)}

        def order(entry: tuple[str, dict[str, Any]]) -> tuple[Any, ...]:
            test, known = entry
            own = f"test_{stem}" in test or f"[{stem.replace('_', '-')}]" in test
            near = 0 if own else 1 if test in widest else 2 if f"tests/{package}/" in test else 3
            return -killers[mutant.file, test], near, known["seconds"]

        tests, seconds = list[str](), 0.0
        for test, known in sorted(reaching, key=order):
            if seconds + known["seconds"] <= self.options.budget:
                tests.append(test)
                seconds += known["seconds"]
        return tests, len(reaching)

    def _readers(self, name: str) -> Iterator[str]:
        for package in PACKAGES:
            for path in files(package):
                for label in guard_mutants.mentions(tree(path), name):
                    yield f"{path.relative_to(SOURCE)}: {label}"

    def _verdict(self, mutant: Mutant, tests: list[str]) -> tuple[str, str]:
        seconds = sum(self.reach[test]["seconds"] for test in tests)
        status, answer = self._forked(lambda: self._first_failure(mutant, tests), int(3 * seconds) + EXTRA_TIME)
        if os.WIFSIGNALED(status):
            killed_by = os.WTERMSIG(status)
            return ("undecided", "waits") if killed_by == signal.SIGALRM else ("killed", signal.Signals(killed_by).name)
        return ("killed", answer) if answer else ("survived", "")

    def _first_failure(self, mutant: Mutant, tests: list[str]) -> str:
        self.plant(mutant)
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            self._run(test, following)
            if self.failed:
                return self.failed[0]
        return ""

    def _run(self, test: str, following: str | None) -> None:
        item, after = self.items[test], self.items[following] if following else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)

    def plant(self, mutant: Mutant) -> None:
        """Replace the code of the functions of one file by the mutated code."""
        if mutant.mutation.name:
            return self._change_constant(mutant)
        changed = ast.parse(mutant.path.read_text())
        guard_mutants.mutations(changed)[mutant.number].plant()
        self._replace(mutant.path, ast.fix_missing_locations(changed))
        return None

    def _replace(self, path: Path, changed: ast.Module) -> None:
        for code in _codes(compile(changed, str(path), "exec", dont_inherit=True)):
            for function in self.functions.get((str(path), code.co_qualname, code.co_firstlineno), ()):
                if len(function.__code__.co_freevars) == len(code.co_freevars):
                    function.__code__ = code

    def _change_constant(self, mutant: Mutant) -> None:
        name = mutant.mutation.name
        module = sys.modules[".".join(mutant.path.relative_to(SOURCE.parent).with_suffix("").parts)]
        old = getattr(module, name)
        new = old * guard_mutants.FACTOR if "×" in mutant.mutation.kind else old / guard_mutants.FACTOR
        new = type(old)(new) if isinstance(old, int) else new
        for other in list(sys.modules.values()):
            if getattr(other, "__name__", "").startswith("sardonyx") and vars(other).get(name) is old:
                setattr(other, name, new)
        for functions in self.functions.values():
            for function in functions:
                own = (function.__module__ or "").startswith("sardonyx")  # made functions may have None
                if own and any(d is old for d in function.__defaults__ or ()):
                    function.__defaults__ = tuple(new if d is old else d for d in function.__defaults__ or ())

    def _reach(self) -> dict[str, dict[str, Any]]:
        """The statements that each test reaches and its CPU seconds, run again for test files that changed."""
        known = _known_reach()
        hashes = {i: hashlib.sha256(item.path.read_bytes()).hexdigest() for i, item in self.items.items()}
        stale = [i for i in self.items if known.get(i, {}).get("hash") != hashes[i]]
        if stale:
            print(f"recording what {len(stale)} tests reach", flush=True)
            REACH.parent.mkdir(exist_ok=True)
            self._forked(lambda: self._record(stale, hashes, known), None)
            known = _known_reach()
        failing = [i for i, entry in known.items() if i in self.items and entry["failed"]]
        print(f"{len(known)} tests; left out since they fail without a mutant: {failing}", flush=True)
        return {i: entry for i, entry in known.items() if not entry["failed"]}

    def _record(self, tests: list[str], hashes: dict[str, str], known: dict[str, Any]) -> str:
        hits: set[str] = set()
        for package in PACKAGES:
            for path in files(package):
                probed = ast.parse(path.read_text())
                guard_mutants.instrument(probed)
                name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
                prefix = f"{path.relative_to(SOURCE)}: "
                if name in sys.modules:
                    vars(sys.modules[name])[guard_mutants.HIT] = lambda label, prefix=prefix: hits.add(prefix + label)
                    self._replace(path, probed)
        for number, (test, following) in enumerate(zip(tests, [*tests[1:], None], strict=True), 1):
            hits.clear()
            self.failed.clear()
            began = time.process_time()
            self._run(test, following)
            seconds = round(time.process_time() - began, 4)
            known[test] = {"statements": frozenset(hits), "seconds": seconds, "failed": bool(self.failed)}
            known[test]["hash"] = hashes[test]
            if number % 300 == 0 or following is None:
                _write_reach(known)
        return ""

    def _forked(self, work: Any, seconds: int | None) -> tuple[int, str]:
        """Run in a child with limits; return how it ended, and its answer."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            _limit(seconds)
            os.close(read)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            try:
                os.write(write, work().encode()[:4000])
            except BaseException as error:  # a mutant may raise anything anywhere
                os.write(write, f"raises {type(error).__name__}".encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            answer = pipe.read().decode()
        return os.waitpid(child, 0)[1], answer


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _known_reach() -> dict[str, Any]:
    if not REACH.exists():
        return {}
    stored = json.loads(REACH.read_text())
    label = stored["labels"].__getitem__
    return {i: {**e, "statements": frozenset(map(label, e["statements"]))} for i, e in stored["tests"].items()}


def _write_reach(known: dict[str, Any]) -> None:
    numbers: dict[str, int] = {}  # of the labels, which thousands of tests share
    tests = {
        i: {**e, "statements": [numbers.setdefault(s, len(numbers)) for s in sorted(e["statements"])]}
        for i, e in known.items()
    }
    part = REACH.with_suffix(".part")
    part.write_text(json.dumps({"labels": list(numbers), "tests": tests}))
    part.rename(REACH)


def _limit(seconds: int | None) -> None:
    if seconds is None:
        return
    signal.alarm(LONGEST)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + EXTRA_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> int:
    """Judge a sample of the mutants of one package, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", choices=PACKAGES, default="passes")
    parser.add_argument("--only", default="", help="mutants of files that begin so, e.g. passes/norms")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=5.0, help="CPU seconds of tests for one mutant")
    parser.add_argument("--again", action="store_true", help="judge again what was not killed")
    parser.add_argument("--table", action="store_true", help="write the table and stop")
    options = parser.parse_args()
    if options.table:
        totals = {package: len(list(mutants(package))) for package in PACKAGES}
        return guards_table.write(RESULTS, EQUIVALENT, RESULTS.with_suffix(".md"), totals)
    os.chdir(ROOT)
    flags = ["-q", "-s", "--tb=native", "-p", "no:randomly", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as folder:  # other runs of pytest delete the folders of their predecessors
        flags += ["-o", "tmp_path_retention_policy=none", f"--basetemp={folder}/tests", *TESTS[options.package]]
        return int(pytest.main(flags, plugins=[Campaign(options)]))


if __name__ == "__main__":
    sys.exit(main())
