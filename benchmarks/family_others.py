"""Networks that are no plain transformers and whose family is known: convolutions, hybrids, recurrences, others."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

import family_modules as made
import zoo
from family_makers import AS_IT_IS, BATCH, LENGTH, Subject, drawn, ids, models, own, picture, tokens, vision
from family_transformers import SERIES, SPEECH, sound

conv, hybrid = partial(models, "convolutional"), partial(models, "hybrid")
recurrent, mlp = partial(own, "recurrent"), partial(own, "mlp")

STAGES = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 2, 1]}
PYRAMID = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [16, 24, 32, 48],
    "num_attention_heads": [1, 2, 4, 8],
    "image_size": 64,
}
CVT = {
    "embed_dim": [16, 24, 32],
    "num_heads": [1, 2, 4],
    "depth": [1, 2, 3],
    "patch_sizes": [7, 3, 3],
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads"), AS_IT_IS),
}
LEVIT = {
    "image_size": 64,
    "patch_size": 16,
    "hidden_sizes": [16, 24, 32],
    "num_attention_heads": [2, 3, 4],
    "depths": [2, 2, 2],
    "key_dim": [8, 8, 8],
}
DETR = {"use_timm_backbone": False, "use_pretrained_backbone": False, "num_queries": 9, "auxiliary_loss": False}
MOBILEVIT = {"image_size": 64, "patch_size": 2}


class Pick(nn.Module):
    """The one result of a model that answers with a dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The map of scores."""
        return self.model(x)["out"]


def segmentation(name: str) -> nn.Module:
    """A torchvision network that scores every pixel."""
    return Pick(getattr(zoo.torchvision().models.segmentation, name)(weights=None, weights_backbone=None))


def features(name: str) -> nn.Module:
    """The convolutions of a torchvision classifier whose perceptron would fill the file."""
    return getattr(zoo.torchvision().models, name)(weights=None).features


def maxvit() -> nn.Module:
    """torchvision's own spelling."""
    return zoo.torchvision().models.MaxVit((64, 64), 16, 4, [16, 24], [1, 2], 8, 0.0)


def series() -> torch.Tensor:
    """Vectors over time."""
    return torch.randn(BATCH, LENGTH, 10)


def words(length: int = LENGTH) -> torch.Tensor:
    """Token ids."""
    return torch.randint(3, 80, (BATCH, length))


def pixels(size: int = 32) -> torch.Tensor:
    """Pictures."""
    return torch.randn(BATCH, 3, size, size)


CONVOLUTIONAL = [
    *conv("resnet", "ResNetModel RegNetModel", picture(64), **STAGES, embedding_size=16, groups_width=8),
    *conv("bit", "BitModel", picture(64), **STAGES, embedding_size=16, num_groups=8),
    *conv("convnext", "ConvNextModel ConvNextV2Model", picture(64), **STAGES, patch_size=4),
    *conv("mobilenet", "MobileNetV1Model MobileNetV2Model", picture(64)),
    *conv("poolformer", "PoolFormerModel", picture(64), **STAGES, patch_size=7),
    *conv("focalnet", "FocalNetModel", picture(64), embed_dim=16, depths=[1, 1, 2, 1], patch_size=4, image_size=64),
    *conv("textnet", "TextNetModel", picture(64)),
    *vision("convolutional", "tv-resnet", "resnet18 resnext50_32x4d"),
    *own("convolutional", "tv-vgg", "vgg11_bn", partial(features, "vgg11_bn"), pixels()),
    *own("convolutional", "tv-vgg", "alexnet", partial(features, "alexnet"), pixels(64)),
    *vision("convolutional", "tv-dense", "densenet121"),
    *vision("convolutional", "tv-inception", "googlenet"),
    *vision("convolutional", "tv-squeeze", "squeezenet1_1"),
    *vision("convolutional", "tv-shuffle", "shufflenet_v2_x0_5"),
    *vision("convolutional", "tv-mnas", "mnasnet0_5 mobilenet_v3_small efficientnet_b0 efficientnet_v2_s"),
    *own("convolutional", "tv-segmentation", "lraspp", partial(segmentation, "lraspp_mobilenet_v3_large"), pixels(64)),
    *own("convolutional", "tv-segmentation", "fcn", partial(segmentation, "fcn_resnet50"), pixels(64)),
    *own("convolutional", "unet", "u-shaped", partial(made.UShaped, attention=False), pixels()),
    *conv("vocoder", "SpeechT5HifiGan", drawn("spectrogram", 20, 16), model_in_dim=16, upsample_initial_channel=32),
]

