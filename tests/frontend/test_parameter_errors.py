"""An error names the parameter it is about, with a hint that works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sardonyx.errors import UsageError
from sardonyx.frontend.inputs.examples import derive
from sardonyx.frontend.inputs.search import parameters_at_fault
from sardonyx.frontend.running import probe


class PackedGru(nn.Module):
    """Packs its sequences by their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.gru = nn.Embedding(50, 8), nn.GRU(8, 16, batch_first=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]


class PackedByAnotherName(PackedGru):
    """The name of the second parameter does not indicate its meaning."""

    def forward(self, ids: Tensor, n: Tensor) -> Tensor:
        return super().forward(ids, n)


class Reads(nn.Module):
    """Applies a function to its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.wide = nn.Parameter(torch.ones(7, 4))


class ByKey(Reads):
    def forward(self, ids: Any, batch: Any) -> Tensor:
        return self.layer(batch["x"]) + ids.float().mean()


class AnnotatedByKey(Reads):
    def forward(self, ids: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return self.layer(batch["x"]) + ids.float().mean()


class Listed(Reads):
    def forward(self, x: Any, parts: list[Tensor]) -> Tensor:
        return self.layer(x) + torch.cat(parts, 0)


class Counted(Reads):
    def forward(self, x: Any, times: Any) -> Tensor:
        for _ in range(times):
            x = x + 1
        return self.layer(x)


class AnnotatedCount(Reads):
    def forward(self, x: Tensor, times: int) -> Tensor:
        return self.layer(x) * times


class Named(Reads):
    def forward(self, x: Any, mode: Any) -> Tensor:
        return getattr(torch, mode)(self.layer(x))


class AnnotatedName(Reads):
    def forward(self, x: Tensor, mode: str) -> Tensor:
        return getattr(torch, mode)(self.layer(x))


class Ranked(Reads):
    def forward(self, ids: Any, video: Any) -> Tensor:
        batch, _time, _channels, _height, _width = video.shape
        return self.layer(video.reshape(batch, -1)[:, :8]) + ids.float().mean()


class FromFarAway(Reads):
    """Fails in a line that reads neither parameter by its name."""

    def forward(self, x: Any, context: Any) -> Tensor:
        kept = torch.relu(context) + 1
        return self.layer(x) + self._product(kept)

    def _product(self, kept: Any) -> Tensor:
        return kept @ self.wide


@pytest.mark.parametrize(
    ("module", "at_fault", "hint"),
    [
        (PackedByAnotherName(), "n", "`inputs={'n': DTYPE[DIMS]}` (tried: int64[2,11])"),
        (ByKey(), "batch", "`inputs={'batch': DTYPE[DIMS]}` (tried: float32[2,8]); or file.py:factory, returning"),
        (AnnotatedByKey(), "batch", "it is not a tensor: give it as file.py:factory, returning (module, {'batch': …})"),
        (Listed(), "parts", "it is not a tensor"),
        (Counted(), "times", "`inputs={'times': DTYPE[DIMS]}`"),
        (Named(), "mode", "file.py:factory, returning (module, {'mode': …})"),
        (AnnotatedName(), "mode", "it is not a tensor"),
        (Ranked(), "video", "`inputs={'video': "),
        (FromFarAway(), "context", "`inputs={'context': DTYPE[DIMS]}` (tried: float32[2,8])"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_the_parameter_that_causes_the_error_is_named(module: nn.Module, at_fault: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        derive(module.eval())
    assert f"parameter '{at_fault}'" in caught.value.message
    assert hint in (caught.value.hint or "")


def test_lengths_are_derived_and_vary() -> None:
    ids, lengths = derive(PackedGru().eval()).args
    assert tuple(ids.shape) == (2, 11)
    assert lengths.tolist() == [11, 8]


def test_a_number_may_be_given_as_a_tensor() -> None:
    from sardonyx.records.input_specs import parse_inputs

    example = derive(AnnotatedCount().eval(), given=parse_inputs(["times=int64[]"]))
    assert example.args[1].shape == ()


def test_a_number_is_not_mistaken_for_an_equal_one_of_the_module() -> None:
    class Repeats(Reads):
        def forward(self, x: Tensor, times: int, context: Any) -> Tensor:
            last = 1
            return self.layer(x) * times + torch.relu(context) @ self.wide[last:]

    with pytest.raises(UsageError) as caught:
        derive(Repeats().eval())
    assert "parameter 'context'" in caught.value.message


def test_an_error_in_a_line_without_parameters_names_none() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            del x, y
            raise RuntimeError("nothing suits me")

    values = {"x": torch.ones(2), "y": torch.ones(2)}
    assert parameters_at_fault(Broken(), tuple(values.values()), {}, values, probe) == []
    assert not [name for name in vars(values["x"]) if "sardonyx" in name], "what was fed is left as it was"
