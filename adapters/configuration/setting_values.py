"""Parsers of settings, which are text in an environment variable, and text or YAML in a configuration file."""

from __future__ import annotations

import json
from typing import Any


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
