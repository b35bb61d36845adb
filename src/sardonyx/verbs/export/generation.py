"""Decoders with a cache: how they are exported, and the check that generation gives the same tokens."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import torch
from msgspec import Struct
from torch import nn

from sardonyx.errors import RuntimeFailure, UsageError, VerificationFailed, reason
from sardonyx.frontend.inputs import dynamic
from sardonyx.frontend.inputs.examples import Example
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.inputs.past import PAST, SWITCH, with_past
from sardonyx.frontend.module_state import replaced
from sardonyx.frontend.running import HALF_TYPES, quietly, run, with_threads
from sardonyx.frontend.tracing.engine import TorchEngine, to_array
from sardonyx.frontend.tracing.structure import window
from sardonyx.ir.io.decoder_folder import CONFIG, DecoderFolder
from sardonyx.records.export import ExampleInput
from sardonyx.records.run import Accuracy, GeneratedBatch, LoadedDecoder, TokenTie
from sardonyx.runtime import Array, Feeds, Value
from sardonyx.runtime.remote import described, free_memory, generate
from sardonyx.verification.output_comparison import OutputComparer, Precise
from sardonyx.verification.subject import Model, Subject
from sardonyx.verification.upcast import NARROW, upcast

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
_ROWS, _TOKENS = 2, 5


def decoder_example(module: nn.Module, seed: int) -> Example:
    """Return token ids, and positions if the module takes them, after a past that the module has computed.

    Raises:
        UsageError: If the module cannot generate, or only together with an encoder.
    """
    kind, parameters = type(module).__name__, inspect.signature(module.forward).parameters
    if not callable(getattr(module, "generate", None)) or IDS not in parameters:
        raise UsageError(
            f"{kind} does not generate tokens",
            hint='choose a decoder with its head (`task="text-generation"`), or leave out `for_generation`',
        )
    facts = Facts(module)
    if facts.is_encoder_decoder:
        raise UsageError(
            f"{kind} needs an encoder to generate, and only decoders are exported for generation",
            hint="export it with `with_past`",
        )
    source = torch.Generator().manual_seed(seed)
    kwargs: dict[str, Any] = {IDS: torch.randint(facts.vocabulary or 2, (_ROWS, _TOKENS), generator=source)}
    if POSITIONS in parameters:
        kwargs[POSITIONS] = torch.arange(_TOKENS).repeat(_ROWS, 1)
    return with_past(module, Example((), kwargs))


def require_dynamic(inputs: Iterable[ExampleInput]) -> None:
    """Refuse a decoder with a fixed batch size or length.

    Raises:
        UsageError: If a dimension is fixed.
    """
    named = {dim for example in inputs for dim in example.dynamic.values()}
    for dim in (dynamic.BATCH, dynamic.SEQUENCE, dynamic.PAST):
        if dim not in named:
            raise UsageError(f"the decoder accepts only one size of {dim}", hint="export it without `for_generation`")


def attention_window(module: nn.Module) -> int | None:
    """Return how many positions the module's cache keeps; None if it keeps all."""
    ids = torch.zeros(1, 1, dtype=torch.int64)
    return window(run(module, (), {IDS: ids, SWITCH: True}).past_key_values)


MODEL = "model.onnx"
_DEFAULT_CONTEXT = 2048  # if the config sets no maximum


def write_beside(folder: Path, module: Any, inputs: Sequence[ExampleInput]) -> list[str]:
    """Write the files and return notes for the user.

    Args:
        module: The exported module; the tokenizer is loaded from where the module was loaded from.
    """
    notes: list[str] = []
    content = genai_config(module, inputs, notes)
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
    with quietly():
        for config in (module.config, module.generation_config):
            config.save_pretrained(str(folder))
    return notes + _tokenizer(folder, str(getattr(module, "name_or_path", "")))


