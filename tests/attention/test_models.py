"""Real architectures, small: every attention is spelled out and fused back, with equal outputs and the same weights."""

from __future__ import annotations

import pytest

import attention


@pytest.mark.parametrize("name", attention.SMALL)
def test_every_attention_is_spelled_out_and_fused_back(name: str) -> None:
    subject = attention.SMALL[name]()
    verdict = attention.judge(subject)
    assert verdict.telling
    assert verdict.same_weights
    assert len(verdict.found.attentions) == subject.attentions
    assert not verdict.found.opaque
    assert verdict.error <= 1e-5
    assert verdict.calls == subject.attentions
    assert verdict.fused_error <= 1e-5


def test_the_campaign_sees_a_model_that_is_left_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts what is there: with nothing fused, no call is found; with other weights, the outputs differ."""
    subject = attention.SMALL["BERT"]()
    monkeypatch.setattr(attention, "fuse_attention", lambda module, *_args, **_kwargs: module)
    assert attention.judge(subject).calls == 0
    wanted = attention.outputs(subject.module, subject)
    before = attention.weights(subject.module)
    subject.module.get_parameter("encoder.layer.0.attention.self.query.weight").data.mul_(1.01)
    assert attention.worst(attention.outputs(subject.module, subject), wanted) > 1e-5
    assert attention.weights(subject.module) != before
