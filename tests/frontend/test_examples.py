"""Example inputs are found for real architectures and plain modules, with distinct sizes and padded masks."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from sardonyx.errors import UsageError
from sardonyx.frontend.inputs import search
from sardonyx.frontend.inputs.examples import Example, derive
from sardonyx.frontend.models import resolve
from sardonyx.frontend.running import probe
from sardonyx.records.input_specs import Spec

BERT = "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24,vocab_size=50"
SIDES = ",".join(f"{s}_layers=1,{s}_attention_heads=2,{s}_ffn_dim=24" for s in ("encoder", "decoder"))
VIT = "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24,image_size=32,patch_size=8"
CLIP_TEXT = ",".join(f"text_config.{part}" for part in BERT.split(","))
CLIP_VISION = ",".join(f"vision_config.{part}" for part in VIT.split(","))
TEXT = {"input_ids": (2, 11), "attention_mask": (2, 11)}
TWO_TEXTS = {**TEXT, "decoder_input_ids": (2, 7)}
SERIES = f"d_model=16,prediction_length=6,context_length=8,lags_sequence=[1,5,3],num_time_features=2,{SIDES}"

ARCHITECTURES: dict[str, dict[str, tuple[int, ...]]] = {
    f"BertModel?{BERT}": {**TEXT, "token_type_ids": (2, 11)},
    f"RobertaModel?{BERT},type_vocab_size=1": TEXT,
    "DistilBertModel?n_layers=1,dim=16,n_heads=2,hidden_dim=24,vocab_size=50": TEXT,
    "GPT2LMHeadModel?n_layer=1,n_embd=16,n_head=2,vocab_size=50": TEXT,
    "GPT2ForSequenceClassification?n_layer=1,n_embd=16,n_head=2,vocab_size=50": {
        "input_ids": (1, 11),
        "attention_mask": (1, 11),
    },
    f"LlamaForCausalLM?{BERT}": TEXT,
    f"Qwen3ForCausalLM?{BERT},num_key_value_heads=2,head_dim=8": TEXT,
    "T5Model?num_layers=1,d_model=16,d_kv=8,d_ff=24,num_heads=2,vocab_size=50": TWO_TEXTS,
    f"BartModel?d_model=16,vocab_size=50,{SIDES}": TWO_TEXTS,
    f"BartForSequenceClassification?d_model=16,vocab_size=50,{SIDES}": {**TEXT, "decoder_input_ids": (2, 11)},
    f"WhisperModel?d_model=16,vocab_size=50,max_source_positions=30,{SIDES},pad_token_id=2,decoder_start_token_id=3": {
        "input_features": (2, 80, 60),
        "decoder_input_ids": (2, 7),
    },
    f"ViTModel?{VIT}": {"pixel_values": (2, 3, 32, 32)},
    "SwinModel?depths=[1,1],num_heads=[2,4],embed_dim=8,image_size=32,window_size=4": {"pixel_values": (2, 3, 32, 32)},
    "ResNetModel?embedding_size=8,hidden_sizes=[8,8],depths=[1,1]": {"pixel_values": (2, 3, 224, 224)},
    f"Wav2Vec2Model?{BERT},conv_dim=[8,8],conv_stride=[5,2],conv_kernel=[10,3],num_feat_extract_layers=2,"
    "num_conv_pos_embeddings=8,num_conv_pos_embedding_groups=4": {"input_values": (2, 4000)},
    f"CLIPModel?{CLIP_TEXT},{CLIP_VISION},projection_dim=8": {**TEXT, "pixel_values": (2, 3, 32, 32)},
    f"ASTModel?{VIT.removesuffix(',image_size=32,patch_size=8')},max_length=64,num_mel_bins=32": {
        "input_values": (2, 64, 32)
    },
    f"AlbertForMultipleChoice?{BERT},embedding_size=8": dict.fromkeys((*TEXT, "token_type_ids"), (2, 3, 11)),
    f"TimeSeriesTransformerModel?{SERIES}": {
        "past_values": (2, 13),
        "past_time_features": (2, 13, 2),
        "past_observed_mask": (2, 13),
    },
    f"InformerForPrediction?{SERIES},input_size=3": {
        "past_values": (2, 13, 3),
        "past_time_features": (2, 13, 2),
        "past_observed_mask": (2, 13, 3),
    },
    "BarkFineModel?num_layers=1,hidden_size=16,num_heads=2,input_vocab_size=60,output_vocab_size=60,n_codes_total=4": {
        "input_ids": (2, 11, 4),
        "attention_mask": (2, 11),
    },
}


class TwoInputs(nn.Module):
    """Looks up a token and adds the mean of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.eye = nn.Embedding(20, 6), nn.Conv2d(1, 6, 3)

    def forward(self, tokens: Tensor, image: Tensor, scale: float = 2.0) -> Tensor:
        return self.table(tokens).sum(1) * scale + self.eye(image).mean((2, 3))


