"""The presets that a policy can include, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.routes.presets import anthropic, kserve, services, text_engines, vllm
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routes.route import Route


class Preset(NamedTuple):
    """The routes of one API."""

    description: str
    """Description of the API in one line, for the documentation."""
    routes: Callable[[str | None], tuple[Route, ...]]
    """Creates the routes; the argument is the fixed model of all requests, or None."""
    takes_model: bool = False
    """Whether requests of the API name no model, so that a policy can fix one."""


PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "openai": Preset("OpenAI's API, as vLLM, SGLang and other engines serve it.", lambda _: OPENAI_ROUTES),
        "anthropic": Preset(
            "Anthropic's Messages API, with keys in `x-api-key`.", lambda _: anthropic.ANTHROPIC_ROUTES
        ),
        "vllm": Preset(
            "Rerank, score, classify, pooling and tokenization, as vLLM serves them.", lambda _: vllm.VLLM_ROUTES
        ),
        "kserve": Preset(
            "The Open Inference Protocol (KServe V2) of Triton, MLServer and KServe, with Triton's generate.",
            lambda _: kserve.KSERVE_ROUTES,
        ),
        "tgi": Preset("Native API of Text Generation Inference.", text_engines.tgi_routes, takes_model=True),
        "sglang": Preset("Native API of SGLang.", text_engines.sglang_routes, takes_model=True),
        "ollama": Preset("Native API of Ollama.", lambda _: text_engines.OLLAMA_ROUTES),
        "comfyui": Preset("ComfyUI: prompts, their history, files, WebSocket.", services.comfyui_routes, True),
        "automatic1111": Preset(
            "Automatic1111's web UI: images from text and images.", services.automatic1111_routes, True
        ),
        "predict": Preset("`POST /predict` of a custom service, such as LitServe.", services.predict_routes, True),
    }
)


def preset_routes(name: str, model: str | None = None) -> tuple[Route, ...]:
    """The routes of a preset.

    Args:
        name: name of the preset.
        model: the fixed model of all requests of the preset; None for no fixed model.

    Raises:
        ValueError: the preset does not exist, or a model is fixed although requests of the preset name their model.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise ValueError(f"there is no preset {name!r}; the presets are {', '.join(PRESETS)}")
    if model is not None and not preset.takes_model:
        raise ValueError(f"the preset {name!r} takes no fixed model: its requests name their model")
    return preset.routes(model)
