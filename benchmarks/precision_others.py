"""More trained models that ship inside Python packages, judged on data of another source than the calibration.

For benchmarks/precision_default.py. Their packages are nudenet==3.4.2, speechmos==0.0.1.1, resemblyzer==0.1.4,
ddddocr, silero-vad, magika and facenet-pytorch. Calibration: crops of photographs, lines drawn with a font, synthetic
voices, files of packages. Unseen: faces and pages, photographs of text, chords in noise, files of the system.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

import precision_packages as packaged
from precision_models import Case, Feeds, export, input_name, store

COUNT = 32  # samples of each source
_RATE = 16000


def photographed_text(packages: Path, count: int, size: tuple[int, int], seed: int) -> list[Image.Image]:
    """Return strips of the two photographs of text of scikit-image, resized as lines."""
    rng = np.random.default_rng(seed)
    images = [Image.open(packages / "skimage/data" / name).convert("RGB") for name in ("page.png", "text.png")]
    found: list[Image.Image] = []
    for index in range(count):
        image = images[index % 2]
        height = int(rng.uniform(18, 40))
        width = min(image.width, height * size[0] // size[1])
        left, top = int(rng.integers(0, image.width - width + 1)), int(rng.integers(0, image.height - height + 1))
        found.append(image.crop((left, top, left + width, top + height)).resize(size))
    return found


def chords(seconds: float, seed: int) -> NDArray[np.float32]:
    """Return chords of decaying tones in pink noise: sound that is no voice."""
    rng, count = np.random.default_rng(seed), int(seconds * _RATE)
    time = np.arange(count) / _RATE
    noise = np.cumsum(rng.normal(0, 0.01, count)) * np.exp(-time % 1)
    sound = noise - np.convolve(noise, np.ones(400) / 400, "same")
    for start in np.arange(0, seconds, 0.35):
        tones = rng.uniform(110, 1800, 4)
        after = np.maximum(time - start, 0)
        sound += 0.12 * np.exp(-4 * after) * (time >= start) * sum(np.sin(2 * np.pi * f * after) for f in tones)
    return sound.astype(np.float32)


def voices(seconds: int, seed: int) -> NDArray[np.float32]:
    """Return synthetic speech."""
    return packaged.voice(seconds, seed)


def _stored(case: Case, source: Path, size: str, known: list[Feeds], other: list[Feeds]) -> Case:
    packaged.unpacked(source, case.folder, known[0])
    return store(case, known, other, {size: other[0]})


def nudity(name: str, folder: Path, packages: Path) -> Case:
    """YOLOv8n of NudeNet: boxes in photographs; judged on faces and pages."""
    faces = np.load(packages / "skimage/data/lfw_subset.npy")[:12]
    other = [Image.fromarray((255 * face).astype(np.uint8)).convert("RGB").resize((320, 320)) for face in faces]
    other += packaged.pages(8, (320, 320), 21)
    images = [np.asarray(i, np.float32).transpose(2, 0, 1)[None] / 255 for i in other]
    known = [
        np.asarray(i, np.float32).transpose(2, 0, 1)[None] / 255 for i in packaged.crops(packages, 24, (320, 320), 20)
    ]
    case = Case(name, "CNN", "nudenet", "photographs; unseen: faces and pages", folder, has_classes=False)
    feeds = [[{"images": np.ascontiguousarray(image)} for image in part] for part in (known, images)]
    return _stored(case, packages / "nudenet/320n.onnx", "320 × 320", *feeds)


def captcha_text(name: str, folder: Path, packages: Path) -> Case:
    """ddddocr's recognition of text: drawn lines; judged on photographs of text."""

    def gray(images: list[Image.Image]) -> list[Feeds]:
        rows = [np.asarray(image.convert("L"), np.float32)[None, None] / 255 for image in images]
        return [{"input1": (row - 0.5) / 0.5} for row in rows]

    known, other = packaged.lines(COUNT, (192, 64), 22), photographed_text(packages, COUNT, (192, 64), 22)
    case = Case(name, "CNN", "ddddocr", "lines; unseen: photographs of text", folder, has_classes=False)
    return _stored(case, packages / "ddddocr/common.onnx", "64 × 192", gray(known), gray(other))


