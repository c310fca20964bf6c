"""Configuration of a WAN: links between sites, their round trips, and faults."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from lab.wan.matrix import SLOWEST_MS, RttMatrix

_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=SLOWEST_MS)]


class WanConfigError(Exception):
    """A configuration is invalid; the message is one line with field and reason."""


class LinkConfig(msgspec.Struct, frozen=True, rename={"origin": "from"}, forbid_unknown_fields=True):
    """One link: a listener near the client, and the round trip to its target."""

    name: str
    """Unique; faults name links by it."""
    origin: str
    """The site where clients connect; `from` in the file."""
    to: str
    """The site where the target stands."""
    target: str
    """host:port that everything is forwarded to."""
    port: _Port = 0
    """Where to listen; 0 lets the system choose."""
    rtt_ms: _Milliseconds | None = None
    """Round trip (ms); None takes it from the matrix."""


class WanConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole network."""

    links: tuple[LinkConfig, ...]
    host: str = "127.0.0.1"
    """The address that links and control listen on."""
    control_port: _Port = 0
    """Port of the HTTP API for faults; 0 lets the system choose."""


class FaultMode(StrEnum):
    """Fault modes of a link."""

    NONE = "none"
    CUT = "cut"
    """Connections are reset, new ones refused."""
    BLACKHOLE = "blackhole"
    """All data is dropped silently; new connections are accepted and never answered."""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fault state of a link; a later one replaces it completely."""

    mode: FaultMode = FaultMode.NONE
    extra_rtt_ms: _Milliseconds = 0.0
    """Added to the round trip (ms), half in each direction."""
    jitter_ms: _Milliseconds = 0.0
    """Each piece of data is late by up to this (ms) more, uniformly; order is kept."""


class LinkPlan(msgspec.Struct, frozen=True):
    """A link with target address and round trip resolved."""

    name: str
    origin: str
    to: str
    target_host: str
    target_port: int
    port: int
    rtt_ms: float


def read_config(path: Path) -> WanConfig:
    """Read a WAN configuration (JSON).

    Raises:
        WanConfigError: the file cannot be read or a field is wrong.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=WanConfig)
    except OSError as error:
        raise WanConfigError(f"{path}: {error.strerror}; give a WAN configuration that can be read") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WanConfigError(f"{path}: {error}; correct it") from None


def plan_links(config: WanConfig, matrix: RttMatrix) -> list[LinkPlan]:
    """Each link with its target parsed and its round trip known.

    Raises:
        WanConfigError: a name occurs twice, or a target is not host:port.
        MatrixError: a link has no round trip of its own and the matrix lacks its pair.
    """
    plans: dict[str, LinkPlan] = {}
    for link in config.links:
        if link.name in plans:
            raise WanConfigError(f"link {link.name!r} occurs twice; give each its own name")
        host, _, port = link.target.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise WanConfigError(f"link {link.name!r}: target {link.target!r} is not host:port; correct it")
        rtt_ms = link.rtt_ms if link.rtt_ms is not None else matrix.between(link.origin, link.to)
        plans[link.name] = LinkPlan(link.name, link.origin, link.to, host.strip("[]"), int(port), link.port, rtt_ms)
    return list(plans.values())
