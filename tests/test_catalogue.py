"""The catalogue: small configs keep their proportions, each row is one model in its own process, figures add up."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import catalogue
import catalogue_table
import fresh_inputs
import sardonyx
from catalogue_case import failure, in_process
from catalogue_models import Subject, modules
from sardonyx.frontend.inputs.examples import Example
from small_configs import CUTS, VOCABULARY, Cut, smaller

# Small configs


def library() -> Any:
    """Transformers, imported where it is used: pyright takes 19 s for what it would import by name."""
    return importlib.import_module("transformers")


def small(name: str, cut: Cut = CUTS[0]) -> Any:
    transformers = library()
    kind = getattr(transformers, name)
    configs = smaller(kind, transformers.PreTrainedConfig, lambda _config: True)
    return next(config for config, used in configs if used == cut)


def test_widths_share_one_ratio_and_heads_stay() -> None:
    config = small("BertConfig")
    assert (config.hidden_size, config.intermediate_size) == (96, 384)
    assert (config.num_attention_heads, config.num_hidden_layers) == (12, 2)
    assert (config.vocab_size, config.type_vocab_size) == (VOCABULARY, 2)


def test_enough_layers_are_kept_for_every_layer_type() -> None:
    config = small("Gemma3TextConfig")
    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    assert len(config.layer_types) == config.num_hidden_layers == 6


def test_a_token_id_is_consistent_and_in_the_vocabulary() -> None:
    config = small("LlavaConfig")
    assert config.text_config.vocab_size == VOCABULARY > config.image_token_id >= 0
    assert config.vision_config.image_size == 84
    assert config.vision_config.hidden_size == 128  # set by the config around it, not the default of its class
    assert config.vision_config.num_attention_heads == 16


def test_an_image_placeholder_token_gets_an_id() -> None:
    transformers = library()
    assert transformers.Blip2Config().image_token_index is None
    assert 0 <= small("Blip2Config").image_token_index < VOCABULARY


def test_a_faulty_config_is_detected_without_building_the_model(tmp_path: Path) -> None:
    """Layers of it have no default, and the text model of the default config has billions of weights."""
    began = time.process_time()
    with pytest.raises(TypeError, match="NoneType"):
        next(modules(Subject("transformers", "granite4_vision"), tmp_path))
    assert time.process_time() - began < 20


def test_derived_settings_are_recomputed() -> None:
    config = small("MistralConfig")
    assert config.head_dim * config.num_attention_heads == config.hidden_size == 512


def test_a_smaller_reduction_follows_where_the_model_refuses() -> None:
    transformers = library()
    is_right = lambda config: 100 < config.hidden_size < 700  # noqa: E731
    configs = smaller(transformers.BertConfig, transformers.PreTrainedConfig, is_right)
    config, cut = next(configs)
    assert (config.hidden_size, config.num_hidden_layers) == (192, 2)
    assert cut == Cut(4, 2)


# One process per model


def test_a_process_answers_crashes_or_is_stopped() -> None:
    assert in_process(lambda: {"answer": os.getpid()})["answer"] != os.getpid()
    assert in_process(lambda: os._exit(3)) == {"error": "crashed with exit 3"}
    assert in_process(lambda: {"sum": sum(iter(int, 1))}, limit=1) == {"error": "not done after 1 s of CPU"}


def test_a_failure_is_reported_by_its_innermost_cause() -> None:
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("advice") from KeyError("inside")
    assert failure(caught.value)["error"] == "KeyError: 'inside'"


# The run


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalogue")
    patterns = ["torchvision.squeezenet"]
    subprocess.run([sys.executable, catalogue.__file__, folder, *patterns], check=True, capture_output=True)
    return folder


@pytest.mark.campaign
def test_small_models_are_exported_verified_and_compared(results: Path) -> None:
    rows = catalogue_table.read(results)
    assert [row["library"] for row in rows] == ["torchvision"]
    for row in rows:
        assert row["ours"]["verified"], row["ours"]
        assert row["ours"]["root"] == 0
        assert row["ours"]["ort"] <= row["ours"]["portable"] < row["ours"]["nodes"]
        assert row["plain"]["answers"] == "same"
        assert row["unread"] == []
        assert catalogue_table.reason(row) == ""


@pytest.mark.campaign
def test_finished_models_are_not_run_again(results: Path) -> None:
    path = next(results.glob("*.json"))
    assert not catalogue.wanted(path)
    assert not catalogue.wanted(path, ["failed", "unreached"])
    assert catalogue.wanted(path, ["failed", "all"])
    assert catalogue.wanted(path.with_name("another.json"))


# The table


def row(name: str, **changes: Any) -> dict[str, Any]:
    made = {"exported": True, "verified": True, "nodes": 9, "portable": 5, "ort": 4, "root": 0.0, "notes": []}
    plain = {"exported": True, "seconds": 2.0, "nodes": 8, "answers": "same"}
    whole: dict[str, Any] = {
        "library": "timm",
        "name": name,
        "exporter": "dynamo",
        "commit": "abc",
        "machine": "x86_64",
        "size": "as published",
    }
    whole |= {"class": "Net", "parameters": 10**6, "unread": [], "plain": plain}
    whole["ours"] = made | {"seconds": {"export": 1.5, "verification": 3.0, "writing": 0.5}}
    for key, value in changes.items():
        whole[key] = whole.get(key, {}) | value if isinstance(value, dict) else value
    return whole


def refused(name: str, at: int) -> dict[str, Any]:
    error = f"no example was found that {name}Model accepts: expected {at} channels"
    return row(name, ours={"exported": False, "verified": False, "stage": "inputs", "error": error})


def test_the_figures_match_their_captions() -> None:
    rows = [
        row("good"),
        row("slow", plain={"seconds": 1.0}) | {"dynamic": True},
        row("ours", plain={"exported": False, "error": "no"}, unread=["vision"]),
        row("noted", unread=["vision"], ours={"notes": ["vision: never reached"]}),
        refused("A", 3) | {"dynamic": True},
    ]
    text = "\n".join(catalogue_table.summary(rows))
    assert "torch.export, 2 models were run, 1 are verified" in text
    assert "2 of the 2 right, without dynamic dimensions; of these Sardonyx verifies 1, not: A." in text
    assert "5 of 5 models could be built; 4 are exported, 4 of them verified" in text
    assert "Plain torch exports 4 of them; of these Sardonyx exports 3 and verifies 3 (75.0%)" in text
    assert "Only Sardonyx exports, verified: 1 (ours)" in text
    assert "unreached in 2 models, without a note in 1 (ours)" in text
    assert "median 1.00" in text


def test_files_are_counted_by_their_answers_on_other_sizes() -> None:
    rows = [
        row("good", fresh={"answer": "right, batch + 1", "tags": []}),
        row("still", fresh={"answer": "right, no other size", "tags": ["Add a: tagged b"]}),
        row("bad", fresh={"answer": "wrong at batch + 1", "tags": []}),
        row("old"),
    ]
    text = "\n".join(catalogue_table.summary(rows))
    assert "2 of 3 files answer what the module does, 1 of them in other sizes; not: bad." in text
    assert "Tags are right in 2 of 3 files" in text
    assert " | wrong at batch + 1 | right | " in catalogue_table.line(rows[2])
    assert " | 1 wrong | " in catalogue_table.line(rows[1])


@pytest.mark.slow
def test_a_file_is_compared_in_another_size(tmp_path: Path) -> None:
    module, path = torch.nn.Linear(4, 4).eval(), tmp_path / "model.onnx"
    example, axes = Example((torch.randn(2, 4),), {}), {"input": {0: "rows"}}
    sardonyx.export(module, example.args, path, dynamic=axes, verify="off")
    assert fresh_inputs.compared(path, module, example, axes) == "right, rows + 1"
    with torch.no_grad():
        module.bias.add_(1.0)
    assert fresh_inputs.compared(path, module, example, axes) == "wrong at rows + 1"


def test_causes_that_differ_only_in_names_and_numbers_are_grouped() -> None:
    lines = list(catalogue_table.causes([refused("A", 3), refused("B", 4), row("good")]))
    assert len(lines) == 1
    assert lines[0].startswith("- 2 × no example inputs found: ")
    assert lines[0].endswith(": A, B")


def test_the_page_has_a_row_for_every_result(tmp_path: Path) -> None:
    for each in (row("good"), refused("A", 3), {**row("none"), "unbuildable": "ValueError: a | b"}):
        (tmp_path / f"{each['name']}.json").write_text(json.dumps(each))
    (tmp_path / catalogue_table.NAMES).write_text("timm.good\ntimm.A\ntimm.none\ntimm.later\n")
    page = tmp_path / "page.md"
    catalogue_table.write(tmp_path, page)
    table = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert len(table) == 4
    assert all(line.count("|") == table[0].count("|") for line in table)
    assert "has 4 models, in random order; 3 were run" in page.read_text()
    assert "9 → 5 → 4 | 2.0 | 3.0 | 2.0 s" in page.read_text()
