"""The same two models in another runtime, so that a disagreement can be attributed.

Where the runtime disagrees with the first one on the reference alone, the runtime is the cause. Where it agrees there,
and the two models differ on it, the rewrite is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sardonyx.errors import RuntimeFailure
from sardonyx.records.run import RuntimeCheck
from sardonyx.runtime import Value
from sardonyx.runtime.engines import Runtime
from sardonyx.verification.judge import Judge, Noise
from sardonyx.verification.reference import Answer
from sardonyx.verification.subject import Subject

Result = list[Value] | RuntimeFailure


class OtherRuntime:
    """One more runtime to compare in; it answers for the reference once.

    Args:
        runtime: Which one.
        reference: The model that is right.
        threads: Threads of the runtime.
        seconds: About how long all runs of one model may take.
    """

    def __init__(self, runtime: Runtime, reference: Subject, *, threads: int | None, seconds: float) -> None:
        self._runtime = runtime
        self._reference = reference
        self._threads = threads
        self._seconds = seconds
        self._name = runtime.value
        self._own: list[Result] | None = None

    def check(
        self,
        candidate: Subject,
        answers: Sequence[Answer],
        judge: Callable[[], Judge],
        noise: Callable[[int], Noise | None],
    ) -> RuntimeCheck:
        """Compare reference and candidate on the inputs of the answers that the first runtime gave.

        Args:
            candidate: The model to compare.
            answers: Of the first runtime, on the reference.
            judge: Makes a fresh judge.
            noise: How much rounding alone moves the answer of a number.
        """
        if self._own is None:
            self._own = self._results(self._reference, answers)
        theirs = self._results(candidate, answers[: len(self._own)])
        rewrite: list[str] = []
        runtime: list[str] = []
        failed: list[str] = []
        compared = 0
        for number, (answer, own, other) in enumerate(zip(answers, self._own, theirs, strict=False)):
            place = f"{answer.style}, seed {answer.seed}"
            if isinstance(own, RuntimeFailure):
                failed.append(own.message)
                continue
            measured = lambda number=number: noise(number)  # noqa: E731 (bound to this trial)
            wrong = judge().compare(answer.outputs, own, measured)
            if wrong:
                runtime += [f"{place}: {line}" for line in wrong]
            elif isinstance(other, RuntimeFailure):
                rewrite.append(f"{place}: it runs the reference but not the other model: {other.message}")
            else:
                compared += 1
                rewrite += [f"{place}: {line}" for line in judge().compare(own, other, measured)]
        left = len(answers) - len(theirs)
        reason = failed[0] if failed else f"{left} trials did not fit into {self._seconds:g} s" if left else ""
        return RuntimeCheck(self._name, compared, tuple(rewrite), tuple(runtime), reason)

    def _results(self, subject: Subject, answers: Sequence[Answer]) -> list[Result]:
        """What the runtime says to the trials, as many as the time allows; a model that does not load fails in all."""
        began, results = time.perf_counter(), list[Result]()
        try:
            with subject.session(self._runtime, threads=self._threads, seconds=3 * self._seconds) as engine:
                self._name = engine.name
                for answer in answers:
                    if results and time.perf_counter() - began > self._seconds:
                        break
                    try:
                        results.append(engine.run(answer.draw.feeds))
                    except RuntimeFailure as failure:
                        results.append(failure)
        except RuntimeFailure as failure:
            return [failure] * len(answers)
        return results
