"""Stub verbs that return at once, so that the command line is tested alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import sardonyx
from reporting.sample_run import sample_run, sample_verdict
from sardonyx.cli import options
from sardonyx.cli.main import run
from sardonyx.records.run import Run, Verdict


@dataclass
class Stage:
    """Stubs of the verbs: their answers, and the arguments they were called with."""

    run: Run = field(default_factory=sample_run)
    verdict: Verdict = field(default_factory=sample_verdict)
    error: BaseException | None = None
    asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def optimize(self, *args: Any, **kwargs: Any) -> Run:
        return self._answer(self.run, args, kwargs)

    def verify(self, *args: Any, **kwargs: Any) -> Verdict:
        return self._answer(self.verdict, args, kwargs)

    def _answer(self, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.asked.append((args, kwargs))
        if self.error is not None:
            raise self.error
        return answer


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    monkeypatch.setattr(options, "is_there", lambda _path: True)  # the stubs read no file
    monkeypatch.setattr(sardonyx, "optimize", stage.optimize, raising=False)
    monkeypatch.setattr(sardonyx, "verify", stage.verify, raising=False)
    return stage


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def call(*arguments: object) -> Result:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call
