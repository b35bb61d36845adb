"""The module of a model: build or load what a source names.

Weights that no file gives are random, from a fixed seed.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import inspect
import os
import re
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor, nn

from sardonyx.errors import UsageError, reason, suggest
from sardonyx.frontend.installed import missing
from sardonyx.frontend.module_state import replaced, switched
from sardonyx.frontend.running import quietly
from sardonyx.frontend.sources import Dtype, SourceKind, load_function, parse_overrides, parse_source, user_error


@contextlib.contextmanager
def seeded(seed: int) -> Generator[None]:
    """Seed torch's generator, and restore its state on exit."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def build_seeded(build: Callable[[], nn.Module], seed: int, *, filled: bool = True) -> nn.Module:
    """Build a model in eval mode with seeded random weights, or with zeros that take no memory if not `filled`."""
    if not filled:
        try:
            return _unfilled(build).eval()
        except Exception:  # some initializations read what they wrote, and may raise anything if they cannot
            pass  # built in full below, which raises errors of the model itself
    with seeded(seed):
        return randomize(build(), seed)


def _unfilled(build: Callable[[], nn.Module]) -> nn.Module:
    """Build the model with parameters without data, so that initialization costs nothing, then make them zero."""
    originals: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # the parameter is kept so that its id stays unique
    register = nn.Module.register_parameter

    def without_data(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            if id(param) not in originals:
                originals[id(param)] = param, nn.Parameter(param.detach().to("meta"), param.requires_grad)
            param = originals[id(param)][1]
        register(self, name, param)

    with replaced(nn.Module, "register_parameter", without_data):
        model = build()
    zeros: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter.is_meta and id(parameter) not in zeros:
                # zeros that take no memory until written to: numpy gets zeroed pages from the system, torch writes them
                raw: Any = np.zeros(parameter.numel() * parameter.element_size(), np.uint8)
                data = torch.from_numpy(raw)  # pyright: ignore[reportUnknownMemberType]  (torch's own types have gaps)
                data = data.view(parameter.dtype) if parameter.numel() else data.to(parameter.dtype)
                zeros[id(parameter)] = nn.Parameter(data.view(parameter.shape), parameter.requires_grad)
            if parameter.is_meta:
                setattr(module, name, zeros[id(parameter)])
    return model


def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give biases, constant weights and normalization statistics values that affect the output; set eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, buffer in model.named_buffers():
            if key.endswith("running_mean"):
                buffer.normal_(0, 0.1, generator=generator)
            elif key.endswith("running_var"):
                buffer.uniform_(0.5, 1.5, generator=generator)
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_(0, 0.05, generator=generator)
            elif not parameter.any():
                parameter.normal_(0, 0.02, generator=generator)  # some heads start as all zeros
            elif parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(torch.empty_like(parameter).normal_(0, 0.05, generator=generator))  # unit scales
    return model.eval()


def named_state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a module's parameters and buffers with their names, sorted by name."""
    yield from sorted((*module.named_parameters(), *module.named_buffers()), key=lambda pair: pair[0])


def state_sha256(module: nn.Module) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of a module's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in named_state(module):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
        flat = (dense.int_repr() if dense.is_quantized else dense).cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


# Models of the transformers library: with weights from the hub or a folder, or random weights from a config.

_CONFIG_HINT = "write a config or model class, a config.json or its folder: hf-config:BertConfig?num_hidden_layers=2"


def load_pretrained(
    name: str, *, task: str | None, default_task: str | None = None, dtype: Dtype = "keep"
) -> tuple[nn.Module, str | None]:
    """Load a model with its weights in eval mode, from a folder or the hub; return it and its saved element type."""
    library = _transformers()
    is_local = Path(name).expanduser().is_dir()
    location = str(Path(name).expanduser()) if is_local else name
    if not is_local:
        _require_reachable(name)
    hint = (
        "the folder needs a config.json and weights"
        if is_local
        else "check the name and the network, or give a local folder with config.json and weights"
    )
    try:
        with quietly():
            config = library.AutoConfig.from_pretrained(location, trust_remote_code=False)
    except _load_errors() as error:
        raise UsageError(f"cannot load '{name}': {reason(error)}", hint=hint) from error
    kind = _model_class(library, config, task, default_task)
    try:
        with quietly():
            module = kind.from_pretrained(location, dtype="auto" if dtype == "keep" else dtype).eval()
    except _load_errors() as error:
        raise UsageError(f"cannot load '{name}' as {kind.__name__}: {reason(error)}", hint=hint) from error
    saved = getattr(config, "dtype", None)
    return module, None if saved is None else str(saved).removeprefix("torch.")


def build_from_config(
    text: str, *, task: str | None, default_task: str | None = None, seed: int, filled: bool = True
) -> nn.Module:
    """Build a model from `CLASS_OR_FILE_OR_FOLDER[?key=value,…]` with seeded random weights, in eval mode."""
    library = _transformers()
    location, _, assignments = text.partition("?")
    overrides = parse_overrides(assignments)
    path = Path(location).expanduser()
    config_class, kind = (None, None) if path.exists() else _named_classes(library, location)
    try:
        with quietly():
            if config_class is not None:
                config, default = config_class(**overrides), config_class()
            else:
                default = library.AutoConfig.from_pretrained(str(path), trust_remote_code=False)
                config = default.from_dict(_merged(default.to_dict(), overrides))
    except _load_errors() as error:
        accepted = None if config_class is None else f"{config_class.__name__} does not accept these values"
        refused = accepted or f"cannot read a config from {path}"
        raise UsageError(f"{refused}: {reason(error)}", hint=_CONFIG_HINT) from error
    if kind is not None and task is not None:
        raise UsageError(
            f"{kind.__name__} already has a head, so the task {task} has no effect", hint="give one of them"
        )
    kind = kind or _model_class(library, config, task, default_task)
    # Configs silently accept any key, mistyped ones too. A key is known if the default config has it, if the
    # constructor does not store it under this name (it was converted), or if the code of the model reads it.
    for key in overrides:
        if not hasattr(default, key) and hasattr(config, key) and not _reads(kind, key):
            raise UsageError(f"{type(config).__name__} has no '{key}'", hint=suggest(key, default.to_dict()))
    try:
        with quietly():
            return build_seeded(lambda: kind(config), seed, filled=filled)
    except _load_errors() as error:
        raise UsageError(
            f"{kind.__name__} cannot be built from this config: {reason(error)}",
            hint="change the config with hf-config:…?key=value,…",
        ) from error


def _transformers() -> Any:
    try:
        with quietly():
            return importlib.import_module("transformers")
    except ImportError as error:
        raise missing("transformers", "Hugging Face models need") from error


def _load_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that transformers raises for a wrong config, a missing file or a missing package."""
    strict = importlib.import_module("huggingface_hub.errors").StrictDataclassError
    return OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError, strict


def _require_reachable(name: str) -> None:
    """Fail at once, without half a minute of retries, if the hub is unreachable and the model is not cached."""
    hub = importlib.import_module("huggingface_hub")
    if os.environ.keys() & {"HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"}:
        return  # the proxy resolves names
    try:
        if isinstance(hub.try_to_load_from_cache(name, "config.json"), str):
            return
    except hub.errors.HFValidationError as error:
        raise UsageError(
            f"'{name}' is neither a folder nor a Hugging Face id", hint="write hf:owner/name or hf:path/to/folder"
        ) from error
    host = urlsplit(str(hub.constants.ENDPOINT)).hostname or ""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        raise UsageError(
            f"cannot fetch '{name}': {host} is not reachable, and the model is not in the local cache",
            hint="give a local folder (hf:path/to/folder), or random weights with hf-config:",
        ) from error


def _named_classes(library: Any, name: str) -> tuple[Any, Any]:
    """Return the config class and the model class of a name; the model class is None for the name of a config."""
    kind = _attribute(library, name)
    if _is_subclass(kind, library.PretrainedConfig):
        return kind, None
    if _is_subclass(kind, library.PreTrainedModel) and kind.config_class is not None:
        return kind.config_class, kind
    known = [known for known in dir(library) if known.endswith(("Config", "Model"))]
    if name.endswith((".json", "/")) or "/" in name:
        raise UsageError(f"'{name}' does not exist", hint=_CONFIG_HINT)
    raise UsageError(f"transformers has no config or model '{name}'", hint=suggest(name, known) or _CONFIG_HINT)


def _attribute(library: Any, name: str) -> Any:
    """Return an attribute of the library by name; None if it has none or cannot load it."""
    if not name.isidentifier():
        return None
    try:
        with quietly():
            return getattr(library, name, None)
    except (ImportError, RuntimeError):
        return None


def _is_subclass(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _reads(kind: Any, key: str) -> bool:
    """Return whether the code of a model class reads this setting."""
    try:
        code = inspect.getsource(importlib.import_module(kind.__module__))
    except (OSError, TypeError):
        return False
    return re.search(rf"config\.{key}\b|config, [\"']{key}[\"']", code) is not None


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merged(cast("Any", below), cast("Any", value)) if both else value
    return merged


def _model_class(library: Any, config: Any, task: str | None, default_task: str | None) -> Any:
    """Return the model class: the task's, otherwise the one the config was saved from, otherwise the default task's."""
    named = [_attribute(library, name) for name in getattr(config, "architectures", None) or ()]
    saved = [kind for kind in named if kind is not None]
    if task is None and saved:
        return saved[0]
    task = task or default_task
    candidates = [_attribute(library, "AutoModel")] if task is None else _task_classes(library, task)
    for auto in candidates:
        mapping = getattr(auto, "_model_mapping", None)
        if mapping is None:
            return auto
        if type(config) in mapping:
            choice = mapping[type(config)]
            choices = list(cast("tuple[Any, ...]", choice)) if isinstance(choice, tuple) else [choice]
            return next((kind for kind in choices if kind in saved), choices[0])
    raise UsageError(
        f"{type(config).__name__} has no model for {task or 'the bare model'}",
        hint='choose another `task`, or name the model class: `task="BertForMaskedLM"`',
    )


def _task_classes(library: Any, task: str) -> list[Any]:
    """Return the classes of a task: a class of that name, otherwise those of transformers' task table."""
    direct = _attribute(library, task)
    if hasattr(direct, "_model_mapping") or _is_subclass(direct, library.PreTrainedModel):
        return [direct]
    with quietly():
        pipelines = importlib.import_module("transformers.pipelines")
    table, aliases = pipelines.SUPPORTED_TASKS, pipelines.TASK_ALIASES
    name = aliases.get(task, task)
    if name not in table:
        raise UsageError(f"there is no task '{task}'", hint=suggest(task, [*table, *aliases]))
    return list(table[name]["pt"])


_FACTORY = "return a torch.nn.Module, or (module, inputs) where inputs is a tensor, a tuple of them, or a dict by name"
_Module = TypeVar("_Module", bound=nn.Module)


def call_factory(
    path: Path, name: str, *, seed: int = 0
) -> tuple[nn.Module, tuple[Any, ...] | None, dict[str, Any] | None]:
    """Call a function of the user's file: return its module, and its example inputs if it returns some.

    Torch's generator is seeded while the file is loaded and the factory runs. A factory with a parameter `seed` gets
    the seed as well.
    """
    with seeded(seed):
        factory = load_function(path, name)
        try:
            parameter = inspect.signature(factory).parameters.get("seed")
        except ValueError:  # a builtin without a signature
            parameter = None
        by_name = parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        try:
            result: Any = factory(seed=seed) if by_name else factory()
        except Exception as error:  # the user's code may raise anything; it is reported
            raise user_error(path, f"{name}() failed", error) from error
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", result) if isinstance(result, tuple) else (result, None)
    if len(parts) != 2:
        raise UsageError(f"{path}:{name} returned {len(parts)} values", hint=_FACTORY)
    module, inputs = parts
    if not isinstance(module, nn.Module):
        raise UsageError(f"{path}:{name} returned {type(module).__name__}, not a module", hint=_FACTORY)
    args, kwargs = _example(inputs, f"{path}:{name}")
    return module, args, kwargs


def _example(inputs: Any, where: str) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    if inputs is None:
        return None, None
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in cast("Mapping[Any, Any]", inputs)):
        return (), dict(cast("Mapping[str, Any]", inputs))
    if isinstance(inputs, (tuple, list)):
        return tuple(cast("tuple[Tensor, ...]", inputs)), {}
    raise UsageError(f"{where} returned {type(cast('object', inputs)).__name__} as example inputs", hint=_FACTORY)


