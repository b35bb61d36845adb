"""The loss of every group of modules, measured: each is quantized alone, and the model runs on the samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import UsageError, VerificationFailed
from sardonyx.optimizer import run_tables
from sardonyx.quantization.answers import Answers
from sardonyx.quantization.groups import Group
from sardonyx.quantization.job import Job, NothingQuantized
from sardonyx.quantization.loss import measure
from sardonyx.quantization.precisions import Assignment, Plan, Precision
from sardonyx.quantization.recipe import Selection
from sardonyx.records.progress import Progress
from sardonyx.records.quantization import Scores
from sardonyx.verification.subject import Subject

_FEW = 8  # samples for a single group: its loss orders the search, and is not compared with the budget


class Trial(Struct, frozen=True):
    """What was measured of the model of a plan."""

    scores: Scores
    bytes: int  # of constants
    expected_top1: float | None  # of other samples: see `loss`


class Single(Struct, frozen=True):
    """One group in one precision: its trial, or why there is none."""

    group: int
    precision: Precision
    trial: Trial | None
    failure: str | None = None


class Trials:
    """Builds the models of plans and measures their loss on the samples to choose with, one at a time."""

    def __init__(
        self,
        job: Job,
        selection: Selection,
        answers: Answers,
        ranked: frozenset[str] | None,
        *,
        threads: int | None,
        seed: int,
    ) -> None:
        self.job = job
        self._selection = selection
        self._answers, self._ranked = answers, ranked
        self._threads, self._seed = threads, seed
        self.models = 0  # whose loss was measured

    def plan(self, precisions: Mapping[Precision, Sequence[Group]], between: Sequence[str] = ()) -> Plan:
        """Return the plan that assigns precisions to groups.

        Args:
            precisions: The groups of each precision.
            between: Modules of no group; they follow those that are in float16, where this saves casts.
        """

        def owners(precision: Precision, groups: Sequence[Group]) -> list[str]:
            inner = [module for group in groups for module in group.modules]
            return [*inner, *between] if precision == "fp16" else inner

        return tuple(
            Assignment(precision, self._selection.of_owners(owners(precision, groups)))
            for precision, groups in precisions.items()
            if groups
        )

    def model(self, plan: Plan) -> ir.Model:
        """Return the model of a plan.

        Raises:
            NothingQuantized: No product can be quantized.
        """
        return self.job.quantized(plan)[0].model

    def measured(self, plan: Plan, samples: int | None = None) -> Trial:
        """Build the model of a plan and measure its loss, on so many samples or all.

        Raises:
            UsageError: No product can be quantized, or the metric fails.
            VerificationFailed: The model has NaN or infinities that the source does not have.
        """
        self.models += 1
        candidate, _ = self.job.quantized(plan)
        measured = measure(Subject(candidate.model), self._answers, self._threads, samples)
        scores = measured.scores(self._seed, self._ranked)
        if scores is None:
            raise UsageError(
                "no output can be compared: all are empty, zero or texts", hint="without a loss, nothing can be chosen"
            )
        return Trial(
            scores, run_tables.snapshot(candidate.facts).counts.bytes, measured.expected_agreement(self._ranked)
        )

    def singles(self, groups: Sequence[Group], precisions: Sequence[Precision], tell: Progress) -> Iterator[Single]:
        """Yield every group in every precision, with all other modules in float32."""
        total = len(groups) * len(precisions)
        for number, group in enumerate(groups):
            known: dict[Trial, Precision] = {}
            for at, precision in enumerate(precisions):
                tell(f"measuring module {number + 1} of {len(groups)}", (number * len(precisions) + at) / total)
                try:
                    trial = self.measured(self.plan({precision: (group,)}), _FEW)
                except VerificationFailed:
                    yield Single(number, precision, None, "NaN or infinities")
                except NothingQuantized:
                    yield Single(number, precision, None, "no such form")
                else:
                    first = known.setdefault(trial, precision)  # tables have the same form in several precisions
                    yield Single(number, precision, trial, None if first == precision else f"as {first}")
