"""What may be said of an endpoint, wherever it is said: each field's check, with the remedy in its refusal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.health.engine_kinds import EngineKind
from regional_agent.routing.classify import MAX_MODEL
from regional_agent.upstream.address import Address

MAX_MODELS = 64
"""Models of one endpoint: adapters count."""
MAX_REQUESTS = 100_000
"""No endpoint runs or queues more."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:@/-]{0,127}")
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]{0,255}")


class EndpointSpec(msgspec.Struct, frozen=True):
    """One endpoint as it is configured or registered."""

    name: str
    """Unique in the region, and the same for every agent of it."""
    address: Address
    models: tuple[str, ...]
    slots: int
    """Requests that it runs at once."""
    queue: int = 0
    """Requests that may wait in it beyond its slots."""
    zone: str = ""
    accelerator: str = ""
    engine: EngineKind = EngineKind.AUTO
    version: str = ""
    """What runs there, for people: of the engine, the weights, or both."""
    health_path: str = ""
    """RequestFields whether it can take requests; empty for that of its kind."""
    metrics_port: int | None = None
    """Where it serves /metrics; None for what its kind does."""


class Wrong(Exception):
    """What is wrong with one value, and the remedy."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Wrong("not a text; write a word, in quotes if it looks like a number")
    return value


def _name(value: Any) -> str:
    name = _text(value)
    if not _NAME.fullmatch(name):
        raise Wrong(f"{name[:80]!r} is not a name; use up to 63 letters, digits, and . _ - inside")
    return name


def _version(value: Any) -> str:
    version = _text(value)
    if not _WORD.fullmatch(version):
        raise Wrong(f"{version[:80]!r} is not a version; use up to 128 letters, digits, and . _ + : @ / - inside")
    return version


def _url(value: Any) -> Address:
    try:
        return Address.parse(_text(value))
    except ValueError:
        raise Wrong(f"{value[:200]!r} is not an address; write http://host:port") from None


def _models(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MODELS:
        raise Wrong(f"not a list of 1-{MAX_MODELS} models; write [name, ...] as policy names them")
    models = tuple(_text(one) for one in value)
    if max(map(len, models)) > MAX_MODEL:
        raise Wrong(f"a name of more than {MAX_MODEL} characters; write them as policy does")
    if len(set(models)) < len(models):
        raise Wrong("a model is named twice; remove one")
    return models


def _engine(value: Any) -> EngineKind:
    try:
        return EngineKind(_text(value))
    except ValueError:
        raise Wrong(f"{value[:80]!r} is no kind of engine; there are {', '.join(EngineKind)}") from None


def _path(value: Any) -> str:
    path = _text(value)
    if not _PATH.fullmatch(path):
        raise Wrong(f"{path[:80]!r} is not a path; write one such as /health")
    return path


def whole_number(least: int, most: int, of: str) -> Callable[[Any], int]:
    """The check of a count of `of`."""

    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise Wrong(f"not a whole number from {least} to {most}; count {of}")
        return value

    return check


CHECKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", _name),
    "url": ("address", _url),
    "models": ("models", _models),
    "zone": ("zone", _name),
    "accelerator": ("accelerator", _name),
    "slots": ("slots", whole_number(1, MAX_REQUESTS, "requests")),
    "queue": ("queue", whole_number(0, MAX_REQUESTS, "requests")),
    "engine": ("engine", _engine),
    "version": ("version", _version),
    "health": ("health_path", _path),
    "metrics_port": ("metrics_port", whole_number(1, 65535, "ports")),
}
"""By the field's name as people write it: its name in EndpointSpec, and its check, which raises Wrong."""
