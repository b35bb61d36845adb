"""Example inputs from the module itself: its signature, documentation and config suggest some, and running it decides.

What the module needs comes first; then optional inputs are added that make more of it run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sardonyx.source.inputs.optional import Extension
from sardonyx.source.inputs.search import Search
from sardonyx.source.inputs.specs import Spec
from sardonyx.source.running import Probe, probe


@dataclass(frozen=True, slots=True)
class Example:
    """Arguments that the module accepts, and what is worth knowing about how they were found."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    notes: tuple[str, ...] = ()
    again: Callable[[int], Example] | None = None  # other values by seed, where inputs depend on each other

    def variants(self, module: nn.Module, seeds: Iterable[int]) -> list[Example]:
        """Other values of the same inputs that the module accepts; none where any values will do."""
        made = [self.again(seed) for seed in seeds] if self.again is not None else []
        return [each for each in made if probe(module, each.args, each.kwargs) is None]


def derive(
    module: nn.Module,
    *,
    given: Mapping[str, Spec | Tensor] | None = None,
    seed: int = 0,
    batch: int = 2,
    probe: Probe = probe,
) -> Example:
    """Example inputs that the module runs on.

    Args:
        module: anything with a forward; it is run in eval mode and left as it was.
        given: inputs that are fixed, by parameter name: their values, or a specification to generate them by;
            no optional inputs are added to them.
        seed: of the generated values.
        batch: how many items a batch has, where the module lets us choose.
        probe: tries the module; the exception it answers with, if any.

    Raises:
        UsageError: no input was found that the module accepts, or it refuses what was given.
    """
    search = Search(module, dict(given or {}), seed, batch, probe)
    accepted, notes = search.run(), ()
    if not given:
        accepted, notes = Extension(search, accepted).run()

    def again(seed: int) -> Example:
        return Example(*search.arguments(accepted.draft, seed))

    return Example(
        accepted.args,
        accepted.kwargs,
        (*search.notes(accepted), *notes),
        again if accepted.depends else None,
    )
