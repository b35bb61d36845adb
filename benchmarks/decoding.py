"""Decoders with a cache: nodes a layer, and milliseconds a token beside other files of the same model.

    python benchmarks/decoding.py nodes [--exporter dynamo torchscript]
    python benchmarks/decoding.py time NAME=FILE NAME=FILE ... [--past 16 512] [--prompt 64] [--threads 1]
        [--repeats 3] [--seconds 20]
    python benchmarks/decoding.py perplexity TOKENIZER NAME=FILE NAME=FILE ... [--windows 16]

`nodes` exports small configs with a past at two depths and optimizes them; the difference is what a layer takes, the
rest what the model takes once. `time` runs files with the interface of decoders (`input_ids`, `attention_mask`,
`past_key_values.N.key`) in turns, the first one twice, and compares the others with it. Each repetition loads all files
anew: where the weights lie in memory alone makes up to 3 % for as long as a session lives, so the range over the
repetitions is told, not the interval within one. One thread is timed by the processor's clock, more by the wall clock.
`python -m onnxruntime_genai.models.builder -i FOLDER -o OUT -p fp32 -e cpu` builds the file to compare with.
`perplexity` reads docstrings of the standard library in windows of 256 tokens with each file, and compares the losses
of the same tokens with those of the first file. TOKENIZER is a tokenizer.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

import sardonyx
from sardonyx.ir import io
from sardonyx.runtime import Session
from sardonyx.runtime.library import Feeds
from sardonyx.runtime.timed import Settings, TimedModel
from sardonyx.verbs.bench import interleaving

SMALL = "hidden_size=64,num_attention_heads=4,intermediate_size=128,vocab_size=100"
GROUPED = f"{SMALL},num_key_value_heads=2"
MODELS = {
    "Llama": f"LlamaConfig?{GROUPED},num_hidden_layers=",
    "Mistral, window 8": f"MistralConfig?{GROUPED},sliding_window=8,num_hidden_layers=",
    "Qwen 3": f"Qwen3Config?{GROUPED},head_dim=16,num_hidden_layers=",
    "Gemma 3, full attention": f"Gemma3TextConfig?{GROUPED},head_dim=16,sliding_window=4096,num_hidden_layers=",
    "Phi-3": f"Phi3Config?{GROUPED},pad_token_id=0,num_hidden_layers=",
    "GPT-2": "GPT2Config?n_embd=64,n_head=4,vocab_size=100,n_layer=",
    "OPT": "OPTConfig?hidden_size=64,num_attention_heads=4,ffn_dim=128,vocab_size=100,word_embed_proj_dim=64,"
    "num_hidden_layers=",
    "Bloom": "BloomConfig?hidden_size=64,n_head=4,vocab_size=100,n_layer=",
}
Exporter = Literal["dynamo", "torchscript"]
DEPTHS = (2, 3)
TARGETS: tuple[Literal["portable", "ort"], ...] = ("portable", "ort")
HIGHEST_TOKEN = 100
CACHE_RANK = 4  # [batch, heads, length, width]
WINDOW = 256  # tokens that are read without what is before them
SKIPPED = 4096  # tokens at the beginning, which are for data of `quantize`


def counted(config: str, exporter: Exporter, folder: Path) -> dict[str, tuple[int, ...]]:
    """Nodes of the export and of what it becomes, at each depth."""
    found: dict[str, list[int]] = {"export": [], **{target: [] for target in TARGETS}}
    for depth in DEPTHS:
        path = folder / "raw.onnx"
        source = f"hf-config:{config}{depth}"
        options = sardonyx.ExportOptions(with_past=True)
        sardonyx.export(
            source, output=path, dynamic="auto", exporter=exporter, verify="off", force=True, options=options
        )
        for target in TARGETS:
            run = sardonyx.optimize(path, target=target, options=sardonyx.OptimizeOptions(verify_seconds=4))
            assert run.verdict is not None
            assert run.verdict.passed, run.verdict
            found[target].append(run.after.nodes)
            found["export"][depth - DEPTHS[0] :] = [run.before.nodes]
    return {name: tuple(counts) for name, counts in found.items()}


def node_table(exporters: Sequence[Exporter]) -> Iterator[str]:
    """One row for each model and exporter: a layer, and in brackets what there is once."""
    yield "| model | exporter | export | portable | `ort` |\n|---|---|---|---|---|"
    for name, config in MODELS.items():
        for exporter in exporters:
            with tempfile.TemporaryDirectory() as folder:
                found = counted(config, exporter, Path(folder))
            cells: list[str] = []
            for few, more in found.values():
                layer = (more - few) // (DEPTHS[1] - DEPTHS[0])
                cells.append(f"{layer} (+{few - layer * DEPTHS[0]})")
            yield f"| {name} | {exporter} | {' | '.join(cells)} |"


def fed(paths: Iterable[str], past: int, new: int) -> Feeds:
    """Tokens, a mask that hides nothing, and a past of random numbers; one sequence."""
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {
        "input_ids": rng.integers(5, HIGHEST_TOKEN, (1, new)),
        "attention_mask": np.ones((1, past + new), np.int64),
        "position_ids": np.arange(past, past + new)[None],
    }
    for value in [value for path in paths for value in io.load(path).graph.inputs]:
        name, shape = value.name or "", tuple(value.shape or ())
        if name in feeds or len(shape) != CACHE_RANK:
            continue
        heads, width = shape[1], shape[3]
        if isinstance(heads, int) and isinstance(width, int):  # some files have names for them
            feeds[name] = rng.standard_normal((1, heads, past, width), np.float32) / 8
    return feeds


def raced(files: dict[str, str], past: int, new: int, *, threads: int, seconds: float) -> interleaving.Race:
    """All files in turns, loaded for this."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    drawn = fed(files.values(), past, new)

    def contender(path: str) -> interleaving.Run:
        names = {value.name for value in io.load(path).graph.inputs}
        feeds = {name: value for name, value in drawn.items() if name in names}
        return interleaving.slot(TimedModel(path, Settings(threads)).ready(feeds), now=clock)

    runs = {name: contender(path) for name, path in files.items()}
    return interleaving.race(runs, twin=contender(next(iter(files.values()))), seconds=seconds)


