"""Run many pieces of work on an engine: in order, a bounded number at a time, with a bounded number of attempts.

Every piece of work ends once: done, or failed with a reason. What a lost scheduler forgot is submitted again; a process
that died is tried once more, at the end.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future

from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import SardonyxError, reason
from sardonyx.fleet.engines import Engine, Load
from sardonyx.fleet.isolation import Limits
from sardonyx.fleet.work import Outcome, Work

ATTEMPTS = 2  # of work whose process dies
_POLL = 0.5  # seconds; waiting for a queue without a limit cannot be interrupted on every system
_Event = tuple[int, Future[Outcome] | None]  # work has begun, or its future has ended


class Report(Struct, frozen=True):
    """Work has begun, or has ended if there is an outcome."""

    index: int  # among the works
    outcome: Outcome | None = None
    found: bool = False  # an earlier run, or another one at the same time, has computed it


def run_all(
    works: Sequence[Work],
    engine: Engine,
    limits: Limits | None = None,
    find: Callable[[int], Outcome | None] = lambda _index: None,
    idle: Callable[[], object] = lambda: None,
) -> Generator[Report]:
    """Run all works, timed ones last, and yield reports until each has ended.

    Args:
        works: independent of each other.
        engine: where they run; closing it ends all work.
        limits: of each work.
        find: returns the stored outcome of the work with an index; it is called right before the work would run.
        idle: called every half second in which nothing begins or ends.
    """
    yield from _Execution(works, engine, limits or Limits(), find).reports(idle)


class _Execution:
    """The state of `run_all`."""

    def __init__(
        self, works: Sequence[Work], engine: Engine, limits: Limits, find: Callable[[int], Outcome | None]
    ) -> None:
        self._works, self._engine, self._limits, self._find = works, engine, limits, find
        self._waiting = deque(sorted(range(len(works)), key=lambda index: works[index].needs.timed))
        self._load = Load()
        self._begun: set[int] = set()
        self._attempts: dict[int, int] = {}
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()

    def reports(self, idle: Callable[[], object]) -> Generator[Report]:
        while self._waiting or self._load.works:
            yield from self._submit()
            if not self._load.works:
                continue
            try:
                index, future = self._events.get(timeout=_POLL)
            except queue.Empty:
                idle()
                continue
            if future is None and index not in self._begun:
                self._begun.add(index)  # another attempt is not another beginning
                yield Report(index)
            elif future is None:
                continue
            elif (outcome := self._ended(index, future)) is not None:
                yield Report(index, outcome)

    def _submit(self) -> Generator[Report]:
        """Submit works until the engine takes no more."""
        while self._waiting:
            index = self._waiting[0]
            work = self._works[index]
            if not self._engine.has_room(work.needs, self._load):
                return
            self._waiting.popleft()
            if index not in self._attempts and (found := self._find(index)) is not None:
                yield Report(index, found, found=True)
                continue
            self._load.add(work.needs)
            self._attempts[index] = self._attempts.get(index, 0) + 1
            future = self._engine.submit(work, self._limits, lambda index=index: self._events.put((index, None)))
            future.add_done_callback(lambda future, index=index: self._events.put((index, future)))

    def _ended(self, index: int, future: Future[Outcome]) -> Outcome | None:
        """Return the outcome; None if the work is to be submitted again."""
        self._load.add(self._works[index].needs, -1)
        try:
            outcome = future.result()
        except CancelledError:  # the engine forgot it: this is no attempt
            self._engine.recover()
            self._attempts[index] -= 1
            self._waiting.appendleft(index)
            return None
        except SardonyxError:
            raise
        except Exception as error:  # of the engine
            died = type(error).__name__ == "KilledWorker"  # of Dask, also if the work only waited on workers that died
            outcome = Outcome(None, "every worker that ran it died" if died else reason(error), 0.0, died=died)
        if outcome.died and self._attempts[index] < ATTEMPTS:
            self._waiting.append(index)
            return None
        return replace(outcome, attempts=self._attempts[index])
