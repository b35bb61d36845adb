"""Run the same two models in another runtime and attribute a difference to the runtime or to the rewrite.

If the runtime differs from the first one on the reference alone, the runtime is the cause. If it agrees there and the
two models differ in it, the rewrite is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.errors import RuntimeFailure
from sardonyx.records.run import RuntimeCheck
from sardonyx.runtime import Value
from sardonyx.runtime.engines import Runtime
from sardonyx.verification.output_comparison import OutputComparer, Precise
from sardonyx.verification.reference import Answer, work_of
from sardonyx.verification.subject import Subject

Result = list[Value] | RuntimeFailure


class OtherRuntime:
    """A further runtime to compare the models in; the reference is run in it once.

    Args:
        runtime: The runtime.
        reference: The reference model.
        threads: Threads of the runtime.
        seconds: About how long all runs of one model may take, counted in operations.
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
        comparer: Callable[[], OutputComparer],
        precise: Callable[[int], Precise | None],
    ) -> RuntimeCheck:
        """Compare reference and candidate on the trials that the first runtime ran.

        Args:
            candidate: The model to compare.
            answers: The reference's outputs in the first runtime.
            comparer: Returns an `OutputComparer` without results.
            precise: Returns the outputs of the reference in double precision in the trial with this number.
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
            known = lambda number=number: precise(number)  # noqa: E731 (bound to this trial)
            differences = comparer().compare(answer.outputs, own, known)
            if differences:
                runtime += [f"{place}: {line}" for line in differences]
            elif isinstance(other, RuntimeFailure):
                rewrite.append(f"{place}: it runs the reference but not the other model: {other.message}")
            else:
                compared += 1
                rewrite += [f"{place}: {line}" for line in comparer().compare(own, other, known)]
        left = len(answers) - len(theirs)
        reason = failed[0] if failed else f"{left} trials did not fit the budget for work" if left else ""
        return RuntimeCheck(self._name, compared, tuple(rewrite), tuple(runtime), reason)

    def _results(self, subject: Subject, answers: Sequence[Answer]) -> list[Result]:
        """Run as many trials as the budget allows; a model that does not load fails in all of them."""
        results, work = list[Result](), 0
        try:
            with subject.session(self._runtime, threads=self._threads, seconds=3 * self._seconds) as engine:
                self._name = engine.name
                for answer in answers:
                    work += answer.work
                    if results and work > work_of(self._seconds, self._runtime):
                        break
                    try:
                        results.append(engine.run(answer.inputs.feeds))
                    except RuntimeFailure as failure:
                        results.append(failure)
        except RuntimeFailure as failure:
            return [failure] * len(answers)
        return results
