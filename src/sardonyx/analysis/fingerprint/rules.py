"""The family that features speak for: a few rules in order, each with its reasons in words.

A rule looks at what mixes positions (attention, convolutions, recurrences), never at sizes: two layers and two hundred
of the same kind are the same family. Confidence is the share of the mixing that speaks for the family.
"""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.records.inspection import Family, Features, Fingerprint

THIN = 0.9  # what confidence is worth where a single place speaks


@dataclass(frozen=True, slots=True)
class Borders:
    """Where one family ends and the next begins."""

    stem: int = 3  # overlapping convolutions over pictures that a transformer may have around it
    few: float = 0.25  # convolutions an attention, up to which they are trimmings
    rare: float = 0.05  # attentions a convolution, below which these are
    reads: float = 0.2  # of all attention, the least that reads another stream in an encoder-decoder
    hides: float = 0.5  # of the attention of a model to itself, the least that is causal in a decoder
    sparse: float = (
        0.125  # convolutions a product with weights, below which a network without attention is a perceptron
    )


BORDERS = Borders()


def judge(found: Features, at: Borders = BORDERS) -> Fingerprint:
    """The family, how sure that is, and why."""
    if found.attention and found.recurrences <= found.attention:
        family, share, evidence = _attending(found, at)
    elif found.recurrences:
        family, share, evidence = Family.RECURRENT, _recurrent_share(found), [_many(found.recurrences, "recurrence")]
    else:
        family, share, evidence = _feeding_forward(found, at)
    return Fingerprint(family, round(share, 2), tuple(evidence), found)


def _attending(found: Features, at: Borders) -> tuple[Family, float, list[str]]:
    sites = found.attention
    said = [_many(sites, "attention")]
    convolutions = _stage_convolutions(found, at)
    own = sites - found.cross
    worth = 1.0 if sites > 1 else THIN
    if sites < at.rare * convolutions:
        return Family.CONVOLUTIONAL, 1 - sites / convolutions, [_many(convolutions, "convolution"), *said]
    if convolutions > at.few * sites:
        said.append(_many(convolutions, "convolution") + " besides patches and a stem")
        return Family.HYBRID, worth * min(1.0, 0.5 + min(convolutions, sites) / (convolutions + sites)), said
    if found.cross >= at.reads * sites:
        said.append(f"{found.cross} of them read another stream than they ask from")
        said += [f"{found.causal} causal"] if found.causal else []
        return Family.ENCODER_DECODER, worth * (1.0 if found.causal else 0.7), said
    if found.causal >= at.hides * own:
        said.append("all causal" if found.causal == sites else f"{found.causal} of them causal")
        said += [f"{found.cached} with a cache of keys"] if found.cached else []
        return Family.DECODER, worth * found.causal / sites, said
    said.append("none causal" if not found.causal else f"only {found.causal} causal")
    share = worth * (1 - found.causal / sites)
    if found.pictures:
        said.append("over patches of a picture")
        return Family.VISION_TRANSFORMER, share, said
    said += [_many(found.lookups, "embedding lookup")] if found.lookups else []
    return Family.ENCODER, share, said


def _stage_convolutions(found: Features, at: Borders) -> int:
    """Convolutions that are stages of their own: not a stem along one axis, and not the few around a transformer."""
    everything = found.stem_convolutions + found.convolutions
    if not found.pictures:
        return found.convolutions
    return everything if everything > at.stem else 0


def _recurrent_share(found: Features) -> float:
    mixing = found.recurrences + found.attention
    return found.recurrences / mixing * (1.0 if found.convolutions <= 4 * found.recurrences else 0.7)


def _feeding_forward(found: Features, at: Borders) -> tuple[Family, float, list[str]]:
    convolutions = found.convolutions + found.windows
    if found.transforms:
        return Family.OTHER, 0.5, [_many(found.transforms, "Fourier transform")]
    if convolutions > at.stem and found.pooling >= max(1.0, at.few * convolutions):
        said = [
            _many(convolutions, "convolution"),
            _many(found.pooling, "softmax", "softmaxes") + " that weigh positions",
        ]
        return Family.HYBRID, 0.7, said
    if convolutions and convolutions >= at.sparse * found.products:
        said = [_many(convolutions, "convolution"), "no attention, no recurrence"]
        return Family.CONVOLUTIONAL, 1.0 if convolutions > 1 else THIN, said
    if found.mutual_products >= max(1.0, at.few * found.products):
        return Family.OTHER, 0.5, [_many(found.mutual_products, "product") + " of activations that is no attention"]
    if found.products:
        said = [_many(found.products, "product") + " with weights", "no attention, no recurrence, hardly a convolution"]
        return Family.MLP, 1.0 if found.products > 1 else THIN, said
    return Family.OTHER, 0.5, ["no attention, convolution, recurrence or product with weights"]


def _many(count: int, thing: str, several: str = "") -> str:
    return f"{count} {thing if count == 1 else several or thing + 's'}"
