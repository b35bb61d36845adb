"""What of the places of attention stands side by side: equal ones of many layers as one line, with what they cost.

The page and the terminal draw the same lines, so that no view can say something else than another.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from sardonyx.records.analysis import Form
from sardonyx.records.profile import ProfiledModel
from sardonyx.records.run import AttentionForm, AttentionSite
from sardonyx.reporting import formatting
from sardonyx.reporting.module_paths import places

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a step of a path that is a number


@dataclass(frozen=True, slots=True)
class Line:
    """Places of attention that are alike but for the number of their layer."""

    label: str  # where they are; not yet fit to be shown
    path: str  # the module, or what all of them lie in
    sites: tuple[AttentionSite, ...]

    @property
    def one(self) -> AttentionSite:
        """Any of them."""
        return self.sites[0]

    @property
    def modules(self) -> tuple[str, ...]:
        """Of all of them, each once."""
        return tuple(dict.fromkeys(site.module for site in self.sites))


@dataclass(frozen=True, slots=True)
class Spent:
    """Time that one file spends on something, a run."""

    milliseconds: float
    share: float  # of all time in kernels, 0 to 1


@dataclass(frozen=True, slots=True)
class Moved:
    """What one file's modules that attend cost in memory."""

    bytes_moved: int
    share: float  # of all bytes moved, 0 to 1
    alive: int  # most bytes of activations while one of their operations runs
    of_peak: float  # that, as a share of the peak


def lines(sites: Iterable[AttentionSite]) -> list[Line]:
    """All places, in the order they run; equal ones that differ in the numbers of their path are one line."""
    alike: dict[tuple[object, ...], list[AttentionSite]] = defaultdict(list)
    for site in sites:
        alike[_NUMBER.sub("0", site.module), *_traits(site)].append(site)
    found: list[Line] = []
    for group in alike.values():
        (place,) = places({site.module: 1 for site in group})
        found.append(Line(place.label, place.path, tuple(group)))
    return found


def _traits(site: AttentionSite) -> tuple[object, ...]:
    """All that a line says of a place."""
    forms = [None if form is None else (form.operator, len(form.nodes)) for form in (site.before, site.after)]
    return (replace(site, module="", before=None, after=None), *forms)


def heads(site: AttentionSite) -> str:
    """12 × 64; 32 × 64, keys and values 4."""
    if site.heads is None and site.head_size is None:
        return "not said"
    known = " × ".join("?" if number is None else formatting.count(number) for number in (site.heads, site.head_size))
    shared = site.key_value_heads
    return known if shared in (None, site.heads) else f"{known}, keys and values {formatting.count(shared)}"


def mask(site: AttentionSite) -> str:
    """What hides what, and where keys come from where that is not the same place."""
    more = [text for text, holds in (("with a cache", site.cached), ("cross", site.cross)) if holds]
    return ", ".join((formatting.one_line(site.mask), *more))


def form(found: AttentionForm | None) -> str:
    """The operator, or how many nodes spell it out."""
    if found is None:
        return "gone"
    return formatting.name(found.operator) or f"{formatting.plural(len(found.nodes), 'node')} in parts"


def sentence(sites: Sequence[AttentionSite]) -> str:
    """How many there are and what became of them."""
    if not sites:
        return "No attention in this model"
    was, fused, parts = (sum(map(asks, sites)) for asks in (_was_operator, _became_operator, _in_parts))
    gone = sum(site.after is None for site in sites)
    said = [
        (fused, f"{_all(fused, sites)} became one operator"),
        (was, f"{_all(was, sites)} were one operator already"),
        (parts, f"{_all(parts, sites)} are spelled out in parts"),
        (gone, f"{_all(gone, sites)} are gone"),
    ]
    clauses = "; ".join(text if number > 1 else text.replace(" are ", " is ").replace(" were ", " was ")
                        for number, text in said if number)  # fmt: skip
    return f"The model attends in {formatting.plural(len(sites), 'place')}: {clauses}"


def _all(number: int, sites: Sequence[AttentionSite]) -> str:
    return "all of them" if number == len(sites) > 1 else "it" if len(sites) == 1 else formatting.count(number)


def _was_operator(site: AttentionSite) -> bool:
    return bool(site.before and site.before.operator and site.after and site.after.operator)


def _became_operator(site: AttentionSite) -> bool:
    return bool(site.after and site.after.operator) and not _was_operator(site)


def _in_parts(site: AttentionSite) -> bool:
    return site.after is not None and not site.after.operator


def spent(forms: Iterable[AttentionForm | None], model: ProfiledModel) -> Spent | None:
    """The time of all kernels that do work of these forms; None where no kernel can be told by nodes."""
    nodes = {node for each in forms if each is not None for node in each.nodes}
    kernels = [kernel.milliseconds for kernel in model.kernels if not nodes.isdisjoint(kernel.nodes)]
    return Spent(sum(kernels), _share(sum(kernels), model.kernel_ms)) if kernels else None


def spent_within(modules: Iterable[str], model: ProfiledModel) -> Spent | None:
    """The time of all kernels that modules own, those below them apart; None where they own none."""
    wanted = set(modules)
    own = [each.self_ms for each in model.modules if each.path in wanted and each.kernels]
    return Spent(sum(own), _share(sum(own), model.kernel_ms)) if own else None


def moved(modules: Iterable[str], analysed: Form) -> Moved | None:
    """What modules cost by themselves; None where the analysis knows none of them."""
    wanted = set(modules)
    own = [each for each in analysed.modules if each.path in wanted]
    if not own:
        return None
    total, alive = sum(each.bytes_moved for each in own), max(each.peak for each in own)
    peak = analysed.memory.peak.bytes
    return Moved(total, _share(total, analysed.work.bytes_moved), alive, _share(alive, peak))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
