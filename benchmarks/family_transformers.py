"""Transformers whose family is known: encoders, decoders, encoder-decoders, and those over pictures."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

import family_modules as made
import zoo
from family_makers import AS_IT_IS, BATCH, LENGTH, Subject, drawn, ids, models, own, pair, picture, tokens, with_memory

encoder, decoder = partial(models, "encoder"), partial(models, "decoder")
both, vit = partial(models, "encoder-decoder"), partial(models, "vision-transformer")

SPEECH = {
    "conv_dim": (24, 24, 24),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
WHISPER = {"max_source_positions": 30, "max_target_positions": 20}
SERIES = {"context_length": 32, "patch_length": 8, "patch_stride": 8, "num_input_channels": 3}
STAGED = {"num_attention_heads": AS_IT_IS, "num_hidden_layers": AS_IT_IS, "hidden_size": AS_IT_IS}
sound, spectra = drawn("input_values", 1600), drawn("input_features", 80, 60)


def whisper() -> zoo.Inputs:
    """Spectra and the tokens so far."""
    return spectra() | ids("decoder_input_ids", 6)


def speech_to_text() -> zoo.Inputs:
    """Frames of spectra and the tokens so far."""
    return drawn("input_features", 60, 80)() | ids("decoder_input_ids", 6)


def torch_encoder() -> nn.Module:
    """torch's own encoder."""
    layer = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def torch_transformer() -> nn.Module:
    """torch's own encoder and decoder, without a mask."""
    return nn.Transformer(24, 4, 2, 2, 40, batch_first=True)


def torchvision_vit() -> nn.Module:
    """torchvision's own spelling."""
    return zoo.torchvision().models.VisionTransformer(32, 8, 2, 4, 48, 80)


def torchvision_swin() -> nn.Module:
    """torchvision's own spelling."""
    return zoo.torchvision().models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10)


