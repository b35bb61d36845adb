"""Where the time goes as a picture: the module tree of every file, each bar as wide as its time."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.profile_record import Profile, ProfiledModel
from sardonyx.rendering import words
from sardonyx.rendering.pictures.icicle import Amount, Panel, icicle
from sardonyx.rendering.profile_figures import first_kernels, kinds, ms, share


def icicle_svg(found: Profile, title: str) -> str:
    """The picture, as the text of an SVG file."""
    about = "Time in kernels by module; what a module spends itself is where nothing stands under it"
    return icicle([_panel(model) for model in found.models], title, about).file()


def _panel(model: ProfiledModel) -> Panel:
    rest = model.kernel_ms - model.attributed_ms
    return Panel(
        model.label,
        f"{ms(model.kernel_ms)} ms in kernels, {share(model.attributed)} of it with a module",
        list(_amounts(model)),
        model.kernel_ms,
        rest,
        f"not attributed: {ms(rest)} ms ({share(rest / model.kernel_ms if model.kernel_ms else 0.0)})",
    )


def _amounts(model: ProfiledModel) -> Iterator[Amount]:
    """Modules in the order in which they first run."""
    first, known = first_kernels(model), kinds(model)
    for module in sorted(model.modules, key=lambda each: first.get(each.path, len(first))):
        kind = known[module.path]
        part = share(module.total_ms / model.kernel_ms if model.kernel_ms else 0.0)
        times = f"{ms(module.total_ms)} ms ({part}), {ms(module.self_ms)} ms of it itself"
        hover = f"{module.path or '(model)'} {kind}: {times}, {words.plural(module.kernels, 'kernel')}"
        yield Amount(module.path, kind, module.self_ms, module.total_ms, hover)
