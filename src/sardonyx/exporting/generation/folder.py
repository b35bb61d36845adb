"""The files beside an exported decoder that runtimes read: `genai_config.json`, configs and the tokenizer.

Fields of `genai_config.json` are those of onnxruntime-genai's generic `decoder` type. Sizes of the cache come from the
exported graph; the rest from the module's configs.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from sardonyx.errors import reason
from sardonyx.exporting.generation.decoder import IDS, LOGITS, MASK, POSITIONS
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.inputs.past import PAST
from sardonyx.frontend.quiet import quietly
from sardonyx.records.export import ExampleInput

MODEL, CONFIG = "model.onnx", "genai_config.json"
_USUAL_CONTEXT = 2048  # where the config limits no positions


def write_beside(folder: Path, module: Any, inputs: Sequence[ExampleInput]) -> list[str]:
    """Write what a runtime reads beside the model; what a reader should know of it.

    Args:
        folder: where the model is written to.
        module: the module that was exported; the tokenizer is looked for where it was loaded from.
        inputs: the inputs that it was exported with.
    """
    notes: list[str] = []
    content = genai_config(module, inputs, notes)
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
    with quietly():
        for config in (module.config, module.generation_config):
            config.save_pretrained(str(folder))
    return notes + _tokenizer(folder, str(getattr(module, "name_or_path", "")))


def genai_config(module: Any, inputs: Sequence[ExampleInput], notes: list[str]) -> dict[str, Any]:
    """What onnxruntime-genai wants to know of a decoder; `notes` gets what had to be assumed."""
    facts = Facts(module)
    keys, values = (_cache_shape(inputs, part) for part in ("key", "value"))
    if keys != values:
        notes.append("onnxruntime-genai holds keys and values of one size, and this cache has two: it cannot load it")
    heads, size = keys[1], keys[3]
    context = facts.count("positions")
    if context is None:
        context = _USUAL_CONTEXT
        notes.append(f"the config limits no positions; {CONFIG} says {context}")
    names = {each.name for each in inputs}
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
    """The sizes of the first layer's keys or values."""
    return next(each.shape for each in inputs if each.name.startswith(PAST) and each.name.endswith(f".{part}"))


def _special_tokens(module: Any, facts: Facts) -> dict[str, Any]:
    """The ids of special tokens: the generation config's, else the config's; without a padding, the end is one."""
    own: Any = module.generation_config

    def token(name: str, meaning: str) -> Any:
        said = getattr(own, name, None)
        return facts.find(meaning) if said is None else said

    def known(value: Any) -> list[int]:
        """One id or several, without those that the vocabulary has not: the runtime refuses them."""
        ids = list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else [value]
        return [each for each in ids if isinstance(each, int) and 0 <= each < (facts.vocabulary or 0)]

    begin, ends = known(token("bos_token_id", "beginning")), known(token("eos_token_id", "end"))
    padding = known(token("pad_token_id", "padding")) or ends
    found = {"bos_token_id": begin[:1], "eos_token_id": ends, "pad_token_id": padding[:1]}
    return {name: ids if name == "eos_token_id" else ids[0] for name, ids in found.items() if ids}


def _tokenizer(folder: Path, source: str) -> list[str]:
    """Save the tokenizer of the source in the folder."""
    if not source:
        return ["no tokenizer is written: the model comes from no folder or hub that has one"]
    try:
        with quietly():
            auto = importlib.import_module("transformers").AutoTokenizer
            auto.from_pretrained(source).save_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        return [f"no tokenizer is written: {reason(error)}"]
    return []