class Asks(nn.Module):
    """Raises an error that names the missing argument."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6)

    def forward(self, input_ids: Tensor, extra_ids: Tensor | None = None) -> Tensor:
        if extra_ids is None:
            raise ValueError("You have to specify extra_ids")
        return self.table(input_ids + extra_ids * 0)


class Session:
    """The state of a tracker between frames."""


class Tracks(nn.Module):
    """Takes an object of its own class."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, session: Session, x: Tensor) -> Tensor:
        return self.layer(x)


class Parts(nn.Module):
    """Only contains other modules."""

    def __init__(self) -> None:
        super().__init__()
        self.speech, self.text = nn.Linear(4, 2), nn.Linear(4, 2)


class TakesNothing(nn.Module):
    """Refuses every input, and records it in a class attribute, which is not restored."""

    seen: ClassVar[list[tuple[str, ...]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.table, self.eye = nn.Embedding(9, 4), nn.Conv2d(3, 4, 3)

    def forward(self, input_ids: Tensor, pixel_values: Tensor, attention_mask: Tensor) -> Tensor:
        """Documents its argument.

        input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`): the same as its name says.
        """
        self.seen.append(tuple(f"{each.dtype} {each.shape}" for each in (input_ids, pixel_values, attention_mask)))
        raise ValueError("no")


class Counts(nn.Module):
    """Takes numbers, of which some values are refused."""

    def forward(self, x: Tensor, count: int, is_signed: bool, scale: float) -> Tensor:
        if count != 2 or not is_signed:
            raise ValueError("no")
        return x * count * scale


class Chooses(nn.Module):
    """Chooses one of several texts; takes other ranks only if that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.score = nn.Embedding(20, 6), nn.Linear(6, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        choices, length = input_ids.shape[1], input_ids.shape[-1]
        text = self.table(input_ids.view(-1, length))
        if attention_mask is not None:
            text = text * attention_mask.view(-1, length, 1)
        return self.score(text.mean(1)).view(-1, choices)


class Columns(nn.Module):
    """Looks every column of its tokens up in a table of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 6) for _ in range(5))

    def forward(self, codes_ids: Tensor) -> Tensor:
        return torch.stack([table(codes_ids[:, :, place]) for place, table in enumerate(self.tables)]).sum(0)


class Series(nn.Module):
    """Documents sizes that follow from its config."""

    config = SimpleNamespace(past=4, lags=[1, 6, 2], features=3)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, values: Tensor, time_features: Tensor) -> Tensor:
        """Adds two series.

        Args:
            values (`torch.FloatTensor` of shape `(batch_size, sequence_length)` or `(batch_size, sequence_length, 1)`):
                The `sequence_length` here is equal to `config.past` + `max(config.lags)`, which is long.
            time_features (`torch.FloatTensor` of shape `(batch_size, sequence_length, num_all_features)`):
                The `num_all_features` here is equal to `config.features`.
        """
        assert values.shape == (2, 10, 1)
        return self.layer(time_features) + values


