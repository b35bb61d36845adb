"""The architectures are what the campaigns take them for: they run, and their outputs tell items and runs apart."""

from __future__ import annotations

import pytest
import torch

import architectures


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_outputs_are_telling(name: str) -> None:
    case = architectures.build(name)
    with torch.no_grad():
        found = list(architectures.tensors(case.module(*case.args, **case.kwargs)))
    assert found
    for tensor in found:
        assert torch.isfinite(tensor).all()
        assert tensor.std() > 0.01  # nothing constant, nothing faded away
        assert not torch.allclose(tensor[0], tensor[1])  # the items of the batch are told apart


def test_the_same_name_builds_the_same_weights() -> None:
    first, second = (architectures.build("called-twice").module.state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_there_are_enough_of_them() -> None:
    assert len(architectures.ARCHITECTURES) >= 26
