"""A decoder that is exported for generation: its example inputs, and the files that runtimes read beside it.

The example continues a past: tokens, mask and positions. The files are `genai_config.json`, configs and the tokenizer.
The fields of `genai_config.json` are those of onnxruntime-genai's generic `decoder` type. Cache sizes come from the
exported graph, the rest from the module's configs.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from sardonyx.errors import UsageError, reason
from sardonyx.frontend.inputs import dynamic
from sardonyx.frontend.inputs.examples import Example
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.inputs.past import PAST, SWITCH, with_past
from sardonyx.frontend.quiet import quietly
from sardonyx.frontend.running import run
from sardonyx.frontend.tracing.structure import window
from sardonyx.ir.io.decoder_folder import CONFIG
from sardonyx.records.export import ExampleInput

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
_ROWS, _TOKENS = 2, 5


def decoder_example(module: nn.Module, seed: int) -> Example:
    """Return token ids, and positions if the module takes them, after a past that the module has computed.

    Raises:
        UsageError: If the module cannot generate, or only together with an encoder.
    """
    kind, parameters = type(module).__name__, inspect.signature(module.forward).parameters
    if not callable(getattr(module, "generate", None)) or IDS not in parameters:
        raise UsageError(
            f"{kind} does not generate tokens",
            hint='choose a decoder with its head (`task="text-generation"`), or leave out `for_generation`',
        )
    facts = Facts(module)
    if facts.is_encoder_decoder:
        raise UsageError(
            f"{kind} needs an encoder to generate, and only decoders are exported for generation",
            hint="export it with `with_past`",
        )
    source = torch.Generator().manual_seed(seed)
    kwargs: dict[str, Any] = {IDS: torch.randint(facts.vocabulary or 2, (_ROWS, _TOKENS), generator=source)}
    if POSITIONS in parameters:
        kwargs[POSITIONS] = torch.arange(_TOKENS).repeat(_ROWS, 1)
    return with_past(module, Example((), kwargs))


def require_dynamic(inputs: Iterable[ExampleInput]) -> None:
    """Refuse a decoder with a fixed batch size or length.

    Raises:
        UsageError: If a dimension is fixed.
    """
    named = {dim for example in inputs for dim in example.dynamic.values()}
    for dim in (dynamic.BATCH, dynamic.SEQUENCE, dynamic.PAST):
        if dim not in named:
            raise UsageError(f"the decoder accepts only one size of {dim}", hint="export it without `for_generation`")


def attention_window(module: nn.Module) -> int | None:
    """Return how many positions the module's cache keeps; None if it keeps all."""
    ids = torch.zeros(1, 1, dtype=torch.int64)
    return window(run(module, (), {IDS: ids, SWITCH: True}).past_key_values)


MODEL = "model.onnx"
_DEFAULT_CONTEXT = 2048  # if the config sets no maximum


def write_beside(folder: Path, module: Any, inputs: Sequence[ExampleInput]) -> list[str]:
    """Write the files and return notes for the user.

    Args:
        folder: The folder of the model file.
        module: The exported module; the tokenizer is loaded from where the module was loaded from.
        inputs: The inputs that it was exported with.
    """
    notes: list[str] = []
    content = genai_config(module, inputs, notes)
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
    with quietly():
        for config in (module.config, module.generation_config):
            config.save_pretrained(str(folder))
    return notes + _tokenizer(folder, str(getattr(module, "name_or_path", "")))


def genai_config(module: Any, inputs: Sequence[ExampleInput], notes: list[str]) -> dict[str, Any]:
    """Return the content of `genai_config.json`; assumptions are appended to `notes`."""
    facts = Facts(module)
    keys, values = (_cache_shape(inputs, part) for part in ("key", "value"))
    if keys != values:
        notes.append("onnxruntime-genai cannot load this cache: its keys and values differ in size")
    heads, size = keys[1], keys[3]
    context = facts.count("positions")
    if context is None:
        context = _DEFAULT_CONTEXT
        notes.append(f"the config sets no maximum position; {CONFIG} uses {context}")
    names = {example.name for example in inputs}
    cached = {f"past_{part}_names": f"{PAST}.%d.{part}" for part in ("key", "value")}
    decoder: dict[str, Any] = {
        "filename": MODEL,
        "head_size": size,
        "hidden_size": facts.count("width"),
        "num_attention_heads": facts.count("heads"),
        "num_hidden_layers": sum(name.startswith(PAST) and name.endswith(".key") for name in names),
        "num_key_value_heads": heads,
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "inputs": {name: name for name in (IDS, MASK, POSITIONS) if name in names} | cached,
        "outputs": {LOGITS: LOGITS, "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
    }
    model = {
        "type": "decoder",
        **_special_tokens(module, facts),
        "context_length": context,
        "vocab_size": facts.vocabulary,
        "decoder": {name: value for name, value in decoder.items() if value is not None},
    }
    return {"model": model, "search": {"max_length": context, "do_sample": False, "past_present_share_buffer": False}}


def _cache_shape(inputs: Sequence[ExampleInput], part: str) -> tuple[int, ...]:
    """Return the shape of the first layer's keys or values."""
    return next(x.shape for x in inputs if x.name.startswith(PAST) and x.name.endswith(f".{part}"))


def _special_tokens(module: Any, facts: Facts) -> dict[str, Any]:
    """Return the ids of special tokens from the generation config or the config; padding defaults to the end token."""
    generation: Any = module.generation_config

    def ids_of(name: str, meaning: str) -> list[int]:
        """Return the ids that are in the vocabulary: the runtime refuses others."""
        value = getattr(generation, name, None)
        value = facts.find(meaning) if value is None else value
        ids = list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else [value]
        return [token for token in ids if isinstance(token, int) and 0 <= token < (facts.vocabulary or 0)]

    begin, end = ids_of("bos_token_id", "beginning"), ids_of("eos_token_id", "end")
    padding = ids_of("pad_token_id", "padding") or end
    tokens = {"bos_token_id": begin[:1], "eos_token_id": end, "pad_token_id": padding[:1]}
    return {name: ids if name == "eos_token_id" else ids[0] for name, ids in tokens.items() if ids}


def _tokenizer(folder: Path, source: str) -> list[str]:
    """Save the tokenizer of the source in the folder; return a note if there is none."""
    if not source:
        return ["no tokenizer was written: the model was not loaded from a folder or hub"]
    try:
        with quietly():
            auto = importlib.import_module("transformers").AutoTokenizer
            auto.from_pretrained(source).save_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        return [f"no tokenizer was written: {reason(error)}"]
    return []