def genai_config(module: Any, inputs: Sequence[ExampleInput], notes: list[str]) -> dict[str, Any]:
    """Return the content of `genai_config.json`; assumptions are appended to `notes`."""
    facts = Facts(module)
    keys, values = (
        next(example.shape for example in inputs if example.name.startswith(PAST) and example.name.endswith(part))
        for part in (".key", ".value")
    )
    if keys != values:
        notes.append("onnxruntime-genai cannot load this cache: its keys and values differ in size")
    heads, size = keys[1], keys[3]
    context = facts.count("positions")
    if context is None:
        context = _DEFAULT_CONTEXT
        notes.append(f"the config sets no maximum position; {CONFIG} uses {context}")
    names = {example.name for example in inputs}
    cached = {f"past_{part}_names": f"{PAST}.%d.{part}" for part in ("key", "value")}
    decoder: dict[str, Any] = {
        "filename": MODEL,
        "head_size": size,
        "hidden_size": facts.count("width"),
        "num_attention_heads": facts.count("heads"),
        "num_hidden_layers": sum(name.startswith(PAST) and name.endswith(".key") for name in names),
        "num_key_value_heads": heads,
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "inputs": {name: name for name in (IDS, MASK, POSITIONS) if name in names} | cached,
        "outputs": {LOGITS: LOGITS, "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
    }
    model = {
        "type": "decoder",
        **_special_tokens(module, facts),
        "context_length": context,
        "vocab_size": facts.vocabulary,
        "decoder": {name: value for name, value in decoder.items() if value is not None},
    }
    return {"model": model, "search": {"max_length": context, "do_sample": False, "past_present_share_buffer": False}}


def _special_tokens(module: Any, facts: Facts) -> dict[str, Any]:
    """Return the ids of special tokens from the generation config or the config; padding defaults to the end token."""
    generation: Any = module.generation_config

    def ids_of(name: str, meaning: str) -> list[int]:
        """Return the ids that are in the vocabulary: the runtime refuses others."""
        value = getattr(generation, name, None)
        value = facts.find(meaning) if value is None else value
        ids = list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else [value]
        return [token for token in ids if isinstance(token, int) and 0 <= token < (facts.vocabulary or 0)]

    begin, end = ids_of("bos_token_id", "beginning"), ids_of("eos_token_id", "end")
    padding = ids_of("pad_token_id", "padding") or end
    tokens = {"bos_token_id": begin[:1], "eos_token_id": end, "pad_token_id": padding[:1]}
    return {name: ids if name == "eos_token_id" else ids[0] for name, ids in tokens.items() if ids}


def _tokenizer(folder: Path, source: str) -> list[str]:
    """Save the tokenizer of the source in the folder; return a note if there is none."""
    if not source:
        return ["no tokenizer was written: the model was not loaded from a folder or hub"]
    try:
        with quietly():
            auto = importlib.import_module("transformers").AutoTokenizer
            auto.from_pretrained(source).save_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        return [f"no tokenizer was written: {reason(error)}"]
    return []


_PAST, _PRESENT = "past_key_values.", "present."
_LENGTHS = ((24,), (1,), (7, 5, 12, 2))  # of prompts; those in one batch are padded on the left
_LONGEST_WINDOW = 1024  # a longer attention window is not exceeded: the prompt would take too long
_BEYOND_WINDOW = 3


class Prompts(Struct, frozen=True, eq=False):
    """A batch of prompts, padded on the left."""

    ids: Array  # [rows, length]
    mask: Array  # [rows, length], 0 for padding

    @classmethod
    def of(cls, rows: Sequence[Array]) -> Prompts:
        """Return prompts of any lengths as one batch."""
        length = max(len(row) for row in rows)
        ids, mask = np.zeros((len(rows), length), np.int64), np.zeros((len(rows), length), np.int64)
        for number, row in enumerate(rows):
            ids[number, length - len(row) :] = row
            mask[number, length - len(row) :] = 1
        return cls(ids, mask)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of tokens in each prompt."""
        return tuple(int(count) for count in self.mask.sum(axis=1))


class Continuation(Struct, frozen=True, eq=False):
    """The tokens that the module generates greedily, and the logits that they were chosen by."""

    tokens: Array  # [rows, steps]
    logits: Array  # [rows, steps, vocabulary]


def continued(module: Any, prompts: Prompts, steps: int, threads: int = 1) -> Continuation:
    """Generate with the module's own `generate()`: the most likely token at each step, without an early stop.

    One thread is the default: the products of a step are so small that threads mostly wait for each other, and OpenBLAS
    waits actively. If other processes use the processor, two threads take ten times the processor time of one.
    """
    own: Any = module.generation_config
    greedy = own.__class__(  # sampling, penalties and end tokens have no effect
        max_new_tokens=steps, do_sample=False, pad_token_id=0, output_logits=True, return_dict_in_generate=True
    )
    with torch.no_grad(), quietly(), replaced(module, "generation_config", greedy), with_threads(threads):
        answer = module.generate(torch.tensor(prompts.ids), attention_mask=torch.tensor(prompts.mask))
    tokens = to_array(answer.sequences)[:, prompts.ids.shape[1] :]
    return Continuation(tokens, to_array(torch.stack(answer.logits, dim=1)))


class Stepper:
    """Runs an exported decoder step by step: each step gets back the cache that the previous one returned."""

    def __init__(self, model: ir.Model) -> None:
        self._inputs = {value.name or "": value for value in model.graph.inputs}
        self._outputs = [value.name or "" for value in model.graph.outputs]
        self.logits_index = self._outputs.index(LOGITS)

    def empty_past(self, rows: int) -> dict[str, Value]:
        """Return a cache without positions: rows are its first axis, positions the last but one, others are fixed."""
        past: dict[str, Value] = {}
        for name, value in self._inputs.items():
            if name.startswith(_PAST):
                sizes = [size if isinstance(size, int) else 0 for size in value.shape or ()]
                dtype = value.dtype or ir.DataType.FLOAT
                past[name] = np.zeros([rows, *sizes[1:-2], 0, sizes[-1]], dtype.numpy())
        return past

    def feeds(self, ids: Array, mask: Array, past: Feeds) -> dict[str, Value]:
        """Return the inputs of a step: new tokens, the mask over past and new tokens, and positions of the new ones."""
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]
        feeds = {IDS: ids, MASK: mask, POSITIONS: positions, **past}
        return {name: value for name, value in feeds.items() if name in self._inputs}

    def logits(self, run: Callable[[Feeds], list[Value]], prompts: Prompts, tokens: Array) -> Array:
        """Return the logits of every step when these tokens are chosen: [rows, steps, vocabulary]."""
        ids, mask, past = prompts.ids, prompts.mask, self.empty_past(len(prompts.ids))
        step_logits: list[Array] = []
        for step in range(tokens.shape[1]):
            outputs = dict(zip(self._outputs, run(self.feeds(ids, mask, past)), strict=True))
            step_logits.append(np.asarray(outputs[LOGITS])[:, -1])
            past = {
                (own := _PAST + name.removeprefix(_PRESENT)): self._in_its_type(own, value)
                for name, value in outputs.items()
                if name != LOGITS
            }
            ids, mask = tokens[:, step : step + 1], np.pad(mask, ((0, 0), (0, 1)), constant_values=1)
        return np.stack(step_logits, axis=1)

    def _in_its_type(self, name: str, value: Value) -> Value:
        """Return a cache in the type that the graph reads, which a run in double precision does not return."""
        wanted = self._inputs[name].dtype if name in self._inputs else None
        if wanted is None or not isinstance(value, np.ndarray) or value.dtype != np.float64:
            return value
        return value.astype(wanted.numpy())

    def at_once(self, prompts: Prompts, tokens: Array) -> dict[str, Value]:
        """Return feeds that read all tokens in one step without a past; the last logits are those of every step."""
        ids = np.concatenate([prompts.ids, tokens[:, :-1]], axis=1)
        mask = np.pad(prompts.mask, ((0, 0), (0, tokens.shape[1] - 1)), constant_values=1)
        return self.feeds(ids, mask, self.empty_past(len(ids)))


class Generated(Struct, frozen=True):
    """The result of the check."""

    batches: tuple[GeneratedBatch, ...]
    failures: tuple[str, ...]
    not_covered: tuple[str, ...]
    alone: tuple[Prompts, Continuation] | None  # a prompt without padding, and what the module continues it with


def in_float32(model: ir.Model) -> ir.Model | None:
    """Return a float32 copy, cache included, of a decoder in half precision; None for other decoders."""
    wide = upcast(model, constants="widen")
    for value in wide.graph.inputs if wide is not None else ():
        if value.dtype in NARROW:
            value.type = ir.TensorType(ir.DataType.FLOAT)
    return wide


class GenerationCheck:
    """Compares an exported decoder with the module that it was exported from.

    Args:
        engine: The same module under the names of the graph's inputs.
        report: Called with one line that says what is being done.
    """

    def __init__(
        self, module: Any, engine: TorchEngine, model: Model, *, threads: int | None, report: Callable[[str], None]
    ) -> None:
        self._module, self._engine, self._report, self._threads = module, engine, report, threads
        self._subject = Subject(model)
        self._stepper = Stepper(self._subject.model)

    def run(self, window: int | None, steps: int, seed: int) -> Generated:
        """Generate from random prompts, and compare every step.

        Args:
            window: The attention window of the module, if it has one.
            steps: The number of tokens; fewer if the module has too few positions.
        """
        limit = Facts(self._module).count("positions")
        steps = steps if limit is None else max(1, min(steps, limit // 2))
        runs = self._generated(self._prompts(window, steps, seed), steps)
        batches: list[GeneratedBatch] = []
        failures: list[str] = []
        for prompts, expected, logits in runs:
            if isinstance(logits, RuntimeFailure):
                lines = [logits.message]
            else:
                batch, lines = self._compared(prompts, expected, logits)
                batches.append(batch)
            what = "prompts" if len(prompts.lengths) > 1 else "a prompt"
            after = f"generating after {what} of {', '.join(map(str, prompts.lengths))} tokens"
            failures += [f"{after}: {line}" for line in lines]
        longest = max((max(batch.prompts) + batch.steps for batch in batches), default=0)
        missed = window is not None and longest <= window
        gaps = (f"the attention window of {window} tokens: the longest sequence had {longest}",) if missed else ()
        alone = next(((prompts, made) for prompts, made, _ in runs if len(prompts.ids) == 1), None)
        return Generated(tuple(batches), tuple(failures), gaps, alone)

    def _prompts(self, window: int | None, steps: int, seed: int) -> list[Prompts]:
        """Return prompts of random tokens: short, long, longer than the attention window, and a padded batch."""
        facts, source = Facts(self._module), np.random.default_rng(seed)
        longest = (facts.count("positions") or 1 << 30) - steps
        beyond = () if window is None or window > _LONGEST_WINDOW else ((window + _BEYOND_WINDOW,),)
        lengths = dict.fromkeys(tuple(max(1, min(length, longest)) for length in rows) for rows in (*_LENGTHS, *beyond))
        return [
            Prompts.of([source.integers(facts.vocabulary or 2, size=length) for length in rows]) for rows in lengths
        ]

    def _generated(
        self, batches: Sequence[Prompts], steps: int
    ) -> list[tuple[Prompts, Continuation, Array | RuntimeFailure]]:
        """Return what the module generates, and the logits of the file as users run it, which is closed again."""
        runs: list[tuple[Prompts, Continuation, Array | RuntimeFailure]] = []
        with self._subject.session(threads=self._threads, optimize=True) as session:
            for number, prompts in enumerate(batches):
                self._report(f"generating {steps} tokens, batch {number + 1} of {len(batches)}")
                expected = continued(self._module, prompts, steps, self._threads or 1)
                try:
                    runs.append((prompts, expected, self._stepper.logits(session.run, prompts, expected.tokens)))
                except RuntimeFailure as failure:
                    runs.append((prompts, expected, failure))
        free_memory()
        return runs

    def _compared(self, prompts: Prompts, expected: Continuation, logits: Array) -> tuple[GeneratedBatch, list[str]]:
        """Compare logits within the tolerance; then tokens can differ only where the two best logits are that close.

        Each row is compared by itself, which takes less memory. If the rounding errors of the module do not explain a
        difference, the graph runs in double precision too, where it must agree with the module.
        """
        reference = expected.logits.astype(logits.dtype, copy=False)
        comparer = OutputComparer(["logits"], Accuracy.REASSOCIATES, frozenset(), exported=True)
        runs, read = list[Array](), self._rounded_otherwise(prompts, expected)

        def otherwise() -> Iterator[Array]:
            """Yield the runs, each computed once for all rows."""
            yield from runs
            for result in read:
                runs.append(result)
                yield result

        lines: list[str] = []
        graph = functools.cache(lambda: self._graph_in_double(prompts, expected))
        for row in range(len(logits)):
            rows = slice(row, row + 1)
            known = Precise(roundings=lambda rows=rows: (([reference[rows]], [each[rows]]) for each in otherwise()))
            pair = [reference[rows]], [logits[rows]]
            different = comparer.compare(*pair, lambda known=known: known)
            if different and len(runs) == 2 and (own := graph()) is not None:
                both = Precise([runs[1][rows]], [own[rows]], known.roundings)
                different = comparer.compare(*pair, lambda both=both: both)
            lines += different
        rows, steps = np.nonzero(logits.argmax(axis=-1) != expected.tokens)
        ties: list[TokenTie] = []
        for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
            token, other = int(expected.tokens[row, step]), int(logits[row, step].argmax())
            gap = float(reference[row, step, token]) - float(reference[row, step, other])
            ties.append(TokenTie(row, step, token, other, gap))
        worst = comparer.outputs()[0].max_abs
        equal = expected.tokens.size - len(ties)
        return GeneratedBatch(prompts.lengths, expected.tokens.shape[1], equal, worst, tuple(ties), not lines), lines

    def _rounded_otherwise(self, prompts: Prompts, expected: Continuation) -> Iterator[Array]:
        """Yield the logits of every step from runs of the module that read all tokens at once.

        Their sums have another order; the second run, which takes much longer, is in double precision.
        """
        feeds, steps = self._stepper.at_once(prompts, expected.tokens), expected.tokens.shape[1]
        with contextlib.suppress(RuntimeFailure):  # a module may read only one token in a step
            for run in (self._engine.run, self._engine.run_in_double):
                if (outputs := run(feeds)) is not None:
                    yield np.asarray(outputs[self._stepper.logits_index])[:, -steps:]

    def _graph_in_double(self, prompts: Prompts, expected: Continuation) -> Array | None:
        """Return the logits of every step from the graph in double precision; None if it does not run in it."""
        from sardonyx.verification.double_precision import DoublePrecision  # loaded where results differ

        double = DoublePrecision(self._subject.model, threads=self._threads)
        try:
            return self._stepper.logits(double.outputs, prompts, expected.tokens)
        except RuntimeFailure:
            return None
        finally:
            double.close()


def loaded(
    folder: Path, generated: Generated, inputs: Sequence[torch.Tensor], *, in_own_types: bool, threads: int | None
) -> tuple[LoadedDecoder | None, list[str]]:
    """Load the written folder as users do, and compare the tokens that onnxruntime-genai generates with the module's.

    A cache in half precision cannot run on many CPUs, and onnxruntime-genai supports one size of keys and values: then
    a note says why the folder does not load.

    Args:
        generated: The result of the check of its model.
        inputs: Those of the decoder, with its cache.
        in_own_types: Whether that check ran the file itself, not a float32 copy, so that tokens can be compared.

    Raises:
        VerificationFailed: The runtime does not load the folder, or a token differs and no tie explains it.
    """
    assert generated.alone is not None
    prompts, expected = generated.alone
    prompt, wanted = prompts.ids[0].tolist(), expected.tokens[0].tolist()
    decoder = DecoderFolder.require(folder)
    end = next((token for token in range(decoder.vocabulary) if token not in (*prompt, *wanted)), None)
    try:
        ran = generate(folder, prompt, len(wanted), end or 0, threads)
    except RuntimeFailure as failure:
        cached = [tensor for tensor in inputs if tensor.is_floating_point()]
        sizes = {(tensor.shape[1], tensor.shape[-1]) for tensor in cached}
        if len(sizes) > 1 or any(tensor.dtype in HALF_TYPES for tensor in cached):
            return None, [f"not loaded: {failure.message}"]
        raise VerificationFailed(
            f"the written folder does not load: {failure.message}", hint='`verify="off"` writes the folder anyway'
        ) from failure
    pairs = enumerate(zip(wanted, ran.tokens, strict=False))
    step = next((step for step, (token, other) in pairs if token != other), None)
    if step is not None and in_own_types and end is not None:  # later tokens follow from this one
        logits, allowed = expected.logits[0, step], 2 * max(batch.max_abs for batch in generated.batches)
        gap = float(logits[wanted[step]]) - float(logits[ran.tokens[step]])
        if gap > allowed:
            raise VerificationFailed(
                f"{ran.runtime} generates token {ran.tokens[step]} instead of {wanted[step]} in step {step + 1}",
                hint='`verify="off"` writes the folder anyway',
            )
    return described(decoder, ran), []