def build_from_package(kind: SourceKind, name: str, *, seed: int, filled: bool = True) -> nn.Module:
    """Build a model of torchvision or timm with seeded random weights."""
    package = _package(kind)
    models = package.models if kind is SourceKind.TORCHVISION else package
    if name not in (known := models.list_models()):
        raise UsageError(f"{kind} has no model '{name}'", hint=suggest(name, known))
    build, no_weights = models.create_model if kind is SourceKind.TIMM else models.get_model, {"pretrained": False}
    if kind is SourceKind.TORCHVISION:
        options = inspect.signature(models.get_model_builder(name)).parameters
        no_weights = {option: None for option in ("weights", "weights_backbone") if option in options}
    with quietly():
        return build_seeded(lambda: build(name, **no_weights), seed, filled=filled)


def _package(name: str) -> Any:
    try:
        with quietly():
            return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name}: models need {name}, which is not installed", hint=f"pip install {name}") from error
    except RuntimeError as error:  # its compiled operators were built for another torch
        raise UsageError(
            f"{name} does not load with this torch: {reason(error)}", hint=f"install the {name} that matches torch"
        ) from error


class Resolved(Struct, frozen=True):
    """A module and the example inputs of its factory; None if they are to be derived."""

    module: nn.Module
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None
    label: str
    dtype: Dtype = "keep"  # the type it was converted to; its example inputs are converted too
    notes: tuple[str, ...] = ()
    was_training: bool = False  # whether the module was in training mode as it was given


