"""Decoders exported for generation: the folder, its tokens against PyTorch's, and a runtime that loads it."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from msgspec import structs

import sardonyx
from narrowing import present
from reporting.written import in_terminal
from sardonyx.errors import OutputError, UsageError, VerificationFailed
from sardonyx.frontend.models import resolve
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.engine import TorchEngine
from sardonyx.ir import io
from sardonyx.records.export import Export
from sardonyx.reporting.export import export_document
from sardonyx.runtime import Session, remote
from sardonyx.runtime.generation import Generated
from sardonyx.verbs.export.export import Exported
from sardonyx.verbs.export.generation import (
    GenerationCheck,
    Prompts,
    Stepper,
    attention_window,
    continued,
    decoder_example,
    genai_config,
)

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


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Exported, Path]]:
    """`verified("llama")`: what was exported and verified, and its folder; once for all tests. Do not write to it."""

    @functools.cache
    def once(name: str) -> tuple[Exported, Path]:
        folder = tmp_path_factory.mktemp(name) / "out"
        return exported(name, folder), folder

    return once


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("llama", "gpt2", "falcon") else pytest.mark.campaign)
        for name in FAMILIES
    ],
)
def test_every_token_matches_the_one_the_module_generates(
    name: str, verified: Callable[[str], tuple[Exported, Path]]
) -> None:
    made, folder = verified(name)
    assert made.verdict is not None
    batches = made.verdict.generation
    assert [batch.prompts for batch in batches[:3]] == [(24,), (1,), (7, 5, 12, 2)]
    assert all(batch.passed and batch.steps == STEPS for batch in batches)
    assert all(batch.equal + len(batch.ties) == STEPS * len(batch.prompts) for batch in batches)
    Session(folder / "model.onnx")  # loads the file that was written
    window = 8 if name in ("gemma3", "mistral") else None
    assert (batches[-1].prompts == (11,)) == (window is not None), "one prompt is longer than the window"
    total = STEPS * sum(len(batch.prompts) for batch in batches)
    assert f"of {total} greedy tokens equal" in in_terminal(
        export_document, made
    ) or f"all {total} greedy tokens equal" in in_terminal(export_document, made)
    back = Export.from_json(made.to_json())
    assert back.verdict is not None
    assert back.verdict.generation == batches
    decoder = present(made.decoder)
    assert decoder.runtime.startswith("onnxruntime-genai"), "every family's folder loads and gives the same tokens"
    assert present(decoder.tokens_per_second) > 0
    assert decoder.cache_bytes == sum(
        4 * example.shape[1] * example.shape[3] for example in made.inputs if example.name.startswith("past")
    )
    assert f"cache: {decoder.cache_bytes} B per position" in in_terminal(export_document, made)
    assert back.decoder == decoder


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


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.campaign)])
def test_half_precision_is_verified_in_float32(dtype: str, tmp_path: Path) -> None:
    made = exported("phi3", tmp_path / "out", dtype=dtype)
    assert made.verdict is not None
    assert made.verdict.computed_in == "float32"
    assert all(batch.passed and batch.max_abs < 1e-5 for batch in made.verdict.generation)
    assert {each.dtype for each in made.inputs if each.name.startswith("past")} == {dtype}
    assert made.decoder is not None or any(note.startswith("not loaded: ") for note in made.notes)


def test_the_folder_has_the_config_a_runtime_needs(verified: Callable[[str], tuple[Exported, Path]]) -> None:
    made, folder = verified("gpt2")
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.onnx", "genai_config.json", "config.json", "generation_config.json"}
    assert not list(folder.parent.glob(".*")), "nothing is left of the draft"
    config = json.loads((folder / "genai_config.json").read_text())["model"]
    assert config["context_length"] == 64
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, [2], 2)
    decoder = config["decoder"]
    assert (decoder["num_hidden_layers"], decoder["num_key_value_heads"], decoder["head_size"]) == (1, 4, 6)
    graph = onnx.load_model(folder / decoder["filename"]).graph
    message = [name.replace("%d", "0") for name in (*decoder["inputs"].values(), *decoder["outputs"].values())]
    assert set(message) == {value.name for value in (*graph.input, *graph.output)}
    assert any("no tokenizer" in note for note in made.notes)


def test_an_earlier_export_is_replaced_by_a_model_with_data_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def export() -> Exported:
        kind, options = f"hf-config:{FAMILIES['gpt2']}", sardonyx.ExportOptions(external=True)
        settings: Any = {"exporter": "torchscript", "for_generation": True, "verify": "off", "options": options}
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


def test_onnxruntime_genai_loads_the_folder_and_generates_the_same_tokens(
    verified: Callable[[str], tuple[Exported, Path]],
) -> None:
    runtime: Any = pytest.importorskip("onnxruntime_genai")
    _, folder = verified("llama")
    module = resolve(f"hf-config:{FAMILIES['llama']}", default_task="text-generation").module
    prompt = np.array([[5, 17, 33, 8]])
    wanted = continued(module, Prompts(prompt, np.ones_like(prompt)), STEPS).tokens[0]
    model = runtime.Model(str(folder))
    settings = runtime.GeneratorParams(model)
    settings.set_search_options(max_length=4 + STEPS, min_length=4 + STEPS, do_sample=False)
    generator = runtime.Generator(model, settings)
    generator.append_tokens(prompt.astype(np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    assert generator.get_sequence(0).tolist() == [*prompt[0], *wanted]


def test_the_folder_of_a_target_is_written_by_one_command(tmp_path: Path) -> None:
    options = sardonyx.ExportOptions(verify_tokens=4, target="ort")
    made = sardonyx.export(
        f"hf-config:{FAMILIES['llama']}", None, tmp_path / "out", for_generation=True, optimize=True, options=options
    )
    domains = {node.domain for node in onnx.load_model(tmp_path / "out" / "model.onnx").graph.node}
    assert "com.microsoft" in domains
    assert present(made.optimized).options["target"] == "ort"
    assert present(made.decoder).tokens_per_second


def test_large_weights_get_a_file_that_runtimes_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.verbs.export.export._MAPPED_BYTES", 1 << 10)
    source: Any = f"hf-config:{FAMILIES['gpt2']}"
    for external, files in ((None, ["model.onnx.data"]), (False, [])):
        options = sardonyx.ExportOptions(external=external)
        out = tmp_path / str(external)
        sardonyx.export(source, None, out, exporter="torchscript", for_generation=True, verify="off", options=options)
        assert io.external_files(out / "model.onnx") == files


class TestLoading:
    """The written folder is loaded as users load it before it appears."""

    def generated(self, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
        def generate(*arguments: Any) -> Generated:
            found = remote.generate(*arguments)
            return structs.replace(found, tokens=change(found.tokens))

        monkeypatch.setattr("sardonyx.verbs.export.generation.generate", generate)

    def test_other_tokens_are_a_failure(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.generated(monkeypatch, lambda tokens: (*tokens[:3], (tokens[3] + 1) % 60, *tokens[4:]))
        with pytest.raises(VerificationFailed, match=r"onnxruntime-genai .* generates token \d+ instead .* step 4"):
            exported("gpt2", tmp_path / "out")
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_does_not_load_is_a_failure(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*arguments: Any) -> dict[str, Any]:
            config = genai_config(*arguments)
            config["model"]["decoder"]["inputs"]["attention_mask"] = "no_such_input"
            return config

        monkeypatch.setattr("sardonyx.verbs.export.generation.genai_config", broken)
        with pytest.raises(VerificationFailed, match="the written folder does not load: onnxruntime-genai"):
            exported("gpt2", tmp_path / "out")
        assert list(tmp_path.iterdir()) == []

    def test_without_genai_it_is_loaded_in_onnx_runtime(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
        decoder = present(exported("gpt2", tmp_path / "out").decoder)
        assert decoder.runtime.startswith("onnxruntime 1.")
        assert decoder.tokens_per_second is None


def test_a_quantized_folder_has_all_files_and_loads(tmp_path: Path) -> None:
    exported("llama", tmp_path / "out", verify="off")
    (tmp_path / "out" / "tokenizer.json").write_text("{}")
    made = sardonyx.quantize(tmp_path / "out", tmp_path / "small", to="int8-weights")
    assert made.options["target"] == "ort", "the folder is for one runtime"
    assert present(made.decoder).tokens_per_second
    assert {path.name for path in (tmp_path / "small").iterdir()} == {p.name for p in (tmp_path / "out").iterdir()}
    assert made.result.path == str(tmp_path / "small" / "model.onnx")
    assert any(node.op_type == "MatMulNBits" for node in onnx.load_model(tmp_path / "small" / "model.onnx").graph.node)
    with pytest.raises(OutputError, match="is not empty"):
        sardonyx.quantize(tmp_path / "out", tmp_path / "small", to="int8-weights")


class TestFaults:
    """Faults that verification detects in a file changed after its export."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("decoder") / "out"
        exported("mistral", folder, verify="off")
        return folder

    @pytest.fixture
    def module(self) -> Any:
        module: Any = resolve(f"hf-config:{FAMILIES['mistral']}", default_task="text-generation").module
        return module

    def check(self, module: Any, path: Path) -> tuple[list[Any], list[str]]:
        example = decoder_example(module, 0)
        engine = TorchEngine(ModuleCall(module, example.args, example.kwargs))
        check = GenerationCheck(module, engine, path, threads=1, report=lambda _: None)
        made = check.run(attention_window(module), STEPS, 0)
        return [*made.batches], [*made.failures]

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
        assert [batch.passed for batch in batches] == [False] * len(batches)
        assert any(line.startswith("generating after a prompt of 24 tokens: output 'logits'") for line in failures)

    def test_small_errors_of_a_weight_the_positions_and_the_cache_are_detected(self, folder: Path, module: Any) -> None:
        weight = "model.layers.0.mlp.down_proj.weight"

        def scale(values: Any) -> None:
            values[3] *= 1.001

        def shift(graph: onnx.GraphProto) -> None:
            """The last positions are all the same."""
            for node in graph.node:
                node.input[:] = ["earlier" if name == "position_ids" else name for name in node.input]
            largest = onnx.numpy_helper.from_array(np.array(22), "largest")
            graph.initializer.append(largest)
            graph.node.insert(0, onnx.helper.make_node("Min", ["position_ids", "largest"], ["earlier"]))

        def fade(graph: onnx.GraphProto) -> None:
            """The cache that is returned differs from the one that the step has used."""
            name = graph.output[1].name
            (node,) = (node for node in graph.node if name in node.output)
            node.output[list(node.output).index(name)] = "used"
            for other in graph.node:
                other.input[:] = ["used" if each == name else each for each in other.input]
            graph.initializer.append(onnx.numpy_helper.from_array(np.array(1.001, np.float32), "fading"))
            graph.node.append(onnx.helper.make_node("Mul", ["used", "fading"], [name]))

        for change in (shift, fade):
            model = onnx.load_model(folder / "model.onnx")
            change(model.graph)
            onnx.save_model(model, folder / "changed.onnx")
            batches, failures = self.check(module, folder / "changed.onnx")
            assert [batch.passed for batch in batches if max(batch.prompts) > 22] == [False], change.__name__
            assert failures
        batches, _ = self.check(module, self.changed(folder, weight, scale))
        assert not any(batch.passed for batch in batches)

    def test_what_the_rounding_of_the_module_does_not_explain_is_compared_in_double_precision(
        self, folder: Path, module: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps = Stepper.logits
        noise = np.random.default_rng(0)

        def rough(stepper: Stepper, run: Any, prompts: Prompts, tokens: Any) -> Any:
            logits = steps(stepper, run, prompts, tokens)
            rounded = 1e-5 * noise.standard_normal(logits.shape).astype(np.float32)
            return logits if logits.dtype == np.float64 else logits * (1 + rounded)

        monkeypatch.setattr(Stepper, "logits", rough)
        batches, failures = self.check(module, folder / "model.onnx")
        assert not failures
        assert all(batch.passed for batch in batches)

        def scale(values: Any) -> None:
            values[3] *= 1.001

        wrong = self.changed(folder, "model.layers.0.mlp.down_proj.weight", scale)
        assert not any(batch.passed for batch in self.check(module, wrong)[0])

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
    monkeypatch.setattr("sardonyx.verbs.export.generation._PRESENT", "past.")  # the cache is never returned
    with pytest.raises(VerificationFailed, match=r"does not generate what the module does: generating after a prompt"):
        exported("gpt2", tmp_path / "out")
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
    exported("llama", tmp_path, verify="off", force=True)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "genai_config.json").exists()
    with pytest.raises(UsageError, match="writes a folder"):
        sardonyx.export(f"hf-config:{FAMILIES['llama']}", for_generation=True)
