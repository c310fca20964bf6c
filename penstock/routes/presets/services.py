"""Services with an API of their own: ComfyUI, Automatic1111's web UI, and plain prediction services.

Sources: https://docs.comfy.org/development/comfyui-server/comms_routes and server.py of ComfyUI, modules/api/api.py of
https://github.com/AUTOMATIC1111/stable-diffusion-webui, and https://lightning.ai/docs/litserve for /predict.
"""

from __future__ import annotations

from typing import Final

from penstock.routes.presets.model_locations import BESIDE_BODY, GET, IN_BODY, fixed_or_beside, not_offered
from penstock.routes.route import (
    NO_TOKENS,
    BodyKind,
    CostFields,
    ErrorFormat,
    ModelLocation,
    ModelSource,
    Route,
    StreamKind,
    Timeouts,
)

WORKFLOW_S: Final = 1800.0
"""Maximum time (s) of a workflow whose client waits for its images."""

_A1111_COST: Final = CostFields(
    count=("/batch_size",), batches=("/n_iter",), width=("/width",), height=("/height",), steps=("/steps",)
)
_A1111_MODEL: Final = ModelLocation(ModelSource.JSON, "/override_settings/sd_model_checkpoint")


def comfyui_routes(model: str | None) -> tuple[Route, ...]:
    """ComfyUI. A prompt is a graph with nodes of any names, so its cost is estimated from the default size and steps.

    Requests for the history of a prompt, and requests for a file (`/view`), whose query parameter `prompt_id` ComfyUI
    ignores, are sent to the ComfyUI that runs the prompt, the latter only for files of the prompt: names of files are
    easily guessed. The WebSocket and the prompts of one client id are sent to one ComfyUI. A client that chose the
    identifier of its prompt could choose that of another client's. `/prompt/wait` is not ComfyUI's: the agent waits for
    the end of the prompt and returns its images.
    """
    places, errors = fixed_or_beside(model), ErrorFormat.PROBLEM
    return (
        Route(
            "comfyui-prompt",
            "/prompt",
            model=places,
            repeatable=False,
            errors=errors,
            object_id="/prompt_id",
            client_object="/client_id",
            chosen_by_engine=("/prompt_id", "/number", "/front"),
        ),
        Route(
            "comfyui-prompt-wait",
            "/prompt/wait",
            model=places,
            repeatable=False,
            timeouts=Timeouts(first_byte_s=WORKFLOW_S, total_s=WORKFLOW_S),
            errors=errors,
            object_id="/prompt_id",
            converter="comfyui",
        ),
        Route(
            "comfyui-history",
            "/history/{prompt_id}",
            GET,
            body=BodyKind.NONE,
            cost=NO_TOKENS,
            errors=errors,
            object_id="prompt_id",
        ),
        Route(
            "comfyui-view",
            "/view",
            GET,
            places,
            BodyKind.NONE,
            cost=NO_TOKENS,
            errors=errors,
            object_id="?prompt_id",
            converter="comfyui-file",
        ),
        Route(
            "comfyui-websocket",
            "/ws",
            GET,
            places,
            BodyKind.NONE,
            StreamKind.WEBSOCKET,
            cost=NO_TOKENS,
            errors=errors,
            client_object="?clientId",
            occupies_slot=False,
        ),
        *not_offered("comfyui", ("/free", "/history", "/interrupt", "/queue", "/upload/image", "/upload/mask"), errors),
    )


def automatic1111_routes(model: str | None) -> tuple[Route, ...]:
    """Automatic1111's web UI. Requests for another checkpoint than the model are refused, since loading it blocks."""
    places, errors = (*fixed_or_beside(model), _A1111_MODEL), ErrorFormat.PROBLEM
    return (
        Route("automatic1111-txt2img", "/sdapi/v1/txt2img", model=places, cost=_A1111_COST, errors=errors),
        Route("automatic1111-img2img", "/sdapi/v1/img2img", model=places, cost=_A1111_COST, errors=errors),
        *not_offered(
            "automatic1111",
            (
                "/sdapi/v1/interrupt",
                "/sdapi/v1/options",
                "/sdapi/v1/progress",
                "/sdapi/v1/refresh-checkpoints",
                "/sdapi/v1/reload-checkpoint",
                "/sdapi/v1/skip",
                "/sdapi/v1/unload-checkpoint",
            ),
            errors,
        ),
    )


def predict_routes(model: str | None) -> tuple[Route, ...]:
    """A plain prediction service. Without a fixed model, the header `x-model`, the query or the body names it."""
    places = (*BESIDE_BODY, *IN_BODY) if model is None else fixed_or_beside(model)
    return (Route("predict", "/predict", model=places, cost=CostFields(generates=False), errors=ErrorFormat.PROBLEM),)
