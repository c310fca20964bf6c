"""Fields of models that are loaded on demand: how endpoints wake and sleep, and when."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, UnsetType

from penstock.policy.fields import PORT, REQUIRED, Conflict, PolicyStruct, bounds, pattern

WebhookUrl = Annotated[
    str,
    pattern(
        r"^https?://[A-Za-z0-9._\[\]:-]+:" + PORT + r"(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]{0,500})?$",
        "write http or https, a host, a port and a path, such as https://wake.internal:8443/penstock",
    ),
]


class WakeMethod(StrEnum):
    """How the endpoints of a model wake and sleep."""

    VLLM = "vllm"
    """vLLM's sleep mode: `/wake_up`, `/sleep`, `/is_sleeping`. Requires `--enable-sleep-mode` and
    `VLLM_SERVER_DEV_MODE=1`."""
    OLLAMA = "ollama"
    """Ollama loads and unloads the model: `/api/generate` without a prompt, with `keep_alive`."""
    TRITON = "triton"
    """Triton's model repository: `/v2/repository/models/NAME/load` and `unload`. Requires
    `--model-control-mode=explicit`."""
    WEBHOOK = "webhook"
    """A POST to `webhook` for each wake and sleep."""


class OnDemand(PolicyStruct, frozen=True):
    """How the endpoints of a model wake when requests need them, and when they sleep. Each region decides for its own
    endpoints: `min_endpoints` and `max_endpoints` of `scaling` limit the number that is awake."""

    wake: Annotated[WakeMethod, REQUIRED] = WakeMethod.WEBHOOK
    """How endpoints wake and sleep."""
    webhook: WebhookUrl | UnsetType = UNSET
    """URL of the webhook, for `wake: webhook` alone. It receives `{"action": "wake" or "sleep", "region", "model",
    "endpoint"}`; `endpoint` is null if the region has no endpoint of the model."""
    timeout_s: Annotated[float, bounds(ge=1, le=3600)] = 120.0
    """Maximum time (s) of a request to the engine or the webhook. A request that takes longer, or answers no 2xx, has
    failed, and is repeated after 1 s, then after twice the time, up to 5 min."""
    idle_s: Annotated[float, bounds(ge=0, le=604_800)] = 900.0
    """Time (s) after which an endpoint sleeps that the load of this time did not need; 0: never."""
    scale_to_zero: bool = False
    """Whether the last awake endpoint of the model may sleep that the residency rules permit to some requests."""
    sleep_level: Annotated[int, bounds(ge=1, le=2)] = 1
    """Level of vLLM's sleep mode. 1: weights move to the memory of the host. 2: weights are discarded, and read again
    from disk."""
    memory_gb: Annotated[float, bounds(gt=0, le=1e6)] | UnsetType = UNSET
    """Memory (GB) that the model occupies while it is loaded, for endpoints whose entry has `memory_gb`; Ollama reports
    it once the model was loaded. Absent: the model counts as fitting until it is known."""
    evict_after_s: Annotated[float, bounds(ge=0, le=604_800)] = 60.0
    """Time (s) after its last request or its load after which an idle endpoint of the model may be put to sleep because
    another model needs its memory; 0: never. It is never the last copy, unless `scale_to_zero`."""

    def conflict(self) -> Conflict | None:
        if (self.wake is WakeMethod.WEBHOOK) is (self.webhook is not UNSET):
            return None
        if self.webhook is UNSET:
            return Conflict("wake: webhook without a webhook", "add webhook")
        return Conflict(f"wake: {self.wake.value} with a webhook", "remove webhook, or write wake: webhook")