def old_recognition(name: str, folder: Path, packages: Path) -> Case:
    """PP-OCRv3's recognition: drawn lines; judged on photographs of text."""
    source = next((packages / "rapidocr_1_2_3").rglob("*rec*.onnx"))
    known, other = packaged.lines(COUNT, (320, 48), 23), photographed_text(packages, COUNT, (320, 48), 23)
    key = onnxruntime.InferenceSession(source).get_inputs()[0].name
    feeds = [[{key: packaged.tensor(image)} for image in part] for part in (known, other)]
    case = Case(name, "CNN", "rapidocr-onnxruntime 1.2.3", "lines; unseen: photographs of text", folder)
    return _stored(case, source, "48 × 320", *feeds)


def quality(name: str, folder: Path, packages: Path) -> Case:
    """DNSMOS: three scores of nine seconds of sound; voices; judged on chords."""
    known = [{"input_1": voices(10, 30 + seed)[None, :144160]} for seed in range(16)]
    other = [{"input_1": chords(9.02, seed)[None, :144160]} for seed in range(16)]
    case = Case(name, "CNN", "speechmos", "synthetic speech; unseen: chords", folder, has_classes=False)
    source = next(path for path in sorted((packages / "speechmos").rglob("sig_bak_ovr.onnx")))
    return _stored(case, source, "9 s", known, other)


def _spectrum(sound: NDArray[np.float32], bands: int) -> NDArray[np.float32]:
    """Return log powers of bands every 10 ms."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, 400)[::160] * np.hanning(400)
    power = np.abs(np.fft.rfft(frames, 512)) ** 2
    edges = np.geomspace(2, 256, bands + 1).astype(int)
    rows = [power[:, a : max(b, a + 1)].mean(1) for a, b in itertools.pairwise(edges)]
    return np.stack(rows, 1).astype(np.float32)


class Speaker(nn.Module):
    """Resemblyzer's embedding of a voice: three layers of LSTM."""

    def __init__(self) -> None:
        """Build the layers under the names of the weights."""
        super().__init__()
        self.lstm, self.linear = nn.LSTM(40, 256, 3, batch_first=True), nn.Linear(256, 256)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        """Return the embedding."""
        _, (hidden, _) = self.lstm(mels)
        return nn.functional.normalize(self.linear(hidden[-1]).relu(), dim=1)


def speaker(name: str, folder: Path, packages: Path) -> Case:
    """Resemblyzer: voices; judged on chords."""
    module = Speaker()
    weights = torch.load(packages / "resemblyzer/pretrained.pt", map_location="cpu", weights_only=False)["model_state"]
    module.load_state_dict({key: value for key, value in weights.items() if key.startswith(("lstm", "linear"))})
    parts = [[_spectrum(sound(2, seed), 40)[None, :160] for seed in range(COUNT)] for sound in (voices, chords)]
    export(module, (torch.from_numpy(np.concatenate(parts[0][:2])),), folder / "model.onnx")
    known, other = ([{input_name(folder): array} for array in part] for part in parts)
    case = Case(name, "recurrent", "resemblyzer", "synthetic speech; unseen: chords", folder, has_classes=False)
    return store(case, known, other, {"1.6 s": other[0]})


def _listened(sound: NDArray[np.float32], source: Path) -> list[Feeds]:
    """Return the inputs of a voice detector for each 32 ms, with the states of the float32 model on the way."""
    session, state, found = onnxruntime.InferenceSession(source), np.zeros((2, 1, 128), np.float32), list[Feeds]()
    names = {value.name for value in session.get_inputs()}
    for start in range(0, len(sound) - 576, 512):
        every: Feeds = {"input": sound[None, start : start + 576], "state": state, "sr": np.array(_RATE)}
        feeds = {key: array for key, array in every.items() if key in names}
        found.append(feeds)
        state = np.asarray(session.run(None, feeds)[1])
    return found


def voice_in_if(name: str, folder: Path, packages: Path) -> Case:
    """Silero's voice detector whose model is inside an If: voices; judged on chords."""
    source = packages / "silero_vad/data/silero_vad.onnx"
    known, other = _listened(voices(3, 40), source)[:80], _listened(chords(3, 40), source)[:80]
    case = Case(name, "recurrent", "silero-vad", "synthetic speech; unseen: chords", folder, has_classes=False)
    return _stored(case, source, "32 ms", known, other)


