"""Optional inputs are derived if they make more of a module run; modules that no input reaches are listed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sardonyx
from frontend.test_examples import shapes
from sardonyx.cli.main import run as command
from sardonyx.frontend.inputs.examples import Example, derive
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.models import resolve
from sardonyx.frontend.running import memory_read, run, unreached
from sardonyx.records.export import Export

SMALL = "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24"
VISION = ",".join(f"vision_config.{each}" for each in (*SMALL.split(","), "image_size=32", "patch_size=8"))
TEXT = ",".join(f"text_config.{each}" for each in (*SMALL.split(","), "vocab_size=60"))
PICTURE = (2, 3, 32, 32)
LAYOUT = f"LayoutLMv3Model?{SMALL},vocab_size=50,input_size=32,patch_size=8,coordinate_size=2,shape_size=4"
LLAVA = f"LlavaForConditionalGeneration?{TEXT},text_config.num_key_value_heads=2,{VISION},image_token_index=5"


def never_read(module: nn.Module, example: Example) -> tuple[str, ...]:
    return unreached(module, memory_read(lambda: run(module, example.args, example.kwargs)))


@pytest.mark.parametrize("head", ["Model", "ForTokenClassification"])
def test_boxes_and_images_are_derived_in_addition_to_text(head: str) -> None:
    module = resolve(f"hf-config:{LAYOUT.replace('Model', head, 1)}").module
    example = derive(module)
    text = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (2, 11))
    assert shapes(module, example) == {**text, "bbox": (2, 11, 4), "pixel_values": PICTURE}
    boxes = example.kwargs["bbox"]
    assert (boxes[..., :2] <= boxes[..., 2:]).all()
    assert boxes.max() < 1024
    assert never_read(module, example) == ()


class Documented(nn.Module):
    """The documentation of its last parameter is followed by a section that is about training."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.eye = nn.Embedding(20, 6), nn.Conv2d(3, 6, 3)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, pixel_values: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Look at tokens and an image.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`):
                Tokens.
            labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
                Labels.

                They are for computing the loss.
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_channels, height, width)`, *optional*):
                Images.

        Returns:
            The loss, in training.
        """
        seen = self.table(input_ids).sum(1)
        return (seen if pixel_values is None else seen + self.eye(pixel_values).mean((2, 3)),)


def test_the_text_after_the_parameters_describes_none_of_them() -> None:
    described = Facts(Documented()).descriptions
    assert [name for name, each in described.items() if each.is_for_training] == ["labels"]
    assert shapes(Documented(), derive(Documented())) == {"input_ids": (2, 11), "pixel_values": PICTURE}


def test_every_optional_input_that_is_left_out_is_listed() -> None:
    module = resolve(f"hf-config:{LAYOUT}").module
    assert derive(module).notes[-1] == "optional inputs left out: position_ids, inputs_embeds"
    alone = derive(Documented(), given={"input_ids": torch.ones(2, 3).long()})
    assert alone.notes[-1] == "optional inputs left out: pixel_values"


def test_a_text_contains_placeholders_for_its_image() -> None:
    module = resolve(f"hf-config:{LLAVA}").module
    example = derive(module)
    room = (32 // 8) ** 2
    assert shapes(module, example)["pixel_values"] == PICTURE
    assert shapes(module, example)["input_ids"] == (2, 11 + room)
    assert (example.kwargs["input_ids"] == 5).sum(1).tolist() == [room, room]
    assert any(f"{room} image tokens" in note for note in example.notes)
    assert not [path for path in never_read(module, example) if "post_layernorm" not in path]


class Optional(nn.Module):
    """Has optional inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.eye = nn.Embedding(20, 6), nn.Conv2d(3, 6, 3)
        self.spare = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.tied = nn.Linear(6, 20, bias=False)
        self.tied.weight = self.table.weight

    def forward(self, input_ids: Tensor, image: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        """Look tokens up.

        Args:
            input_ids: tokens.
            labels (`torch.FloatTensor` of shape `(batch_size, 2)`, *optional*): for the loss.
        """
        seen = self.table(input_ids).sum(1)
        if image is not None:
            seen = seen + self.eye(image).mean((2, 3))
        return seen if labels is None else seen + self.spare(labels).sum()


def test_inputs_for_training_are_not_added_and_unreached_modules_are_listed() -> None:
    module = Optional()
    example = derive(module)
    assert "image" in shapes(module, example)
    assert "labels" not in shapes(module, example)
    assert never_read(module, example) == ("spare",)


def test_nothing_is_added_to_given_inputs() -> None:
    module = Optional()
    example = derive(module, given={"input_ids": torch.tensor([[1, 2], [3, 4]])})
    assert set(shapes(module, example)) == {"input_ids"}
    assert never_read(module, example) == ("eye", "spare")


def test_modules_that_were_never_reached_are_in_the_record_and_fail_a_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sardonyx.export(Optional(), {"input_ids": torch.tensor([[1, 2], [3, 4]])})
    assert made.unreached == ("eye", "spare")
    assert Export.from_json(made.to_json()).unreached == made.unreached

    factory = tmp_path / "net.py"
    factory.write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.used, self.spare = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)\n"
        "    def forward(self, x):\n        return self.used(x)\n"
    )
    arguments = ["export", f"{factory}:Net", "-o", str(tmp_path / "net.onnx"), "--fail-if", "unreached"]
    assert command(arguments) == 4
    captured = capsys.readouterr()
    assert "never reached by these inputs, and not in the file: spare" in captured.out
    assert "gate not met: unreached (unreached is 1)" in captured.err


QWEN = (
    "Qwen2VLForConditionalGeneration?image_token_id=5,video_token_id=6,text_config.num_hidden_layers=1,"
    "text_config.hidden_size=32,text_config.num_attention_heads=4,text_config.num_key_value_heads=2,"
    "text_config.intermediate_size=24,text_config.vocab_size=60,text_config.rope_parameters.rope_type=default,"
    "text_config.rope_parameters.mrope_section=[1,1,2],vision_config.depth=1,vision_config.embed_dim=32,"
    "vision_config.hidden_size=32,vision_config.num_heads=4,vision_config.patch_size=8"
)


def test_images_in_a_special_format_come_from_the_image_processor() -> None:
    module = resolve(f"hf-config:{QWEN}").module
    example = derive(module)
    patches, grid = example.kwargs["pixel_values"], example.kwargs["image_grid_thw"]
    assert patches.shape[0] == grid.prod(1).sum()
    room = patches.shape[0] // 4 // 2  # a token for four patches, of two images
    assert (example.kwargs["input_ids"] == 5).sum(1).tolist() == [room, room]
    assert torch.equal(example.kwargs["mm_token_type_ids"], (example.kwargs["input_ids"] == 5).int())
    assert never_read(module, example) == ()


def test_trials_are_examples_of_the_same_kind_if_values_depend_on_each_other() -> None:
    module = resolve(f"hf-config:{LLAVA}").module
    made = sardonyx.export(module, exporter="torchscript")
    assert made.verdict is not None
    assert made.verdict.passed
    assert len(made.verdict.trials) == 4
    example = derive(module)
    other, another = example.variants(module, (1, 2))
    assert not torch.equal(other.kwargs["input_ids"], another.kwargs["input_ids"])
    assert not torch.equal(other.kwargs["pixel_values"], example.kwargs["pixel_values"])


SOUND = (
    "Qwen2AudioForConditionalGeneration?audio_token_index=5,text_config.hidden_size=32,text_config.num_hidden_layers=1,"
    "text_config.num_attention_heads=4,text_config.num_key_value_heads=2,text_config.intermediate_size=48,"
    "text_config.vocab_size=60,audio_config.d_model=32,audio_config.encoder_layers=1,"
    "audio_config.encoder_attention_heads=2,audio_config.encoder_ffn_dim=48,audio_config.max_source_positions=50"
)


def test_placeholders_that_a_module_would_expand_itself_are_written_out() -> None:
    module = resolve(f"hf-config:{SOUND}").module
    example = derive(module)
    ids = example.kwargs["input_ids"]
    positions = 100 // 2 // 2  # a convolution and a pooling halve the frames
    assert (ids == 5).sum(1).tolist() == [positions, positions]
    assert run(module, example.args, example.kwargs).logits.shape[:2] == ids.shape
    made = sardonyx.export(module, exporter="torchscript")
    assert made.verdict is not None
    assert len(made.verdict.trials) == 4
