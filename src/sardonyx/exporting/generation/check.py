"""Verify an exported decoder by generation: compare the logits and tokens of every step with the module's `generate()`.

The runtime starts with an empty past and gets its own cache back at each step. It reads the module's tokens, so that
one differing token does not make all later steps incomparable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from msgspec import Struct

from sardonyx.errors import RuntimeFailure
from sardonyx.exporting.generation.decoder import IDS, LOGITS, MASK, POSITIONS
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.quiet import quietly
from sardonyx.frontend.tracing.engine import to_array
from sardonyx.records.run import Accuracy, GeneratedBatch, TokenTie
from sardonyx.runtime import Array, Feeds, Value
from sardonyx.runtime.remote import RemoteSession
from sardonyx.verification import noise
from sardonyx.verification.output_comparison import Noise, OutputComparer
from sardonyx.verification.rounding import LiveEngine, moved_by_rounding
from sardonyx.verification.subject import Model, Subject
from sardonyx.verification.upcast import upcast

_PAST, _PRESENT = "past_key_values.", "present."
STEPS = 32
_LENGTHS = ((1,), (7,), (24,), (5, 12, 2))  # of prompts; those in one batch are padded on the left
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


def continued(module: Any, prompts: Prompts, steps: int) -> Continuation:
    """Generate with the module's own `generate()`: the most likely token at each step, without an early stop."""
    with torch.no_grad(), quietly(), _greedy(module, steps):
        answer = module.generate(torch.tensor(prompts.ids), attention_mask=torch.tensor(prompts.mask))
    tokens = to_array(answer.sequences)[:, prompts.ids.shape[1] :]
    return Continuation(tokens, to_array(torch.stack(answer.logits, dim=1)))


@contextlib.contextmanager
def _greedy(module: Any, steps: int) -> Generator[None]:
    """Replace the generation config, so that sampling, penalties and end tokens have no effect, and restore it."""
    own: Any = module.generation_config
    module.generation_config = own.__class__(
        max_new_tokens=steps, do_sample=False, pad_token_id=0, output_logits=True, return_dict_in_generate=True
    )
    try:
        yield
    finally:
        module.generation_config = own


class Stepper:
    """Runs an exported decoder step by step: each step gets back the cache that the previous one returned."""

    def __init__(self, model: ir.Model) -> None:
        self._inputs = {value.name or "": value for value in model.graph.inputs}
        self._outputs = [value.name or "" for value in model.graph.outputs]
        self.logits_index = self._outputs.index(LOGITS)

    def empty_past(self, rows: int) -> dict[str, Value]:
        """Return a cache without positions."""
        return {name: _empty(value, rows) for name, value in self._inputs.items() if name.startswith(_PAST)}

    def feeds(self, ids: Array, mask: Array, past: Feeds) -> dict[str, Value]:
        """Return the inputs of a step: new tokens, the mask over past and new tokens, and positions of the new ones."""
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]
        feeds = {IDS: ids, MASK: mask, POSITIONS: positions, **past}
        return {name: value for name, value in feeds.items() if name in self._inputs}

    def logits(self, session: RemoteSession, prompts: Prompts, tokens: Array) -> Array:
        """Return the logits of every step when these tokens are chosen: [rows, steps, vocabulary]."""
        ids, mask, past = prompts.ids, prompts.mask, self.empty_past(len(prompts.ids))
        step_logits: list[Array] = []
        for step in range(tokens.shape[1]):
            outputs = dict(zip(self._outputs, session.run(self.feeds(ids, mask, past)), strict=True))
            step_logits.append(np.asarray(outputs[LOGITS])[:, -1])
            past = {_PAST + name.removeprefix(_PRESENT): outputs[name] for name in outputs if name != LOGITS}
            ids, mask = tokens[:, step : step + 1], np.pad(mask, ((0, 0), (0, 1)), constant_values=1)
        return np.stack(step_logits, axis=1)

    def at_once(self, prompts: Prompts, tokens: Array) -> dict[str, Value]:
        """Return feeds that read all tokens in one step without a past; the last logits are those of every step."""
        ids = np.concatenate([prompts.ids, tokens[:, :-1]], axis=1)
        mask = np.pad(prompts.mask, ((0, 0), (0, tokens.shape[1] - 1)), constant_values=1)
        return self.feeds(ids, mask, self.empty_past(len(ids)))


def _empty(value: ir.Value, rows: int) -> Array:
    """Return an empty cache tensor: rows are the first axis, positions the last but one, other sizes are fixed."""
    shape = value.shape or ()
    sizes = [size if isinstance(size, int) else 0 for size in shape]
    dtype = value.dtype or ir.DataType.FLOAT
    return np.zeros([rows, *sizes[1:-2], 0, sizes[-1]], dtype.numpy())


class Generated(Struct, frozen=True):
    """The result of the check."""

    batches: tuple[GeneratedBatch, ...]
    failures: tuple[str, ...]
    not_covered: tuple[str, ...]


def random_prompts(module: Any, window: int | None, steps: int, seed: int) -> list[Prompts]:
    """Return prompts of random tokens: short, long, longer than the attention window, and a padded batch."""
    facts, source = Facts(module), np.random.default_rng(seed)
    longest = (facts.count("positions") or 1 << 30) - steps
    beyond = () if window is None or window > _LONGEST_WINDOW else ((window + _BEYOND_WINDOW,),)
    lengths = dict.fromkeys(tuple(max(1, min(length, longest)) for length in rows) for rows in (*_LENGTHS, *beyond))
    return [Prompts.of([source.integers(facts.vocabulary or 2, size=length) for length in rows]) for rows in lengths]


