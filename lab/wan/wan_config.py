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
    """A configuration is invalid. The message states the field and the reason in one line."""


class LinkConfig(msgspec.Struct, frozen=True, rename={"origin": "from"}, forbid_unknown_fields=True):
    """One link: a listener near the client, and the round trip to its target."""

    name: str
    """Unique name of the link, which fault selectors refer to."""
    origin: str
    """The site where clients connect; `from` in the file."""
    to: str
    """The site of the target."""
    target: str
    """host:port that connections are forwarded to."""
    port: _Port = 0
    """Port to listen on; with 0 the system selects a port."""
    rtt_ms: _Milliseconds | None = None
    """Round trip (ms); None takes it from the matrix."""


class WanConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of a WAN."""

    links: tuple[LinkConfig, ...]
    host: str = "127.0.0.1"
    """The address that links and control listen on."""
    control_port: _Port = 0
    """Port of the control socket; with 0 the system selects a port."""


class FaultMode(StrEnum):
    """Fault modes of a link."""

    NONE = "none"
    CUT = "cut"
    """Connections are reset and new connections are refused."""
    BLACKHOLE = "blackhole"
    """All data is dropped silently; new connections are accepted without a response."""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fault state of a link; a new fault replaces the previous fault completely."""

    mode: FaultMode = FaultMode.NONE
    extra_rtt_ms: _Milliseconds = 0.0
    """Added to the round trip (ms), half in each direction."""
    jitter_ms: _Milliseconds = 0.0
    """Maximum additional delay (ms) of each piece of data, uniformly distributed; order is kept."""


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
        WanConfigError: the file cannot be read or a field is invalid.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=WanConfig)
    except OSError as error:
        raise WanConfigError(f"{path}: {error.strerror}; give a WAN configuration that can be read") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WanConfigError(f"{path}: {error}; correct it") from None


def plan_links(config: WanConfig, matrix: RttMatrix) -> list[LinkPlan]:
    """Return each link with its target parsed and its round trip resolved.

    Raises:
        WanConfigError: a name occurs twice, or a target is not host:port.
        MatrixError: a link has no `rtt_ms` and the matrix does not contain the pair.
    """
    plans: dict[str, LinkPlan] = {}
    for link in config.links:
        if link.name in plans:
            raise WanConfigError(f"link {link.name!r} occurs twice; give each link a unique name")
        host, _, port = link.target.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise WanConfigError(f"link {link.name!r}: target {link.target!r} is not host:port; correct it")
        rtt_ms = link.rtt_ms if link.rtt_ms is not None else matrix.between(link.origin, link.to)
        plans[link.name] = LinkPlan(link.name, link.origin, link.to, host.strip("[]"), int(port), link.port, rtt_ms)
    return list(plans.values())
