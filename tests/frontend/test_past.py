"""A decoder's example continues a past computed by the module, with the same result as one run over all tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sardonyx.errors import UsageError
from sardonyx.frontend.inputs.examples import derive
from sardonyx.frontend.inputs.past import with_past
from sardonyx.frontend.models import resolve
from sardonyx.frontend.running import run
from sardonyx.frontend.tracing.structure import join_cache, keeping_all, named_pairs, split_cache, window

DECODERS = {
    "gpt2": "GPT2LMHeadModel?n_layer=2,n_embd=24,n_head=3,vocab_size=50",
    "llama": "LlamaForCausalLM?num_hidden_layers=2,hidden_size=24,num_attention_heads=6,num_key_value_heads=3,"
    "intermediate_size=24,vocab_size=50",
    "mistral": "MistralForCausalLM?num_hidden_layers=1,hidden_size=24,num_attention_heads=6,num_key_value_heads=3,"
    "intermediate_size=24,vocab_size=50,sliding_window=4,head_dim=4",
}
_READER = (
    "d_model=16,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2,"
    "encoder_ffn_dim=24,decoder_ffn_dim=24,vocab_size=50,pad_token_id=1,bos_token_id=0,eos_token_id=2,"
    "decoder_start_token_id=2"
)
READERS = {
    "t5": "T5ForConditionalGeneration?num_layers=1,d_model=16,d_kv=8,d_ff=24,num_heads=2,vocab_size=50",
    "bart": f"BartForConditionalGeneration?{_READER},max_position_embeddings=64,forced_eos_token_id=2",
    "whisper": f"WhisperForConditionalGeneration?{_READER},max_source_positions=50,max_target_positions=40",
    "marian": f"MarianMTModel?{_READER},max_position_embeddings=64,pad_token_id=0,decoder_start_token_id=0",
}


def decoder(name: str) -> nn.Module:
    return resolve(f"hf-config:{DECODERS[name]}").module


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_past_is_computed_and_its_length_is_unique(name: str) -> None:
    module = decoder(name)
    example = with_past(module, derive(module))
    kwargs = example.kwargs
    pairs = split_cache(kwargs["past_key_values"])
    assert pairs is not None
    assert len(pairs) == 2
    past = pairs[0][0].shape[2]
    assert past >= 2
    others = {*kwargs["input_ids"].shape, pairs[0][0].shape[1], pairs[0][0].shape[3]}
    assert not {past, past + 11} & others
    assert kwargs["attention_mask"].shape == (2, past + 11)
    assert kwargs["attention_mask"].sum(1).tolist() == [past + 11, past + 10]
    assert kwargs["use_cache"] is True
    assert all(tensor.std() > 0 for pair in pairs for tensor in pair)


@pytest.mark.parametrize("name", DECODERS)
def test_continuing_equals_one_run_over_all_tokens(name: str) -> None:
    module = decoder(name)
    plain = derive(module)
    kwargs = dict(with_past(module, plain).kwargs)
    kwargs["attention_mask"] = torch.ones_like(kwargs["attention_mask"])
    pairs = split_cache(kwargs["past_key_values"])
    assert pairs is not None
    past = pairs[0][0].shape[2]
    kwargs["past_key_values"] = join_cache(kwargs["past_key_values"], pairs)
    continued = run(module, (), kwargs).logits
    ids = plain.kwargs["input_ids"]
    whole = run(module, (), {"input_ids": torch.cat([ids[:, :past], ids], 1), "use_cache": False}).logits
    torch.testing.assert_close(continued, whole[:, past:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [2, 9])
def test_a_windowed_decoder_continues_a_past_of_any_length(length: int) -> None:
    """Its own cache keeps a window and counts the rest in a number, which would be a constant in a graph."""
    module = decoder("mistral")
    kwargs = dict(with_past(module, derive(module)).kwargs)
    pairs = split_cache(kwargs["past_key_values"])
    assert pairs is not None
    ids = kwargs["input_ids"]
    first = run(module, (), {"input_ids": ids[:, :1].repeat(1, length), "use_cache": True, "past_key_values": None})
    assert window(first.past_key_values) == 4
    whole = run(module, (), {"input_ids": torch.cat([ids[:, :1].repeat(1, length), ids], 1), "use_cache": False}).logits
    unbounded: Any = keeping_all(first.past_key_values)
    run(module, (), {"input_ids": ids[:, :1].repeat(1, length), "use_cache": True, "past_key_values": unbounded})
    given = join_cache(kwargs["past_key_values"], split_cache(unbounded) or [])
    mask = torch.ones(2, length + 11, dtype=torch.int64)
    answer = run(module, (), {**kwargs, "attention_mask": mask, "past_key_values": given})
    torch.testing.assert_close(answer.logits, whole[:, length:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", READERS)
def test_an_encoder_decoder_continues_with_both_caches(name: str) -> None:
    module = resolve(f"hf-config:{READERS[name]}").module
    plain = derive(module)
    kwargs = dict(with_past(module, plain).kwargs)
    pairs = named_pairs(kwargs["past_key_values"])
    assert pairs is not None
    assert list(pairs) == ["0.decoder", "0.encoder"]
    past = pairs["0.decoder"][0].shape[2]
    assert not {"input_ids", "input_features"} & kwargs.keys()
    kwargs["decoder_attention_mask"] = torch.ones_like(kwargs["decoder_attention_mask"])
    ids = plain.kwargs["decoder_input_ids"]
    before = ids[:, torch.arange(past) % ids.shape[1]]
    whole = run(module, (), {**plain.kwargs, "decoder_input_ids": torch.cat([before, ids], 1)}).logits
    torch.testing.assert_close(run(module, (), kwargs).logits, whole[:, past:], rtol=1e-4, atol=1e-5)


def test_a_rebuilt_cache_is_a_copy_and_the_template_is_unchanged() -> None:
    module = decoder("gpt2")
    kwargs = with_past(module, derive(module)).kwargs
    template: Any = kwargs["past_key_values"]
    pairs = split_cache(template)
    assert pairs is not None
    zeros = [(torch.zeros_like(key), torch.zeros_like(value)) for key, value in pairs]
    fresh = join_cache(template, zeros)
    answer = run(module, (), {**kwargs, "past_key_values": fresh})
    after, grown = split_cache(template), split_cache(answer.past_key_values)
    assert after is not None
    assert grown is not None
    assert type(fresh) is type(template)
    assert all(torch.equal(a, b) for old, new in zip(pairs, after, strict=True) for a, b in zip(old, new, strict=True))
    past = pairs[0][0].shape[2]
    assert grown[0][0].shape[2] == past + 11
    assert not grown[0][0][:, :, :past].any()


@pytest.mark.parametrize(
    "value", [None, 3, torch.ones(2), [torch.ones(2)], nn.Sequential(), SimpleNamespace(layers=[]),
              SimpleNamespace(layers=[SimpleNamespace(keys=None, values=None)])],
)  # fmt: skip
def test_only_filled_caches_are_split(value: object) -> None:
    assert split_cache(value) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("BertModel?num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24", "returns no cache"),
        (
            "Lfm2Model?num_hidden_layers=2,hidden_size=16,num_attention_heads=2,num_key_value_heads=1,"
            "intermediate_size=24,vocab_size=50,layer_types=['conv','full_attention']",
            "does not have keys and values in every layer",
        ),
        ("ViTModel?num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24", "takes no past"),
    ],
)
def test_a_module_without_such_a_cache_is_refused(source: str, message: str) -> None:
    module = resolve(f"hf-config:{source}").module
    with pytest.raises(UsageError, match=message) as caught:
        with_past(module, derive(module))
    assert "`with_past`" in (caught.value.hint or "")