ENCODERS = [
    *encoder("bert", "BertModel ErnieModel MegatronBertModel RoFormerModel LayoutLMModel SplinterModel", tokens),
    *encoder("roberta", "RobertaModel CamembertModel XLMRobertaModel XLMRobertaXLModel", tokens),
    *encoder("electra", "ElectraModel", tokens),
    *encoder("albert", "AlbertModel", tokens),
    *encoder("distilbert", "DistilBertModel", tokens, dim=48, hidden_dim=80),
    *encoder("mpnet", "MPNetModel", tokens),
    *encoder("deberta", "DebertaModel DebertaV2Model", tokens, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    *encoder("xlm", "XLMModel FlaubertModel", ids),
    *encoder("xlnet", "XLNetModel", tokens, max_position_embeddings=AS_IT_IS, d_inner=80),
    *encoder("modernbert", "ModernBertModel EuroBertModel", tokens),
    *encoder("esm", "EsmModel", tokens),
    *encoder(
        "nystromformer",
        "NystromformerModel",
        partial(ids, length=16),
        num_landmarks=16,
        segment_means_seq_len=16,
    ),
    *encoder("squeezebert", "SqueezeBertModel", tokens, embedding_size=48),
    *encoder(
        "funnel", "FunnelBaseModel", tokens, block_sizes=[1, 1], d_head=12, d_inner=80, num_hidden_layers=AS_IT_IS
    ),
    *encoder("mobilebert", "MobileBertModel", tokens, intra_bottleneck_size=24),
    *encoder("longformer", "LongformerModel", tokens, attention_window=4),
    *encoder("t5-encoder", "T5EncoderModel UMT5EncoderModel", tokens),
    *encoder("wav2vec2", "Wav2Vec2Model HubertModel WavLMModel UniSpeechModel Data2VecAudioModel", sound, **SPEECH),
    *encoder("sew", "SEWModel", sound, **SPEECH, squeeze_factor=2),
    *[
        Subject("WhisperEncoder", each.family, each.group, each.build)
        for each in encoder("whisper-encoder", "WhisperModel", spectra, part="encoder", **WHISPER)
    ],
    *encoder("patchtst", "PatchTSTModel", drawn("past_values", 32, 3), **SERIES),
    *own("encoder", "torch-encoder", "TransformerEncoder", torch_encoder, torch.randn(BATCH, LENGTH, 24)),
]

DECODERS = [
    *decoder("gpt2", "GPT2LMHeadModel GPTBigCodeForCausalLM OpenAIGPTLMHeadModel", tokens),
    *decoder("gpt-neo", "GPTNeoForCausalLM", tokens, attention_types=[[["global", "local"], 1]], window_size=4),
    *decoder("gpt-neox", "GPTNeoXForCausalLM PersimmonForCausalLM", tokens),
    *decoder("gpt-j", "GPTJForCausalLM CodeGenForCausalLM", tokens, rotary_dim=4),
    *decoder("opt", "OPTForCausalLM BioGptForCausalLM XGLMForCausalLM", tokens, word_embed_proj_dim=48),
    *decoder("bloom", "BloomForCausalLM", tokens),
    *decoder("llama", "LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM", tokens),
    *decoder("llama", "OlmoForCausalLM GraniteForCausalLM SmolLM3ForCausalLM Olmo2ForCausalLM", tokens),
    *decoder("phi", "PhiForCausalLM Phi3ForCausalLM", tokens, partial_rotary_factor=0.5),
    *decoder("gemma", "GemmaForCausalLM Gemma2ForCausalLM", tokens),
    *decoder("falcon", "FalconForCausalLM", tokens, head_dim=AS_IT_IS),
    *decoder("mpt", "MptForCausalLM", tokens),
    *decoder("stablelm", "StableLmForCausalLM", tokens, partial_rotary_factor=0.5),
    *decoder("cohere", "CohereForCausalLM", tokens),
    *decoder("starcoder2", "Starcoder2ForCausalLM", tokens),
    *decoder("nemotron", "NemotronForCausalLM", tokens),
    *decoder("ctrl", "CTRLLMHeadModel", ids, dff=80),
    *decoder("glm", "GlmForCausalLM", tokens, head_dim=16),
    *decoder("clip-text", "CLIPTextModel", tokens),
]

ENCODER_DECODERS = [
    *both("t5", "T5ForConditionalGeneration MT5Model UMT5Model", pair),
    *both("bart", "BartModel MBartModel PLBartModel MvpModel", pair),
    *both("marian", "MarianModel PegasusModel", pair, decoder_vocab_size=96),
    *both("blenderbot", "BlenderbotModel BlenderbotSmallModel", pair),
    *both("m2m", "M2M100Model", pair),
    *both("led", "LEDModel", pair, attention_window=4),
    *both(
        "prophetnet",
        "ProphetNetModel",
        pair,
        num_hidden_layers=AS_IT_IS,
        num_encoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
    ),
    *both("whisper", "WhisperModel", whisper, **WHISPER),
    *both("speech-to-text", "Speech2TextModel", speech_to_text, conv_channels=32, **WHISPER),
    *own(
        "encoder-decoder",
        "torch-transformer",
        "Transformer",
        torch_transformer,
        torch.randn(BATCH, LENGTH, 24),
        torch.randn(BATCH, 6, 24),
    ),
    *own(
        "encoder-decoder",
        "torch-decoder",
        "TransformerDecoder",
        made.Decoder,
        ids(length=6)["input_ids"],
        torch.randn(BATCH, LENGTH, 24),
    ),
    *both("bert-decoder", "BertLMHeadModel", with_memory, is_decoder=True, add_cross_attention=True),
    *both("trocr", "TrOCRForCausalLM", with_memory, cross_attention_hidden_size=48, is_decoder=True),
]

VISION_TRANSFORMERS = [
    *vit("vit", "ViTModel DeiTModel ViTMSNModel ViTMAEModel IJepaModel", picture()),
    *vit("beit", "BeitModel Data2VecVisionModel", picture()),
    *vit("dino", "Dinov2Model Dinov2WithRegistersModel DINOv3ViTModel", picture(), num_register_tokens=2),
    *vit(
        "swin",
        "SwinModel Swinv2Model",
        picture(),
        **{**STAGED, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    ),
    *vit("clip-vision", "CLIPVisionModel SiglipVisionModel", picture()),
    *vit("blip-vision", "BlipVisionModel", picture()),
    *vit(
        "hiera",
        "HieraModel",
        picture(64),
        **{**STAGED, "num_layers": AS_IT_IS, "patch_size": AS_IT_IS, "embed_dim": 16, "image_size": [64, 64]},
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 4, 8],
    ),
    *vit("yolos", "YolosModel", picture(), image_size=[32, 32], num_detection_tokens=5),
    *vit(
        "pvt",
        "PvtModel",
        picture(64),
        image_size=64,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 24, 32, 48],
        num_attention_heads=[1, 2, 4, 8],
    ),
    *vit("sam", "SamVisionModel", picture(64), image_size=64, window_size=3, global_attn_indexes=[1]),
    *vit("video", "VideoMAEModel TimesformerModel", drawn("pixel_values", 4, 3, 32, 32), num_frames=4),
    *vit(
        "ast",
        "ASTModel",
        drawn("input_values", 64, 32),
        max_length=64,
        num_mel_bins=32,
        frequency_stride=4,
        time_stride=4,
    ),
    *own("vision-transformer", "torchvision-vit", "vit_b_16", torchvision_vit, torch.randn(BATCH, 3, 32, 32)),
    *own("vision-transformer", "torchvision-swin", "swin_t", torchvision_swin, torch.randn(BATCH, 3, 32, 32)),
]

SUBJECTS: list[Subject] = [*ENCODERS, *DECODERS, *ENCODER_DECODERS, *VISION_TRANSFORMERS]
