"""What torch's allocators really gave out and took back during a run: the truth that predicted peaks are held to.

taken = on_cpu(lambda: model(**inputs))       every allocation and release that torch's profiler saw
taken = on_cuda(lambda: model(**inputs))      the same from the history of the caching allocator
taken.peak, taken.at_peak                     bytes, and the blocks that were held then, largest first
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Change = tuple[int, int]  # address, bytes: given out where positive, taken back where negative


@dataclass(frozen=True)
class Allocations:
    """What changed, in the order of time; the run's result is still held at the end."""

    changes: tuple[Change, ...]

    @property
    def peak(self) -> int:
        """The most bytes held at once of those that were given out during the run."""
        held = most = 0
        for _, size in self._own():
            held += size
            most = max(most, held)
        return most

    @property
    def at_peak(self) -> list[int]:
        """The blocks that were held when the most was held, largest first."""
        held, total, most, then = dict[int, int](), 0, 0, list[int]()
        for address, size in self._own():
            total += size
            if size > 0:
                held[address] = size
            else:
                held.pop(address)
            if total > most:
                most, then = total, list(held.values())
        return sorted(then, reverse=True)

    def _own(self) -> Iterator[Change]:
        """Without releases of what was given out before."""
        given = dict[int, int]()
        for address, size in self.changes:
            if size > 0:
                given[address] = size
                yield address, size
            elif address in given:
                yield address, -given.pop(address)


def on_cpu(run: Callable[[], Any]) -> Allocations:
    """Run it without gradients under the profiler."""
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = run()
    changes: list[tuple[int, int, int]] = []
    waiting = list(profiled.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    del result
    return Allocations(tuple((address, size) for _, address, size in sorted(changes, key=lambda change: change[0])))


def on_cuda(run: Callable[[], Any]) -> tuple[int, Allocations]:
    """Run it without gradients: the most bytes allocated above those before, and what was asked of the allocator.

    It hands out blocks that it has and does not split those that leave less than a megabyte over, so that more is
    allocated than was asked for.
    """
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
    with torch.no_grad():
        result = run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    del result
    signs = {"alloc": 1, "free_requested": -1}
    changes = [(event["addr"], signs[event["action"]] * event["size"]) for event in trace if event["action"] in signs]
    return peak, Allocations(tuple(changes))