def in_float32(model: ir.Model) -> ir.Model | None:
    """Return a float32 copy, cache included, of a decoder in half precision; None for other decoders."""
    wide = upcast(model, constants="widen")
    for value in wide.graph.inputs if wide is not None else ():
        if value.dtype in noise.NARROW:
            value.type = ir.TensorType(ir.DataType.FLOAT)
    return wide


class GenerationCheck:
    """Compares an exported decoder with the module that it was exported from.

    Args:
        module: The module, with its `generate()`.
        engine: The same module under the names of the graph's inputs.
        model: The exported model.
        threads: Threads of the runtime.
        report: Called with one line that says what is being done.
    """

    def __init__(
        self, module: Any, engine: LiveEngine, model: Model, *, threads: int | None, report: Callable[[str], None]
    ) -> None:
        self._module, self._engine, self._report, self._threads = module, engine, report, threads
        self._subject = Subject(model)
        self._stepper = Stepper(self._subject.model)
        self._probe: RemoteSession | None = None

    def run(self, batches: Sequence[Prompts], steps: int) -> tuple[list[GeneratedBatch], list[str]]:
        """Generate `steps` tokens from each batch of prompts; return the results and the failures."""
        results: list[GeneratedBatch] = []
        failures: list[str] = []
        with self._subject.session(threads=self._threads) as session:
            for number, prompts in enumerate(batches):
                self._report(f"generating {steps} tokens, batch {number + 1} of {len(batches)}")
                expected = continued(self._module, prompts, steps)
                try:
                    logits = self._stepper.logits(session, prompts, expected.tokens)
                except RuntimeFailure as failure:
                    failures.append(f"generating after {_describe(prompts)}: {failure.message}")
                    continue
                batch, lines = self._compared(session, prompts, expected, logits)
                results.append(batch)
                failures += [f"generating after {_describe(prompts)}: {line}" for line in lines]
        if self._probe is not None:
            self._probe.close()
        return results, failures

    def _compared(
        self, session: RemoteSession, prompts: Prompts, expected: Continuation, logits: Array
    ) -> tuple[GeneratedBatch, list[str]]:
        """Compare logits within the tolerance; then tokens can differ only where the two best logits are that close."""
        reference = expected.logits.astype(logits.dtype)
        comparer = OutputComparer(["logits"], Accuracy.REASSOCIATES, frozenset(), exported=True)
        lines = comparer.compare([reference], [logits], lambda: self._noise(session, prompts, expected, reference))
        rows, steps = np.nonzero(logits.argmax(axis=-1) != expected.tokens)
        ties = tuple(
            _tie(int(row), int(step), int(expected.tokens[row, step]), reference[row, step], logits[row, step])
            for row, step in zip(rows, steps, strict=True)
        )
        worst = comparer.outputs()[0].max_abs
        equal = expected.tokens.size - len(ties)
        return GeneratedBatch(prompts.lengths, expected.tokens.shape[1], equal, worst, ties, not lines), lines

    def _noise(
        self, session: RemoteSession, prompts: Prompts, expected: Continuation, reference: Array
    ) -> Noise | None:
        """Return how much rounding alone changes the logits of every step, from runs that read all tokens at once."""
        feeds, steps = self._stepper.at_once(prompts, expected.tokens), expected.tokens.shape[1]

        def last(outputs: Sequence[Value] | None) -> list[Value]:
            return [] if outputs is None else [np.asarray(outputs[self._stepper.logits_index])[:, -steps:]]

        try:
            clean = last(session.run(feeds))
            probe = self._probe or self._opened_probe()
            first = None if probe is None else last(probe.run({**feeds, **noise.sample(0)}))
        except RuntimeFailure:  # no kernel for the probe's types: the noise is unknown
            return None
        if probe is None or first is None:
            return None
        precise = last(self._engine.run_in_double(feeds))
        moved = moved_by_rounding(clean, [reference], precise)

        def disturbed(sample: int) -> list[Value]:
            return last(probe.run({**feeds, **noise.sample(sample)})) if sample else moved

        return Noise(clean, disturbed)

    def _opened_probe(self) -> RemoteSession | None:
        copy: ir.Model | None = noise.disturbed(self._subject.model)
        if copy is not None:
            self._probe = Subject(copy).session(threads=self._threads)
        return self._probe


def _tie(row: int, step: int, token: int, reference: Array, logits: Array) -> TokenTie:
    other = int(logits.argmax())
    return TokenTie(row, step, token, other, float(reference[token]) - float(reference[other]))


def _describe(prompts: Prompts) -> str:
    lengths = ", ".join(map(str, prompts.lengths))
    return f"prompts of {lengths} tokens" if len(prompts.lengths) > 1 else f"a prompt of {lengths} tokens"


def check_generation(
    module: Any,
    engine: LiveEngine,
    model: Model,
    *,
    window: int | None,
    steps: int = STEPS,
    seed: int = 0,
    threads: int | None = None,
    report: Callable[[str], None] = lambda _text: None,
) -> Generated:
    """Generate from random prompts with the model file and with the module, and compare every step."""
    limit = Facts(module).count("positions")
    steps = steps if limit is None else max(1, min(steps, limit // 2))
    batches, failures = GenerationCheck(module, engine, model, threads=threads, report=report).run(
        random_prompts(module, window, steps, seed), steps
    )
    longest = max((max(batch.prompts) + batch.steps for batch in batches), default=0)
    missed = window is not None and longest <= window
    gaps = (f"the attention window of {window} tokens: the longest sequence had {longest}",) if missed else ()
    return Generated(tuple(batches), tuple(failures), gaps)
