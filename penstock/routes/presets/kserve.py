"""The Open Inference Protocol (KServe V2), as KServe, Triton, MLServer and others serve it, with Triton's generate.

A request may select a version of its model in the path, which the engine interprets. Sources:
https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol, and docs/protocol of
https://github.com/triton-inference-server/server (extension_generate.md, extension_sequence.md,
extension_binary_data.md).
"""

from __future__ import annotations

from typing import Final

from penstock.routes.presets.model_locations import GET, IN_PATH, not_offered
from penstock.routes.route import NO_TOKENS, BodyKind, CostFields, ErrorFormat, Route, StreamKind

_SEQUENCE: Final = ("/parameters/sequence_id",)
_TENSORS: Final = CostFields(generates=False, tensors=("/inputs",))
_GENERATE: Final = CostFields(prompt=("/text_input",), max_tokens=("/max_tokens", "/parameters/max_tokens"))


GRPC_METHODS: Final = (
    "/inference.GRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/ModelStreamInfer",
)
"""Methods of gRPC that the endpoint picker routes; their routes have the model of the first message in the path."""


def _grpc_routes() -> tuple[Route, ...]:
    cost, errors = CostFields(generates=False), ErrorFormat.KSERVE
    return tuple(
        Route(
            f"kserve-grpc-{name}",
            f"{method}/{{model}}{version}",
            model=IN_PATH,
            body=BodyKind.OPAQUE,
            cost=cost,
            errors=errors,
        )
        for method, kind in zip(GRPC_METHODS, ("infer", "stream-infer"), strict=True)
        for name, version in ((kind, ""), (f"{kind}-version", "/versions/{version}"))
    )


def _routes(name: str, model: str) -> tuple[Route, ...]:
    """The routes below one form of the model's path."""
    errors = ErrorFormat.KSERVE
    read, none = GET, BodyKind.NONE
    return (
        Route(f"{name}-metadata", model, read, IN_PATH, none, cost=NO_TOKENS, errors=errors),
        Route(f"{name}-ready", f"{model}/ready", read, IN_PATH, none, cost=NO_TOKENS, errors=errors),
        Route(f"{name}-infer", f"{model}/infer", model=IN_PATH, cost=_TENSORS, session=_SEQUENCE, errors=errors),
        Route(f"{name}-generate", f"{model}/generate", model=IN_PATH, cost=_GENERATE, errors=errors),
        Route(
            f"{name}-generate-stream",
            f"{model}/generate_stream",
            model=IN_PATH,
            stream=StreamKind.SSE,
            cost=_GENERATE,
            errors=errors,
        ),
    )


KSERVE_ROUTES: Final = (
    *_routes("kserve", "/v2/models/{model}"),
    *_routes("kserve-version", "/v2/models/{model}/versions/{version}"),
    *_grpc_routes(),
    *not_offered(
        "kserve",
        ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/repository/index"),
        ErrorFormat.KSERVE,
    ),
)