def time_table(files: dict[str, str], options: argparse.Namespace) -> Iterator[str]:
    """One row for each file and amount of work: milliseconds, and the ratio over the repetitions."""
    first = next(iter(files))
    yield f"| threads | work | file | ms | over {first} |\n|---|---|---|---|---|"
    work = [(past, 1) for past in options.past] + [(0, prompt) for prompt in options.prompt]
    for threads in options.threads:
        for past, new in work:
            races = [raced(files, past, new, threads=threads, seconds=options.seconds) for _ in range(options.repeats)]
            what = f"1 token after {past}" if past else f"prompt of {new}"
            for name in files:
                spent = statistics.median(statistics.median(race.seconds[name]) for race in races)
                ratios = sorted(race.comparison(name).ratio for race in races)
                ratio = f"{statistics.median(ratios):.3f} [{ratios[0]:.3f}, {ratios[-1]:.3f}]"
                yield f"| {threads} | {what} | {name} | {1000 * spent:.2f} | {ratio} |"


def token_ids(tokenizer: str, count: int = 0) -> np.ndarray:
    """Return token ids of docstrings, in an order that depends on the seed alone: SKIPPED and so many windows more."""
    import tokenizers

    from precision_packages import docstrings

    texts = list(docstrings())
    order = np.random.default_rng(9).permutation(len(texts))
    text = "\n\n".join(texts[index] for index in order)[: 16 * (SKIPPED + WINDOW * count)]
    return np.array(tokenizers.Tokenizer.from_file(tokenizer).encode(text).ids, np.int64)


def token_windows(tokenizer: str, count: int) -> list[np.ndarray]:
    """Return windows of token ids that are not data of `quantize`."""
    ids = token_ids(tokenizer, count)
    return [ids[start : start + WINDOW] for start in range(SKIPPED, SKIPPED + WINDOW * count, WINDOW)]


def losses(path: str, others: Feeds, windows: Iterable[np.ndarray]) -> np.ndarray:
    """Return -log p of every token but the first of each window."""
    graph, session, found = io.load(path).graph, Session(path, optimize=True, threads=1), list[np.ndarray]()
    names, place = {value.name for value in graph.inputs}, [value.name for value in graph.outputs].index("logits")
    for ids in windows:
        feeds = {name: value for name, value in {**others, "input_ids": ids[None]}.items() if name in names}
        logits = np.asarray(session.run(feeds)[place])[0, :-1].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        found.append(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(ids) - 1), ids[1:]])
    return np.concatenate(found)


def perplexity_table(tokenizer: str, files: dict[str, str], windows: int) -> Iterator[str]:
    """One row for each file: perplexity, the mean difference of the losses with two standard errors, and bytes."""
    read, others, first = token_windows(tokenizer, windows), fed(files.values(), 0, WINDOW), None
    yield f"| file | perplexity of {windows * (WINDOW - 1):,} tokens | loss beyond {next(iter(files))} | MB |"
    yield "|---|---|---|---|"
    for name, path in files.items():
        found = losses(path, others, read)
        first = found if first is None else first
        more = found - first
        spread = 2 * more.std() / len(more) ** 0.5
        size = sum(file.stat().st_size for file in Path(path).parent.glob("model.onnx*")) / 1e6
        yield f"| {name} | {np.exp(found.mean()):.2f} | {more.mean():+.3f} ± {spread:.3f} | {size:.0f} |"


def main(arguments: Sequence[str]) -> None:
    """Print the table asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = parser.add_subparsers(dest="table", required=True)
    nodes = tables.add_parser("nodes")
    nodes.add_argument("--exporter", nargs="+", default=["dynamo", "torchscript"])
    timed = tables.add_parser("time")
    timed.add_argument("files", nargs="+", metavar="NAME=FILE")
    timed.add_argument("--past", nargs="+", type=int, default=[16, 512])
    timed.add_argument("--prompt", nargs="+", type=int, default=[64])
    timed.add_argument("--threads", nargs="+", type=int, default=[1])
    timed.add_argument("--repeats", type=int, default=3)
    timed.add_argument("--seconds", type=float, default=20.0)
    read = tables.add_parser("perplexity")
    read.add_argument("tokenizer")
    read.add_argument("files", nargs="+", metavar="NAME=FILE")
    read.add_argument("--windows", type=int, default=16)
    options = parser.parse_args(arguments)
    if options.table == "nodes":
        lines = node_table(options.exporter)
    else:
        files: dict[str, str] = dict(each.split("=", 1) for each in options.files)
        is_timed = options.table == "time"
        lines = time_table(files, options) if is_timed else perplexity_table(options.tokenizer, files, options.windows)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