def shapes(module: nn.Module, example: Example) -> dict[str, tuple[int, ...]]:
    bound = inspect.signature(module.forward).bind(*example.args, **example.kwargs).arguments
    return {name: tuple(value.shape) for name, value in bound.items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("source", ARCHITECTURES, ids=lambda source: source.partition("?")[0])
def test_architectures_get_the_inputs_they_need(source: str) -> None:
    module = resolve(f"hf-config:{source}").module
    example = derive(module)
    assert shapes(module, example) == ARCHITECTURES[source]
    assert probe(module, example.args, example.kwargs) is None
    described = {note.partition("=")[0] for note in example.notes if " generated as " in note}
    assert ARCHITECTURES[source].keys() <= described


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Sequential(nn.Linear(16, 4), nn.ReLU()), {"input": (2, 16)}),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), {"input": (2, 3, 32, 32)}),
        (nn.Sequential(nn.Conv2d(3, 4, 4, stride=4), nn.ReLU()), {"input": (2, 3, 224, 224)}),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 19 * 19, 2)), {"input": (2, 1, 21, 21)}),
        (nn.Sequential(nn.Conv1d(5, 4, 3), nn.ReLU()), {"input": (2, 5, 64)}),
        (nn.LSTM(6, 4, batch_first=True), {"input": (2, 11, 6)}),
        (nn.LSTM(6, 4), {"input": (11, 2, 6)}),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 1), {"src": (2, 11, 8)}),
        (nn.Transformer(8, 2, 1, 1, 12, batch_first=True), {"src": (2, 11, 8), "tgt": (2, 11, 8)}),
        (TwoInputs(), {"tokens": (2, 11), "image": (2, 1, 32, 32)}),
        (Asks(), {"input_ids": (2, 11), "extra_ids": (2, 11)}),
        (Chooses(), {"input_ids": (2, 3, 11), "attention_mask": (2, 3, 11)}),
        (Columns(), {"codes_ids": (2, 11, 5)}),
        (Series(), {"values": (2, 10, 1), "time_features": (2, 10, 3)}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_inputs_of_plain_modules_follow_from_their_layers(
    module: nn.Module, expected: dict[str, tuple[int, ...]]
) -> None:
    assert shapes(module, derive(module)) == expected


def test_required_numbers_are_tried_and_named() -> None:
    example = derive(Counts(), given={"x": Spec("x", "float32", (2, 4))})
    assert example.args[1:] == (2, True, 1.0)
    assert "count=2 generated as a Python number" in example.notes
    assert probe(Counts(), example.args, example.kwargs) is None


def test_masks_of_several_texts_are_padded_and_agree_with_the_tokens() -> None:
    module = resolve(f"hf-config:BertForMultipleChoice?{BERT},pad_token_id=7").module
    kwargs = derive(module).kwargs
    mask = kwargs["attention_mask"]
    assert 0 < (mask == 0).sum() < mask.numel() // 2
    assert torch.equal(kwargs["input_ids"] == 7, mask == 0)


def test_values_are_informative() -> None:
    module = resolve(f"hf-config:BertModel?{BERT},vocab_size=12,pad_token_id=7,eos_token_id=9").module
    kwargs = derive(module).kwargs
    ids, mask = kwargs["input_ids"], kwargs["attention_mask"]
    assert mask.sum(1).tolist() == [11, 8]
    assert (ids[1, 8:] == 7).all()
    assert not (ids[mask.bool()] == 7).any()
    assert (ids[0, 10], ids[1, 7]) == (9, 9)
    assert (ids == 9).sum() == 2
    assert ids.unique().numel() > 6
    assert set(kwargs["token_type_ids"].unique().tolist()) == {0, 1}
    assert kwargs["use_cache"] is False


def test_values_follow_the_seed() -> None:
    module = nn.Linear(4, 2)
    first, again, other = (derive(module, seed=seed).args[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_given_sizes_are_kept_and_the_others_follow() -> None:
    module = resolve(f"hf-config:BertModel?{BERT}").module
    example = derive(module, given={"input_ids": Spec("input_ids", "int32", (3, 16))})
    assert shapes(module, example) == dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (3, 16))
    assert example.kwargs["input_ids"].dtype == torch.int32
    assert example.kwargs["input_ids"].max() < 50


def test_given_tensors_are_used_alone_and_unchanged() -> None:
    module = resolve(f"hf-config:BertModel?{BERT}").module
    ids = torch.randint(0, 50, (3, 5))
    kwargs = derive(module, given={"input_ids": ids}).kwargs
    assert kwargs.keys() == {"input_ids", "use_cache"}
    assert kwargs["input_ids"] is ids


@pytest.mark.parametrize(
    ("module", "given", "message", "hint"),
    [
        (nn.Linear(4, 2), {"inptu": Spec("inptu", "float32", (2, 4))}, "no input 'inptu'", "input"),
        (nn.Linear(4, 2), {"input": Spec("input", "float32", (2, 5))}, "cannot be multiplied", "types and sizes"),
        (nn.Linear(4, 2), {"input": Spec("input", "int64", (2, 4))}, "dtype", "types and sizes"),
        (nn.ReLU(), {}, "no example can be derived for parameter 'input'", "`inputs={'input': "),
        (Tracks(), {}, "parameter 'session' of Tracks, which takes Session, not a tensor", "file.py:factory"),
        (Parts(), {}, "Parts has no forward", "(speech, text)"),
        (
            Counts(),
            {"x": Spec("x", "float32", (2, 4)), "count": torch.tensor(3)},
            "ValueError: no",
            "is_signed and scale",
        ),
    ],
)
def test_impossible_inputs_give_one_line_with_torchs_reason(
    module: nn.Module, given: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        derive(module, given=given)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in (caught.value.hint or "")


def test_no_guess_is_tried_twice_and_slow_modules_are_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    module = TakesNothing()
    with pytest.raises(UsageError, match="no example was found"):
        derive(module)
    tried = module.seen[:-1]  # the last run determines the parameter that causes the error
    assert len(tried) == len(set(tried)) > 40
    module.seen.clear()
    monkeypatch.setattr(search, "_PROBING_SECONDS", 0.0)
    monkeypatch.setattr(search, "_MIN_PROBES", 10)
    with pytest.raises(UsageError, match="no example was found"):
        derive(module)
    assert len(module.seen[:-1]) == 10


def test_the_module_is_unchanged() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4).eval(), nn.BatchNorm1d(4)).train()
    module[0].eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    derive(module)
    assert [each.training for each in module.modules()] == [True, False, True]
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


def test_half_precision_modules_get_half_precision_inputs() -> None:
    assert derive(nn.Linear(4, 2).to(torch.bfloat16)).args[0].dtype == torch.bfloat16