HYBRIDS = [
    *hybrid(
        "mobilevit",
        "MobileViTModel",
        picture(64),
        **MOBILEVIT,
        hidden_sizes=[24, 32, 40],
        neck_hidden_sizes=[8, 16, 20, 24, 28, 32, 48],
    ),
    *hybrid("mobilevitv2", "MobileViTV2Model", picture(64), **MOBILEVIT),
    *hybrid("cvt", "CvtModel", picture(64), **CVT),
    *hybrid("levit", "LevitModel", picture(64), **LEVIT),
    *hybrid("pvt-v2", "PvtV2Model", picture(64), **PYRAMID),
    *hybrid("segformer", "SegformerModel", picture(64), **PYRAMID, patch_size=4),
    *hybrid("detr", "DetrModel ConditionalDetrModel", picture(64), **DETR),
    *hybrid("conformer", "Wav2Vec2BertModel", drawn("input_features", 24, 160), feature_projection_input_dim=160),
    *hybrid("conformer", "Wav2Vec2ConformerModel", sound, **SPEECH),
    *hybrid("convbert", "ConvBertModel", tokens),
    *own("hybrid", "maxvit", "maxvit_t", maxvit, pixels(64)),
    *own("hybrid", "unet-attention", "u-shaped-attention", partial(made.UShaped, attention=True), pixels()),
]

RECURRENT = [
    *recurrent("lstm", "lstm-tagger", partial(made.States, nn.LSTM, tokens=True, bidirectional=True), words()),
    *recurrent("lstm", "lstm-series", partial(made.States, nn.LSTM, tokens=False, num_layers=2), series()),
    *recurrent("gru", "gru-tokens", partial(made.States, nn.GRU, tokens=True), words()),
    *recurrent("conv-gru", "conv-gru", partial(made.States, nn.GRU, tokens=False, convolved=True), series()),
    *recurrent("rnn", "rnn", partial(made.States, nn.RNN, tokens=False), series()),
    *recurrent("translator", "gru-translator", made.Translator, words(), words(5)),
    *recurrent("unrolled-gru", "unrolled-gru", partial(made.Unrolled, nn.GRUCell), series()),
    *recurrent("unrolled-rnn", "unrolled-rnn", partial(made.Unrolled, nn.RNNCell), series()),
    *models("recurrent", "mamba", "MambaModel", ids, state_size=4, expand=2),
    *models("recurrent", "rwkv", "RwkvModel", ids, attention_hidden_size=48, context_length=16),
]

PERCEPTRONS = [
    *mlp("perceptron", "perceptron", made.perceptron, torch.randn(BATCH, 20)),
    *mlp("autoencoder", "autoencoder", made.autoencoder, torch.randn(BATCH, 40)),
    *mlp("mixer", "mlp-mixer", made.Mixer, pixels()),
    *mlp("gmlp", "gated-mlp", made.Gated, words()),
    *mlp("recommender", "recommender", made.Recommender, torch.randn(BATCH, 13), torch.randint(0, 50, (BATCH, 3))),
    *models("mlp", "tsmixer", "PatchTSMixerModel", drawn("past_values", 32, 3), **SERIES, d_model=16),
]

OTHERS = [
    *own("other", "graph", "graph-convolution", made.Messages, torch.randn(9, 12), torch.rand(9, 9)),
    *own("other", "signal", "signal", made.Signal, torch.randn(BATCH, 64)),
    *models("other", "fnet", "FNetModel", ids),
]

SUBJECTS: list[Subject] = [*CONVOLUTIONAL, *HYBRIDS, *RECURRENT, *PERCEPTRONS, *OTHERS]
