"""Models of transformers and diffusers with convolutions, by their default configurations: sound, images, U-Nets.

Layers that repeat are built once where a configuration can say so. Sounds come in several lengths, since their
convolutions run along time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SECONDS: Final = (1, 5, 10, 20)
_WHISPERS: Final = {"tiny": 384, "base": 512, "small": 768, "medium": 1024, "large": 1280}
_SPEECH: Final = ("Wav2Vec2", "Hubert", "WavLM", "Data2VecAudio", "SEW", "UniSpeech")
_LARGE: Final = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "feat_extract_norm": "layer",
    "conv_bias": True,
}
_CODECS: Final = {"Encodec": 24_000, "Dac": 16_000, "Mimi": 24_000}
_IMAGES: Final = {
    "ViTModel": 224, "CLIPVisionModel": 224, "SiglipVisionModel": 224, "Dinov2Model": 224, "SwinModel": 224,
    "ResNetModel": 224, "RegNetModel": 224, "ConvNextModel": 224, "ConvNextV2Model": 224, "MobileNetV1Model": 224,
    "MobileNetV2Model": 224, "EfficientNetModel": 600, "SegformerForSemanticSegmentation": 512, "MobileViTModel": 256,
    "MobileViTV2Model": 256, "PoolFormerModel": 224, "PvtModel": 224, "PvtV2Model": 224, "CvtModel": 224,
    "LevitModel": 224, "BitModel": 224, "FocalNetModel": 224, "GLPNForDepthEstimation": 480,
    "DPTForDepthEstimation": 384,
    "BeitModel": 224, "Data2VecVisionModel": 224, "DeiTModel": 224, "SwiftFormerModel": 224,
    "UperNetForSemanticSegmentation": 512, "YolosModel": 512, "HieraModel": 224, "Swin2SRForImageSuperResolution": 64,
    "SuperPointForKeypointDetection": 480, "VitDetModel": 224, "DepthAnythingForDepthEstimation": 518,
    "SamVisionModel": 1024,
}  # fmt: skip
_U_NETS: Final[dict[str, tuple[int, ...]]] = {"sd15": (32, 64, 96), "sdxl": (64, 128)}
_DIFFUSION: Final = (32, 64, 128, 256)
_AUTOENCODERS: Final = (256, 512, 1024)


def models() -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """Yield name, the function that builds the model, and the function that makes its inputs."""
    yield from _of_transformers()
    yield from _of_diffusers()


def _of_transformers() -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    library: Any = transformers

    def one(name: str, *, model: str = "Model", **options: Any) -> Callable[[], Any]:
        return lambda: getattr(library, name + model)(getattr(library, f"{name}Config")(**options))

    for size, width in _WHISPERS.items():
        for bands in (80, 128):
            shape = {"d_model": width, "encoder_attention_heads": width // 64, "encoder_ffn_dim": 4 * width}
            configuration = partial(library.WhisperConfig, encoder_layers=1, num_mel_bins=bands, **shape)
            yield (
                f"transformers/whisper-{size}-{bands}",
                lambda configuration=configuration: WhisperEncoder(configuration()),
                lambda bands=bands: (_empty(1, bands, 3000),),
            )
    for seconds in _SECONDS:
        for name in _SPEECH:
            sound = partial(_tuple, 1, 16_000 * seconds)
            yield f"transformers/{name}-{seconds}s", one(name, num_hidden_layers=1), sound
            yield f"transformers/{name}-large-{seconds}s", one(name, num_hidden_layers=1, **_LARGE), sound
        for name, rate in _CODECS.items():
            yield (
                f"transformers/{name}-{seconds}s",
                one(name),
                lambda samples=rate * seconds: {"input_values": _empty(1, 1, samples)},
            )
        conformer = one("Wav2Vec2Conformer", num_hidden_layers=1)
        yield f"transformers/conformer-{seconds}s", conformer, partial(_tuple, 1, 16_000 * seconds)
    for frames in (100, 500, 1000):
        yield f"transformers/hifigan-{frames}", one("SpeechT5HifiGan", model=""), partial(_tuple, 1, frames, 80)
        yield (
            f"transformers/univnet-{frames}",
            one("UnivNet"),
            lambda frames=frames: {
                "input_features": _empty(1, frames, 100),
                "noise_sequence": _empty(1, frames, 64),
            },
        )
    for name, size in _IMAGES.items():
        architecture = name.partition("For")[0].removesuffix("Model")
        yield (
            f"transformers/{architecture}",
            one(architecture, model=name.removeprefix(architecture)),
            lambda size=size: {"pixel_values": _empty(1, 3, size, size)},
        )


def _of_diffusers() -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    import diffusers

    library: Any = diffusers
    xl = {
        "block_out_channels": (320, 640, 1280),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": 1, "attention_head_dim": (5, 10, 20), "use_linear_projection": True,
    }  # fmt: skip
    for name, sizes in _U_NETS.items():
        width, options = (2048, xl) if name == "sdxl" else (768, {})
        for size in sizes:
            yield (
                f"diffusers/{name}-{size}",
                partial(library.UNet2DConditionModel, cross_attention_dim=width, **options),
                partial(_conditional_inputs, size, width),
            )
    small = {
        "block_out_channels": (128, 256, 256, 256),
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    }  # fmt: skip
    large = {
        "block_out_channels": (128, 128, 256, 256, 512, 512),
        "down_block_types": (*["DownBlock2D"] * 4, "AttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "AttnUpBlock2D", *["UpBlock2D"] * 4),
    }
    for size in _DIFFUSION:
        for name, options in {"ddpm": {"sample_size": size}, "ddpm-cifar": small, "ddpm-128": large}.items():
            yield (
                f"diffusers/{name}-{size}",
                partial(library.UNet2DModel, **options),
                lambda size=size: (_empty(1, 3, size, size), _empty(1)),
            )
    for size in _AUTOENCODERS:
        image = partial(_tuple, 1, 3, size, size)
        for name, widths in {"vae": (128, 256, 512, 512), "vq": (128, 256, 512)}.items():
            blocks = {"down_block_types": ("DownEncoderBlock2D",) * len(widths)}
            blocks["up_block_types"] = ("UpDecoderBlock2D",) * len(widths)
            build = partial(library.AutoencoderKL, block_out_channels=widths, layers_per_block=2, **blocks)
            yield f"diffusers/{name}-{size}", build, image
        yield f"diffusers/vae-tiny-{size}", library.AutoencoderTiny, image


def _empty(*shape: int) -> Any:
    import torch

    return torch.empty(*shape)


def _tuple(*shape: int) -> tuple[Any]:
    return (_empty(*shape),)


def _conditional_inputs(size: int, width: int) -> dict[str, Any]:
    return {
        "sample": _empty(1, 4, size, size), "timestep": _empty(1), "encoder_hidden_states": _empty(1, 77, width),
    }  # fmt: skip
