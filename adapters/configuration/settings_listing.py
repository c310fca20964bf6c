"""Formats the effective settings as a configuration file, with the origin of each value; secrets are redacted."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import msgspec
from pydantic import BaseModel, SecretStr

from adapters.configuration.settings_loader import LoadedSettings

REDACTED = "**********"


def settings_listing(loaded: LoadedSettings[Any]) -> str:
    """Return one line for each setting, in YAML: `name: value  # source place`."""
    lines = []
    for name, origin in loaded.origins.items():
        value = json.dumps(plain_value(getattr(loaded.settings, name)), ensure_ascii=False)
        lines.append(f"{name}: {value}  # {origin.source.value} {origin.place}".rstrip())
    return "\n".join(lines)


def plain_value(value: Any) -> Any:
    """Return a value in the form of a configuration file; secrets are redacted."""
    match value:
        case None | bool() | int() | float():
            return value
        case SecretStr():
            return REDACTED
        case Enum():
            return value.value
        case msgspec.Struct():
            defaults = type(value)()
            changed = {name: getattr(value, name) for name in value.__struct_fields__}
            return {name: each for name, each in changed.items() if each != getattr(defaults, name)}
        case BaseModel():
            return {name: plain_value(each) for name, each in value}
        case dict():
            return {str(key): plain_value(each) for key, each in value.items()}
        case frozenset():
            return sorted(value)
        case tuple() | list() if not hasattr(value, "_fields"):
            return [plain_value(each) for each in value]
    return str(value)
