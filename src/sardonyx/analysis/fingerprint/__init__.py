"""Guess the architecture family of a model from its structure alone: names and weights are not read, nothing is run.

A few rules in order, each with its evidence in words, look at what mixes positions (attention, convolutions,
recurrences), never at sizes: two layers and two hundred layers of one kind are the same family. Confidence is the share
of the mixing operations that support the family.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from sardonyx.analysis.fingerprint.features import features
from sardonyx.records import gc_pause
from sardonyx.records.inspection import Family, Features, Fingerprint

_SINGLE = 0.9  # the highest confidence that a single attention block, convolution or product gives


class Thresholds(Struct, frozen=True):
    """The numbers that separate one family from the next."""

    stem: int = 3  # overlapping convolutions over images that a transformer may have around it
    few: float = 0.25  # convolutions per attention block, up to which they are ignored
    rare: float = 0.05  # attention blocks per convolution, below which the attention is ignored
    reads: float = 0.2  # least share of cross-attention in an encoder-decoder
    hides: float = 0.5  # least share of causal self-attention in a decoder
    sparse: float = 0.125  # convolutions per product with weights, below which a network without attention is an MLP


THRESHOLDS = Thresholds()


def classify(counts: Features, at: Thresholds = THRESHOLDS) -> Fingerprint:
    """Return the family that the features indicate, the confidence and the evidence."""
    if counts.attention and counts.recurrences <= counts.attention:
        family, share, evidence = _with_attention(counts, at)
    elif counts.recurrences:
        family, share, evidence = Family.RECURRENT, _recurrent_share(counts), [_count(counts.recurrences, "recurrence")]
    else:
        family, share, evidence = _feed_forward(counts, at)
    return Fingerprint(family, round(share, 2), tuple(evidence), counts)


def _with_attention(counts: Features, at: Thresholds) -> tuple[Family, float, list[str]]:
    sites = counts.attention
    evidence = [_count(sites, "attention block")]
    convolutions = _stage_convolutions(counts, at)
    self_attention = sites - counts.cross
    highest = 1.0 if sites > 1 else _SINGLE
    if sites < at.rare * convolutions:
        return Family.CONVOLUTIONAL, 1 - sites / convolutions, [_count(convolutions, "convolution"), *evidence]
    if convolutions > at.few * sites:
        evidence.append(_count(convolutions, "convolution") + " besides patches and a stem")
        return Family.HYBRID, highest * min(1.0, 0.5 + min(convolutions, sites) / (convolutions + sites)), evidence
    if counts.cross >= at.reads * sites:
        evidence.append(f"{counts.cross} with keys from another stream than the queries")
        evidence += [f"{counts.causal} causal"] if counts.causal else []
        return Family.ENCODER_DECODER, highest * (1.0 if counts.causal else 0.7), evidence
    if counts.causal >= at.hides * self_attention:
        evidence.append("all causal" if counts.causal == sites else f"{counts.causal} of them causal")
        evidence += [f"{counts.cached} with a key cache"] if counts.cached else []
        return Family.DECODER, highest * counts.causal / sites, evidence
    evidence.append("none causal" if not counts.causal else f"only {counts.causal} causal")
    share = highest * (1 - counts.causal / sites)
    if counts.pictures:
        evidence.append("over patches of an image")
        return Family.VISION_TRANSFORMER, share, evidence
    evidence += [_count(counts.lookups, "embedding lookup")] if counts.lookups else []
    return Family.ENCODER, share, evidence


def _stage_convolutions(counts: Features, at: Thresholds) -> int:
    """Count the convolutions that form stages: not a stem along one axis, and not the few around a transformer."""
    total = counts.stem_convolutions + counts.convolutions
    if not counts.pictures:
        return counts.convolutions
    return total if total > at.stem else 0


def _recurrent_share(counts: Features) -> float:
    mixing = counts.recurrences + counts.attention
    return counts.recurrences / mixing * (1.0 if counts.convolutions <= 4 * counts.recurrences else 0.7)


def _feed_forward(counts: Features, at: Thresholds) -> tuple[Family, float, list[str]]:
    convolutions = counts.convolutions + counts.windows
    if counts.transforms:
        return Family.OTHER, 0.5, [_count(counts.transforms, "Fourier transform")]
    if convolutions > at.stem and counts.pooling >= max(1.0, at.few * convolutions):
        weighting = _count(counts.pooling, "softmax", "softmaxes") + " that weigh positions"
        return Family.HYBRID, 0.7, [_count(convolutions, "convolution"), weighting]
    if convolutions and convolutions >= at.sparse * counts.products:
        evidence = [_count(convolutions, "convolution"), "no attention, no recurrence"]
        return Family.CONVOLUTIONAL, 1.0 if convolutions > 1 else _SINGLE, evidence
    if counts.mutual_products >= max(1.0, at.few * counts.products):
        return Family.OTHER, 0.5, [_count(counts.mutual_products, "product") + " of two activations outside attention"]
    if counts.products:
        evidence = [
            _count(counts.products, "product") + " with weights",
            "no attention, no recurrence, few convolutions",
        ]
        return Family.MLP, 1.0 if counts.products > 1 else _SINGLE, evidence
    return Family.OTHER, 0.5, ["no attention, convolution, recurrence or product with weights"]


def _count(count: int, thing: str, plural: str = "") -> str:
    return f"{count} {thing if count == 1 else plural or thing + 's'}"


__all__ = ["THRESHOLDS", "Family", "Features", "Fingerprint", "Thresholds", "classify", "features", "fingerprint"]


def fingerprint(model: ir.Model) -> Fingerprint:
    """Return the family of a model, the confidence of the guess and the evidence; the model is not changed."""
    with gc_pause.paused():  # all objects allocated here live until the end
        return classify(features(model))
