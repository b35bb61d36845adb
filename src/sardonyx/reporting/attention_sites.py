"""The attention blocks of a model, grouped over equal layers, with their costs. The page and the terminal use both."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sardonyx.records.analysis import Form
from sardonyx.records.profile import ProfiledModel
from sardonyx.records.run import AttentionForm, AttentionSite
from sardonyx.reporting import formatting
from sardonyx.reporting.name_groups import places

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a step of a path that is a number


class SiteGroup(Struct, frozen=True):
    """Attention blocks that differ only in the number of their layer."""

    label: str  # their modules, the numbers as a range
    path: str  # the module, or the innermost one that contains all of them
    sites: tuple[AttentionSite, ...]

    @property
    def example(self) -> AttentionSite:
        """The first of them."""
        return self.sites[0]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of all blocks, each once."""
        return tuple(dict.fromkeys(site.module for site in self.sites))


class Spent(Struct, frozen=True):
    """Time that a file spends on something per run."""

    milliseconds: float
    share: float  # of all time in kernels, 0 to 1


class Moved(Struct, frozen=True):
    """Memory costs of the modules with attention in one file."""

    bytes_moved: int
    share: float  # of all bytes moved, 0 to 1
    alive: int  # most bytes of activations alive while one of their operations runs
    of_peak: float  # that, as a share of the peak


def groups(sites: Iterable[AttentionSite]) -> list[SiteGroup]:
    """Return all blocks in the order they run; equal ones whose paths differ only in numbers are one group."""
    by_traits: dict[tuple[object, ...], list[AttentionSite]] = defaultdict(list)
    for site in sites:
        by_traits[_NUMBER.sub("0", site.module), *_traits(site)].append(site)
    result: list[SiteGroup] = []
    for members in by_traits.values():
        (place,) = places({site.module: 1 for site in members})
        result.append(SiteGroup(place.label, place.path, tuple(members)))
    return result


def _traits(site: AttentionSite) -> tuple[object, ...]:
    """Return everything that is shown of a block."""
    forms = [None if form is None else (form.operator, len(form.nodes)) for form in (site.before, site.after)]
    return (replace(site, module="", before=None, after=None), *forms)


def heads(site: AttentionSite) -> str:
    """Return the heads and their size: 12 × 64, or 32 × 64, keys and values 4."""
    if site.heads is None and site.head_size is None:
        return "unknown"
    shape = " × ".join("?" if number is None else formatting.count(number) for number in (site.heads, site.head_size))
    shared = site.key_value_heads
    return shape if shared in (None, site.heads) else f"{shape}, keys and values {formatting.count(shared)}"


def mask(site: AttentionSite) -> str:
    """Return the mask, and whether the block has a cache or attends to another sequence."""
    more = [text for text, holds in (("with a cache", site.cached), ("cross", site.cross)) if holds]
    return ", ".join((formatting.one_line(site.mask), *more))


def form(attention: AttentionForm | None) -> str:
    """Return the operator, or the number of nodes that the block is decomposed into."""
    if attention is None:
        return "removed"
    return formatting.name(attention.operator) or f"decomposed ({formatting.plural(len(attention.nodes), 'node')})"


def sentence(sites: Sequence[AttentionSite]) -> str:
    """Return how many attention blocks there are and what became of them."""
    if not sites:
        return "No attention in this model"
    counts = {
        "fused into one operator": sum(map(_became_operator, sites)),
        "one operator already": sum(map(_was_operator, sites)),
        "still decomposed": sum(map(_is_decomposed, sites)),
        "removed": sum(site.after is None for site in sites),
    }
    total = len(sites)
    clauses = [f"{_part(number, total)}{what}" for what, number in counts.items() if number]
    return f"{formatting.plural(total, 'attention block')}{', ' if len(clauses) == 1 else ': '}{', '.join(clauses)}"


def _part(number: int, total: int) -> str:
    return "" if total == 1 else "all " if number == total else f"{formatting.count(number)} "


def _was_operator(site: AttentionSite) -> bool:
    return bool(site.before and site.before.operator and site.after and site.after.operator)


def _became_operator(site: AttentionSite) -> bool:
    return bool(site.after and site.after.operator) and not _was_operator(site)


def _is_decomposed(site: AttentionSite) -> bool:
    return site.after is not None and not site.after.operator


def spent(forms: Iterable[AttentionForm | None], model: ProfiledModel) -> Spent | None:
    """Return the time of all kernels that run nodes of these forms, or None if no kernel lists its nodes."""
    nodes = {node for form in forms if form is not None for node in form.nodes}
    kernels = [kernel.milliseconds for kernel in model.kernels if not nodes.isdisjoint(kernel.nodes)]
    return Spent(sum(kernels), _share(sum(kernels), model.kernel_ms)) if kernels else None


def spent_within(modules: Iterable[str], model: ProfiledModel) -> Spent | None:
    """Return the time of all kernels that the modules own themselves, or None if they own none."""
    paths = set(modules)
    own = [module.self_ms for module in model.modules if module.path in paths and module.kernels]
    return Spent(sum(own), _share(sum(own), model.kernel_ms)) if own else None


def moved(modules: Iterable[str], analysed: Form) -> Moved | None:
    """Return what the modules cost by themselves, or None if the analysis knows none of them."""
    paths = set(modules)
    own = [module for module in analysed.modules if module.path in paths]
    if not own:
        return None
    total, alive = sum(module.bytes_moved for module in own), max(module.peak for module in own)
    peak = analysed.memory.peak.bytes
    return Moved(total, _share(total, analysed.work.bytes_moved), alive, _share(alive, peak))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
