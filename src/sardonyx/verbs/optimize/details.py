"""What only reports tell about the graphs of a run: the architecture, the attention blocks, and the wiring.

It takes as long as a fifth of the passes, so it is computed when a record is written or shown in full.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
from msgspec import Struct

from sardonyx.common import gc_pause
from sardonyx.ir.facts import Facts
from sardonyx.records.run import ArchitectureGuess, AttentionSite, Refusal, RolledBack, Wiring
from sardonyx.verbs.analyze.attention_sites import find_sites, pair_sites
from sardonyx.verbs.analyze.fingerprint import fingerprint
from sardonyx.verbs.optimize.run_tables import wiring


class RunDetails(Struct, frozen=True, eq=False):
    """The fields of a Run that only reports read."""

    fingerprint: ArchitectureGuess
    wiring_before: Wiring
    wiring_after: Wiring
    attention: tuple[AttentionSite, ...]


def describe(before: Facts, after: Facts, refusals: Iterable[Refusal], rolled_back: Iterable[RolledBack]) -> RunDetails:
    """Describe a source and its result, whose nodes have origins."""
    with gc_pause.paused():
        return RunDetails(
            fingerprint=guess_architecture(after.model),
            wiring_before=wiring(before.model, before),
            wiring_after=wiring(after.model, after),
            attention=pair_sites(find_sites(before), find_sites(after), refusals, rolled_back),
        )


def guess_architecture(result: ir.Model) -> ArchitectureGuess:
    """Guess the architecture from the result, which computes the same as the source with far fewer nodes."""
    guess = fingerprint(result)
    return ArchitectureGuess(guess.family.value, guess.confidence, guess.evidence)