def voice_sequence(name: str, folder: Path, packages: Path) -> Case:
    """Silero's voice detector for many windows at once: voices; judged on chords."""
    source = packages / "silero_vad/data/silero_vad_16k_sequence.onnx"
    state = np.zeros((1, 1, 128), np.float32)

    def windows(sound: NDArray[np.float32]) -> list[Feeds]:
        rows = np.lib.stride_tricks.sliding_window_view(sound, 576)[::512]
        return [{"input": rows[at : at + 16].copy(), "h": state, "c": state} for at in range(0, len(rows) - 16, 16)]

    case = Case(name, "recurrent", "silero-vad", "synthetic speech; unseen: chords", folder, has_classes=False)
    return _stored(case, source, "0.5 s", windows(voices(16, 41)), windows(chords(16, 41)))


class RNet(nn.Module):
    """The second stage of MTCNN: whether a crop shows a face, and its box."""

    def __init__(self) -> None:
        """Build the layers under the names of the weights."""
        super().__init__()
        for index, (inputs, outputs, size) in enumerate(((3, 28, 3), (28, 48, 3), (48, 64, 2)), 1):
            setattr(self, f"conv{index}", nn.Conv2d(inputs, outputs, size))
            setattr(self, f"prelu{index}", nn.PReLU(outputs))
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores and the box."""
        for index in (1, 2, 3):
            image = getattr(self, f"prelu{index}")(getattr(self, f"conv{index}")(image))
            image = nn.functional.max_pool2d(image, 3, 2, ceil_mode=True) if index < 3 else image
        x = self.prelu4(self.dense4(image.permute(0, 3, 2, 1).flatten(1)))
        return self.dense5_1(x).softmax(1), self.dense5_2(x)


def small_face(name: str, folder: Path, packages: Path) -> Case:
    """MTCNN's R-Net: photographs; judged on faces."""
    module = RNet()
    module.load_state_dict(torch.load(packages / "facenet_pytorch/data/rnet.pt", weights_only=True))
    faces = np.load(packages / "skimage/data/lfw_subset.npy")[:COUNT]
    other = [Image.fromarray((255 * face).astype(np.uint8)).convert("RGB").resize((24, 24)) for face in faces]
    parts = [
        [((np.asarray(i, np.float32) - 127.5) / 128).transpose(2, 0, 1)[None].copy() for i in part]
        for part in (packaged.crops(packages, COUNT, (24, 24), 24), other)
    ]
    export(module, (torch.from_numpy(np.concatenate(parts[0][:2])),), folder / "model.onnx")
    known, unseen = ([{input_name(folder): array} for array in part] for part in parts)
    case = Case(name, "CNN", "facenet-pytorch", "photographs; unseen: faces", folder)
    return store(case, known, unseen, {"24 × 24": unseen[0]})


def file_types_elsewhere(name: str, folder: Path, packages: Path) -> Case:
    """Magika: files of packages; judged on those of Python's installation."""
    rng, parts = np.random.default_rng(25), list[list[Feeds]]()
    for home in (packages, Path(sys.base_prefix)):
        files = [path for path in sorted(home.rglob("*")) if path.is_file() and 64 < path.stat().st_size < 400_000]
        chosen = [files[int(index)] for index in rng.choice(len(files), 48, replace=False)]
        parts.append([{"bytes": packaged.ends(path)} for path in chosen])
    case = Case(name, "CNN", "magika", "files of packages; unseen: of Python's installation", folder)
    return _stored(case, packages / "magika/models/standard_v3_3/model.onnx", "1 file", *parts)


OTHERS: dict[str, Callable[[str, Path, Path], Case]] = {
    "yolo": nudity,
    "captcha-text": captcha_text,
    "old-recognition": old_recognition,
    "speech-quality": quality,
    "speaker": speaker,
    "voice-in-if": voice_in_if,
    "voice-sequence": voice_sequence,
    "small-face": small_face,
    "file-types-elsewhere": file_types_elsewhere,
}
