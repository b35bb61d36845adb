"""Decoders exported for generation: the folder, its tokens against PyTorch's, and a runtime that loads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import sardonyx
from narrowing import present
from reporting.written import in_terminal
from sardonyx.errors import OutputError, UsageError, VerificationFailed
from sardonyx.exporting.export import Exported
from sardonyx.exporting.generation.check import GenerationCheck, Prompts, continued, random_prompts
from sardonyx.exporting.generation.decoder import attention_window, decoder_example
from sardonyx.frontend.models.resolve import resolve
from sardonyx.frontend.tracing.adapter import Call
from sardonyx.frontend.tracing.engine import TorchEngine
from sardonyx.ir import io
from sardonyx.records.export import Export
from sardonyx.reporting.export import export_document
from sardonyx.runtime import Session

_LAYER = "hidden_size=24,num_attention_heads=4,intermediate_size=32,vocab_size=60,max_position_embeddings=64"
_GROUPED = f"{_LAYER},num_key_value_heads=2"
FAMILIES = {
    "llama": f"LlamaConfig?{_GROUPED},num_hidden_layers=2",
    "qwen3": f"Qwen3Config?{_GROUPED},num_hidden_layers=1,head_dim=8",
    "gemma3": f"Gemma3TextConfig?{_GROUPED},num_hidden_layers=2,head_dim=8,sliding_window=8,"
    "layer_types=['sliding_attention','full_attention']",
    "phi3": f"Phi3Config?{_GROUPED},num_hidden_layers=1,pad_token_id=0,bos_token_id=1,eos_token_id=2",
    "mistral": f"MistralConfig?{_GROUPED},num_hidden_layers=1,sliding_window=8,head_dim=8",
    "gpt2": "GPT2Config?n_embd=24,n_layer=1,n_head=4,vocab_size=60,n_positions=64,bos_token_id=1,eos_token_id=2",
    "opt": "OPTConfig?hidden_size=24,num_hidden_layers=1,num_attention_heads=4,ffn_dim=32,vocab_size=60,"
    "max_position_embeddings=64,word_embed_proj_dim=24",
    "bloom": "BloomConfig?hidden_size=24,n_layer=1,n_head=4,vocab_size=60",
    "falcon": "FalconConfig?hidden_size=24,num_hidden_layers=1,num_attention_heads=4,vocab_size=60,"  # bfloat16 inside
    "alibi=true,bos_token_id=1,eos_token_id=2",
}
STEPS = 12


def exported(name: str, folder: Path, exporter: Any = "torchscript", **options: Any) -> Exported:
    source = f"hf-config:{FAMILIES[name]}"
    return sardonyx.export(
        source,
        None,
        folder,
        exporter=exporter,
        for_generation=True,
        options=sardonyx.ExportOptions(verify_tokens=STEPS),
        **options,
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_every_token_matches_the_one_the_module_generates(name: str, tmp_path: Path) -> None:
    made = exported(name, tmp_path / "out")
    assert made.verdict is not None
    batches = made.verdict.generation
    assert [batch.prompts for batch in batches[:4]] == [(1,), (7,), (24,), (5, 12, 2)]
    assert all(batch.passed and batch.steps == STEPS for batch in batches)
    assert all(batch.equal + len(batch.ties) == STEPS * len(batch.prompts) for batch in batches)
    Session(tmp_path / "out" / "model.onnx")  # loads the file that was written
    window = 8 if name in ("gemma3", "mistral") else None
    assert (batches[-1].prompts == (11,)) == (window is not None), "one prompt is longer than the window"
    total = STEPS * sum(len(batch.prompts) for batch in batches)
    assert f"of {total} greedy tokens equal" in in_terminal(
        export_document, made
    ) or f"all {total} greedy tokens equal" in in_terminal(export_document, made)
    back = Export.from_json(made.to_json())
    assert back.verdict is not None
    assert back.verdict.generation == batches


def test_the_default_exporter_gives_one_optimized_graph_for_prompts_and_steps(tmp_path: Path) -> None:
    made = exported("mistral", tmp_path / "out", "dynamo", optimize=True)
    assert made.optimized is not None
    assert made.optimized.result == made.result
    assert made.verdict is not None
    assert all(batch.passed for batch in made.verdict.generation)
    assert made.result.path == str(tmp_path / "out" / "model.onnx")
    path = Path(present(made.result.path))
    assert path.stat().st_size == made.result.bytes
    model = onnx.load_model(path)
    dims = {
        each.name: [d.dim_param or d.dim_value for d in each.type.tensor_type.shape.dim] for each in model.graph.input
    }
    assert dims["input_ids"] == ["batch", "sequence"]
    assert dims["past_key_values.0.key"] == ["batch", 2, "past_sequence", 8]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_verified_in_float32(dtype: str, tmp_path: Path) -> None:
    made = exported("phi3", tmp_path / "out", dtype=dtype)
    assert made.verdict is not None
    assert made.verdict.computed_in == "float32"
    assert all(batch.passed and batch.max_abs < 1e-5 for batch in made.verdict.generation)
    assert {each.dtype for each in made.inputs if each.name.startswith("past")} == {dtype}


def test_the_folder_has_the_config_a_runtime_needs(tmp_path: Path) -> None:
    made = exported("gpt2", tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"model.onnx", "genai_config.json", "config.json", "generation_config.json"}
    assert not list(tmp_path.glob(".*")), "nothing is left of the draft"
    config = json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]
    assert config["context_length"] == 64
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, [2], 2)
    decoder = config["decoder"]
    assert (decoder["num_hidden_layers"], decoder["num_key_value_heads"], decoder["head_size"]) == (1, 4, 6)
    graph = onnx.load_model(tmp_path / "out" / decoder["filename"]).graph
    message = [name.replace("%d", "0") for name in (*decoder["inputs"].values(), *decoder["outputs"].values())]
    assert set(message) == {value.name for value in (*graph.input, *graph.output)}
    assert any("no tokenizer" in note for note in made.notes)


def test_an_earlier_export_is_replaced_by_a_model_with_data_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def export() -> Exported:
        kind, options = f"hf-config:{FAMILIES['gpt2']}", sardonyx.ExportOptions(external=True)
        settings: Any = {"exporter": "torchscript", "for_generation": True, "verify": False, "options": options}
        return sardonyx.export(kind, None, out, force=True, **settings)

    export()
    (out / "other.onnx").write_bytes((out / "model.onnx").read_bytes())
    made = export()
    assert "kept model.onnx.data, a data file of the replaced model: other.onnx uses it" in made.notes
    assert made.result.bytes == (out / "model.onnx").stat().st_size
    for name, data in (("model.onnx", "model.onnx.1.data"), ("other.onnx", "model.onnx.data")):
        assert io.external_files(out / name) == [data]
        onnx.load_model(out / name)
    assert not list(tmp_path.glob(".*")), "nothing is left of the draft"


def test_onnxruntime_genai_loads_the_folder_and_generates_the_same_tokens(tmp_path: Path) -> None:
    runtime: Any = pytest.importorskip("onnxruntime_genai")
    exported("llama", tmp_path / "out")
    module = resolve(f"hf-config:{FAMILIES['llama']}", default_task="text-generation").module
    prompt = np.array([[5, 17, 33, 8]])
    wanted = continued(module, Prompts(prompt, np.ones_like(prompt)), STEPS).tokens[0]
    model = runtime.Model(str(tmp_path / "out"))
    settings = runtime.GeneratorParams(model)
    settings.set_search_options(max_length=4 + STEPS, min_length=4 + STEPS, do_sample=False)
    generator = runtime.Generator(model, settings)
    generator.append_tokens(prompt.astype(np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    assert generator.get_sequence(0).tolist() == [*prompt[0], *wanted]


class TestFaults:
    """Faults that verification detects in a file changed after its export."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "out"
        exported("mistral", folder, verify=False)
        return folder

    @pytest.fixture
    def module(self) -> Any:
        module: Any = resolve(f"hf-config:{FAMILIES['mistral']}", default_task="text-generation").module
        return module

    def check(self, module: Any, path: Path) -> tuple[list[Any], list[str]]:
        example = decoder_example(module, 0)
        engine = TorchEngine(Call(module, example.args, example.kwargs))
        check = GenerationCheck(module, engine, path, threads=1, report=lambda _: None)
        return check.run(random_prompts(module, attention_window(module), STEPS, 0), STEPS)

    def changed(self, folder: Path, weight: str, change: Any) -> Path:
        model = onnx.load_model(folder / "model.onnx")
        tensor = next(each for each in model.graph.initializer if each.name == weight)
        values = onnx.numpy_helper.to_array(tensor).copy()
        change(values)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, weight))
        onnx.save_model(model, folder / f"{weight}.onnx")
        return folder / f"{weight}.onnx"

    def test_a_wrong_weight_is_detected(self, folder: Path, module: Any) -> None:
        def double(values: Any) -> None:
            values *= 2

        batches, failures = self.check(module, self.changed(folder, "model.layers.0.self_attn.k_proj.weight", double))
        assert [batch.passed for batch in batches[1:]] == [False] * (len(batches) - 1)
        assert any(line.startswith("generating after a prompt of 7 tokens: output 'logits'") for line in failures)

    def test_a_tie_is_distinguished_from_a_fault(self, folder: Path, module: Any) -> None:
        weight: torch.Tensor = module.lm_head.weight.data
        before = weight.clone()
        try:
            weight.copy_(before.abs().mean() * torch.sign(before))
            weight[9] = weight[5]

            def prefer(values: Any) -> None:
                values[:] = weight.numpy()
                values[5] *= 1 - 1e-7

            batches, failures = self.check(module, self.changed(folder, "lm_head.weight", prefer))
        finally:
            weight.copy_(before)
        assert not failures
        ties = [tie for batch in batches for tie in batch.ties]
        assert ties
        assert all((tie.token, tie.other) == (5, 9) and tie.gap < 1e-6 for tie in ties)


def test_a_module_that_differs_from_its_graph_writes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.exporting.generation.check._PRESENT", "past.")  # the cache is never returned
    with pytest.raises(VerificationFailed, match=r"does not generate what the module does: generating after a prompt"):
        exported("llama", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("ViTConfig?num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24", "text-generation"),
        ("T5ForConditionalGeneration?num_layers=1,d_model=16,d_kv=8,d_ff=24,num_heads=2,vocab_size=50", "an encoder"),
        (
            "BertModel?num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24",
            "does not generate",
        ),
    ],
)
def test_a_model_that_cannot_generate_is_refused(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        sardonyx.export(f"hf-config:{source}", None, tmp_path / "out", for_generation=True)


def test_a_folder_that_is_not_empty_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="is not empty"):
        exported("llama", tmp_path)
    exported("llama", tmp_path, verify=False, force=True)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "genai_config.json").exists()
    with pytest.raises(UsageError, match="writes a folder"):
        sardonyx.export(f"hf-config:{FAMILIES['llama']}", for_generation=True)
