"""The field `health` of an endpoint: a path, or a mapping of health check options. Every message states the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from penstock.health.health_check import HealthCheckOptions
from regional_agent.endpoints.endpoint_options import InvalidField, text

MAX_STATUSES: Final = 16
MAX_TEXT: Final = 256
MAX_TIME_S: Final = 300.0
"""Maximum interval and timeout (s)."""
MAX_BUSY_S: Final = 86_400.0
MAX_THRESHOLD: Final = 100

_PATH: Final = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]{0,255}")


def health_check_options(value: Any) -> HealthCheckOptions:
    """Return the options of the field `health`.

    Raises:
        InvalidField: an option is invalid.
    """
    if isinstance(value, str):
        return HealthCheckOptions(path=_path(value))
    if not isinstance(value, dict) or not value:
        raise InvalidField(f"neither a path nor a mapping; write a path such as /health, or {{{', '.join(_CHECKS)}}}")
    options: dict[str, Any] = {}
    for field, given in value.items():
        if field not in _CHECKS:
            raise InvalidField(f"{str(field)[:80]}: no such field; use one of {', '.join(_CHECKS)}")
        try:
            options[field] = _CHECKS[field](given)
        except InvalidField as error:
            raise InvalidField(f"{field}: {error}") from None
    return HealthCheckOptions(**options)


def _path(value: Any) -> str:
    path = text(value)
    if not _PATH.fullmatch(path):
        raise InvalidField(f"{path[:80]!r} is not a path; write one such as /health")
    return path


def _time(minimum: float, maximum: float) -> Callable[[Any], float]:

    def check(value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # A comparison, since `isfinite` fails for integers that are no float.
        if not number or not minimum <= value <= maximum:
            raise InvalidField(f"not a time from {minimum:g} to {maximum:g}; write the number of seconds")
        return float(value)

    return check


def _threshold(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_THRESHOLD:
        raise InvalidField(f"not a whole number from 1 to {MAX_THRESHOLD}; write the number of probes")
    return value


def _statuses(value: Any) -> tuple[int, ...]:
    statuses = value if isinstance(value, list) else [value]
    if not 1 <= len(statuses) <= MAX_STATUSES:
        raise InvalidField(f"not a list of 1-{MAX_STATUSES} statuses; write [200, ...]")
    for status in statuses:
        if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 599:
            raise InvalidField(f"{str(status)[:20]} is not a status from 200 to 599; write [200, ...]")
    return tuple(statuses)


def _text(value: Any) -> str:
    content = text(value)
    if len(content) > MAX_TEXT:
        raise InvalidField(f"more than {MAX_TEXT} characters; write a shorter text that the answer contains")
    return content


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "path": _path,
    "interval_s": _time(0.1, MAX_TIME_S),
    "timeout_s": _time(0.1, MAX_TIME_S),
    "unhealthy_threshold": _threshold,
    "healthy_threshold": _threshold,
    "status": _statuses,
    "body": _text,
    "busy_body": _text,
    "busy_s": _time(0.0, MAX_BUSY_S),
}