def resolve(
    source: str,
    *,
    task: str | None = None,
    default_task: str | None = None,
    seed: int = 0,
    filled: bool = True,
    dtype: Dtype | None = "keep",
    training: bool = False,
) -> Resolved:
    """Return the module of SOURCE, in eval mode.

    Args:
        source: `hf:…`, `hf-config:…`, `torchvision:…`, `timm:…` or `file.py:factory`.
        task: Selects the head of a Hugging Face model: a task (`text-classification`), or a class name.
        default_task: The task if `task` is None and neither the source nor its config names a model class.
        seed: Seed of random weights; torch is seeded with it while a factory runs.
        filled: False if only sizes matter: random weights are then zeros that take no time and no memory.
        dtype: Type of the floating-point weights and example inputs. If None, the default of an export.
        training: Leave the module of a factory in the mode that it is in.
    """
    parsed = parse_source(source, task=task)
    export_dtype = parsed.export_dtype if dtype is None else dtype
    if parsed.kind is SourceKind.PRETRAINED:
        module, saved = load_pretrained(parsed.name, task=task, default_task=default_task, dtype=export_dtype)
        note = f"the checkpoint is {saved}, exported in {export_dtype}; dtype keep exports it in {saved}"
        notes = (note,) if dtype is None and saved not in (None, export_dtype) else ()
        return Resolved(module, None, None, source, export_dtype, notes)
    if parsed.file is not None:
        module, args, kwargs = call_factory(parsed.file, parsed.name, seed=seed)
        was_training = module.training
        module = converted(module if training else module.eval(), export_dtype)
        return Resolved(module, args, kwargs, source, export_dtype, was_training=was_training)
    if parsed.kind is SourceKind.CONFIG:
        with default_dtype(export_dtype):
            module = build_from_config(parsed.name, task=task, default_task=default_task, seed=seed, filled=filled)
        return Resolved(module, None, None, source, export_dtype)
    module = build_from_package(parsed.kind, parsed.name, seed=seed, filled=filled)
    return Resolved(converted(module, export_dtype), None, None, source, export_dtype)


def from_module(module: nn.Module, dtype: Dtype | None) -> Resolved:
    """Wrap a module of the caller; a copy of it if another type is requested."""
    dtype = dtype or "keep"
    copied = module if dtype == "keep" else converted(copy.deepcopy(module), dtype)
    return Resolved(copied, None, None, type(module).__name__, dtype, was_training=module.training)


def torch_dtype(dtype: Dtype) -> torch.dtype | None:
    """Return the type of this name; None for "keep"."""
    return None if dtype == "keep" else getattr(torch, dtype)


def converted(module: _Module, dtype: Dtype) -> _Module:
    """Convert floating-point parameters and buffers to this type in place, and return the module."""
    kind = torch_dtype(dtype)
    return module if kind is None else module.to(kind)


def default_dtype(dtype: Dtype) -> contextlib.AbstractContextManager[None]:
    """Build modules in this type, except for parts that specify their own."""
    default = torch.get_default_dtype()
    return switched(torch.get_default_dtype, torch.set_default_dtype, torch_dtype(dtype) or default)
