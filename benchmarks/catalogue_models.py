"""The models of the catalogue: transformers' types, torchvision's and timm's families, from their own registries."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import zoo
from sardonyx.frontend.models import resolve
from small_configs import smaller

MOST_PARAMETERS = 60_000_000
PICTURE = 128  # the shorter side, where the model resizes


class Unbuildable(Exception):
    """No small model of this type can be built."""


@dataclass(frozen=True)
class Subject:
    """One model, by the library it comes from and its name there."""

    library: str  # "transformers", "timm", "torchvision"
    name: str

    @property
    def key(self) -> str:
        """A name for files."""
        return f"{self.library}.{re.sub(r'[^A-Za-z0-9_-]', '_', self.name)}"


def libraries() -> tuple[Any, Any, Any]:
    """transformers, timm and torchvision, in the order in which they can be imported."""
    torchvision = zoo.torchvision()
    import timm

    return zoo.transformers(), timm, torchvision


def subjects() -> list[Subject]:
    """All of them, in an order that makes every beginning of the list a sample of the whole."""
    _, timm, torchvision = libraries()
    everything = [
        *(Subject("transformers", name) for name in _types()),
        *(Subject("timm", name) for name in timm.list_modules() if _members(name)),
        *(Subject("torchvision", name) for name in _torchvision_families(torchvision)),
    ]
    return sorted(everything, key=lambda subject: hashlib.sha256(subject.key.encode()).hexdigest())


# transformers


@functools.cache
def _mappings() -> tuple[dict[str, str], dict[str, list[str]]]:
    """The module of every model type, and its model classes, the bare model first."""
    from transformers.models.auto import configuration_auto, modeling_auto

    tables = [getattr(modeling_auto, name) for name in dir(modeling_auto) if re.match(r"MODEL_.*_NAMES$", name)]
    tables.sort(key=lambda table: table is not modeling_auto.MODEL_MAPPING_NAMES)
    classes: dict[str, list[str]] = defaultdict(list)
    for table in tables:
        for name, kind in table.items():
            classes[name].extend([kind] if isinstance(kind, str) else kind)
    types = configuration_auto.CONFIG_MAPPING_NAMES
    modules = {name: configuration_auto.model_type_to_module_name(name) for name in types}
    return modules, classes


def _types() -> list[str]:
    """One model type for every package of transformers.models: the one that is named as the package, or the first."""
    modules, classes = _mappings()
    packages: dict[str, list[str]] = defaultdict(list)
    for name, module in modules.items():
        if name in classes:
            packages[module].append(name)
    return [min(names, key=lambda name: name.replace("-", "_") != module) for module, names in packages.items()]


def _transformers_module(name: str, folder: Path) -> Iterator[tuple[torch.nn.Module, str, str]]:
    import transformers
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[name]
    heads = _mappings()[1][name]
    head = next((head for head in heads if getattr(transformers, head).config_class is kind), heads[0])
    built: list[torch.nn.Module] = []
    source = f"hf-config:{folder}"

    def accepts(config: Any) -> bool:
        config.save_pretrained(folder)
        if _parameters(getattr(transformers, head), config, source) > MOST_PARAMETERS:
            return False
        built[:] = [resolve(source, task=head).module]
        return True

    for _, cut in smaller(kind, transformers.PreTrainedConfig, accepts):
        yield built[0], f"{source} --task {head}", str(cut)


def _parameters(head: Any, config: Any, source: str) -> int:
    """How many parameters a model has, counted without their data: a config at fault is found before they take time."""
    try:
        with torch.device("meta"):
            module = head(config)
    except Exception as error:
        if "meta" not in str(error):
            raise
        module = resolve(source, task=head.__name__, filled=False).module  # its initialisation reads what it wrote
    return sum(parameter.numel() for parameter in module.parameters())


# torchvision and timm


def _torchvision_families(torchvision: Any) -> dict[str, list[str]]:
    families: dict[str, list[str]] = defaultdict(list)
    for name in torchvision.models.list_models():
        families[torchvision.models.get_model_builder(name).__module__.removeprefix("torchvision.models.")].append(name)
    return families


def _torchvision_member(family: str) -> str:
    """The member with the fewest parameters, as its published weights say."""
    torchvision = zoo.torchvision()

    def parameters(name: str) -> int:
        weights = list(torchvision.models.get_model_weights(name))
        return min((each.meta["num_params"] for each in weights), default=10**12)

    return min(_torchvision_families(torchvision)[family], key=lambda name: (parameters(name), name))


def _members(module: str) -> list[str]:
    import timm

    return timm.list_models(module=module)


_SMALL = re.compile(r"atto|zepto|femto|pico|nano|tiny|mini|micro|lite|small|xxs|xs|_s(?![a-z])|_t(?![a-z])|_0|b0|18")
_SHORT_LIST = 5


def _timm_member(module: str) -> str:
    """The member with the fewest parameters among those whose names promise few, counted without building weights."""
    import timm

    def promise(name: str) -> tuple[int, int, str]:
        digits = [int(number) for number in re.findall(r"\d+", name)]
        return -len(_SMALL.findall(name)), sum(digits), name

    def parameters(name: str) -> int:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
        return sum(parameter.numel() for parameter in model.parameters())

    names = sorted((name for name in _members(module) if not name.startswith("test_")), key=promise)[:_SHORT_LIST]
    return min(names or _members(module), key=parameters)


def modules(subject: Subject, folder: Path) -> Iterator[tuple[torch.nn.Module, str, str]]:
    """The model, how the command line names it, and how it was made small; then less small ones, where there are."""
    if subject.library == "transformers":
        yield from _transformers_module(subject.name, folder)
        return
    member = _timm_member(subject.name) if subject.library == "timm" else _torchvision_member(subject.name)
    source = f"{subject.library}:{member}"
    module = resolve(source).module
    yield module, source, "as published" + _with_small_pictures(module)


def _with_small_pictures(module: torch.nn.Module) -> str:
    """Where a model resizes its pictures itself, to a size that only takes time, they become small; says so."""
    resizing: Any = getattr(module, "transform", None)
    if getattr(resizing, "min_size", None) is None or getattr(resizing, "fixed_size", None) is not None:
        return ""
    resizing.min_size, resizing.max_size = (PICTURE,), 2 * PICTURE
    return f", pictures of {PICTURE}"
