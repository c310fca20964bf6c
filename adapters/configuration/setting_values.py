"""Parsers of settings, which are text in an environment variable, and text or YAML in a configuration file."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

from penstock.wire.fleet_binding import MAX_AHEAD_S, FleetBinding


def host_port(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 address is in brackets.

    Raises:
        ValueError: the text is not of that form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not of the form host:port, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def listed(value: Any) -> Any:
    """Return the items of a text: comma-separated, or a JSON list. Other values are returned as they are.

    Raises:
        ValueError: the text begins with `[` and is not JSON.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return from_json(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def from_json(value: Any) -> Any:
    """Return the content of a JSON text. Other values are returned as they are.

    Raises:
        ValueError: the text is not JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def upgrade_time(value: datetime) -> datetime:
    """Return the time at which an upgrade is complete.

    Raises:
        ValueError: the time is too far in the future.
    """
    if value.timestamp() - time.time() > MAX_AHEAD_S:
        raise ValueError(f"{value.isoformat()} is more than {MAX_AHEAD_S / 86_400:g} days away; name an earlier time")
    return value


def fleet_binding(prefix: str, bound_from: datetime | None) -> FleetBinding:
    """Return the fleet of a process, by its settings `etcd_prefix` and `bound_from`."""
    return FleetBinding(prefix, bound_from.timestamp() if bound_from is not None else None)
