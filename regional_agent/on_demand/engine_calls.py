"""The requests by which engines wake, sleep and report which models sleep.

Sources: vLLM 0.32 vllm/entrypoints/serve/dev/sleep/api_router.py, Ollama docs/api.md ("Load a model", "List running
models"), Triton docs/protocol/extension_model_repository.md.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from penstock.health.engines.engine_kinds import DEFAULT_TAG
from penstock.policy.kinds.on_demand import OnDemand, WakeMethod

_EMPTY: Final = b"{}"


class EngineCall(NamedTuple):
    """A POST request to an engine."""

    path: str
    body: bytes = _EMPTY


def wake_calls(on_demand: OnDemand, name: str) -> tuple[EngineCall, ...]:
    """The requests that load a model, in order; none for a webhook.

    Args:
        name: the engine's name of the model.
    """
    match on_demand.wake:
        case WakeMethod.VLLM if on_demand.sleep_level == 2:
            reload = EngineCall("/collective_rpc", b'{"method":"reload_weights"}')
            return EngineCall("/wake_up?tags=weights"), reload, EngineCall("/wake_up?tags=kv_cache")
        case WakeMethod.VLLM:
            return (EngineCall("/wake_up"),)
        case WakeMethod.OLLAMA:
            # Without a limit of its own, Ollama keeps the model until its memory is needed, or until the model sleeps.
            return (EngineCall("/api/generate", msgspec.json.encode({"model": name, "keep_alive": -1})),)
        case WakeMethod.TRITON:
            return (EngineCall(f"/v2/repository/models/{quote(name, safe='')}/load"),)
        case _:
            return ()


def sleep_calls(on_demand: OnDemand, name: str) -> tuple[EngineCall, ...]:
    """The requests that unload a model, in order; none for a webhook."""
    match on_demand.wake:
        case WakeMethod.VLLM:
            # By default vLLM aborts requests that another agent has just sent.
            return (EngineCall(f"/sleep?level={on_demand.sleep_level}&mode=wait"),)
        case WakeMethod.OLLAMA:
            return (EngineCall("/api/generate", msgspec.json.encode({"model": name, "keep_alive": 0})),)
        case WakeMethod.TRITON:
            return (EngineCall(f"/v2/repository/models/{quote(name, safe='')}/unload"),)
        case _:
            return ()


ASLEEP_PAGES: Final = {WakeMethod.VLLM: "/is_sleeping", WakeMethod.OLLAMA: "/api/ps"}
"""The page on which an engine reports what sleeps, by method. Triton reports the readiness of each model."""


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


class _Running(msgspec.Struct):
    name: str
    size: Any = 0
    """Memory (bytes) that the model needs."""
    size_vram: Any = None
    """The part of it that it occupies on GPUs."""


class _RunningList(msgspec.Struct):
    models: list[_Running]


_sleeping: Final = msgspec.json.Decoder(_Sleeping)
_running: Final = msgspec.json.Decoder(_RunningList)


class RunningModels(NamedTuple):
    """What occupies the memory of an engine."""

    needed_bytes: dict[str, float]
    """Memory that each model on demand needs."""
    other_bytes: float
    """Memory of what the engine runs beside them."""


def running_models(page: bytes, names: dict[str, str], most_bytes: float) -> RunningModels:
    """The memory of what Ollama runs, by its page `/api/ps`. Sizes that are not possible are ignored.

    Args:
        names: the engine's name of each model on demand.
        most_bytes: size of the memory.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the page is not of the engine's form.
    """
    policy_names = {name.removesuffix(DEFAULT_TAG): model for model, name in names.items()}
    needed: dict[str, float] = {}
    other_bytes = 0.0
    for running in _running.decode(page).models:
        model = policy_names.get(running.name.removesuffix(DEFAULT_TAG))
        size = _possible_bytes(running.size, most_bytes)
        if model is None:
            on_gpu = size if running.size_vram is None else _possible_bytes(running.size_vram, most_bytes)
            other_bytes += on_gpu or 0.0
        elif size:
            needed[model] = size
    return RunningModels(needed, min(other_bytes, most_bytes))


def _possible_bytes(size: Any, most_bytes: float) -> float | None:
    is_number = isinstance(size, int) and not isinstance(size, bool)
    return float(size) if is_number and 0 <= size <= most_bytes else None


def asleep(method: WakeMethod, page: bytes, names: dict[str, str]) -> frozenset[str]:
    """The models that sleep, by the page of an engine.

    Args:
        method: one of `ASLEEP_PAGES`.
        page: the body of the engine's answer.
        names: the engine's name of each model that may sleep.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the page is not of the engine's form.
    """
    if method is WakeMethod.VLLM:
        return frozenset(names) if _sleeping.decode(page).is_sleeping else frozenset()
    running = {model.name.removesuffix(DEFAULT_TAG) for model in _running.decode(page).models}
    return frozenset(model for model, name in names.items() if name.removesuffix(DEFAULT_TAG) not in running)
