"""The options of one endpoint: base path, headers, credential, TLS, model names, and the health check.

Parsers of these fields, and the checks of their combinations. Every error message states the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.health.health_check import HealthCheckOptions
from penstock.http.header_rules import CLIENT_ADDRESS_HEADERS, HOP_BY_HOP, OWN_PREFIX, PER_HOP_HEADERS
from penstock.routes.classify import MAX_MODEL
from regional_agent.upstream.address import is_host

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


MAX_PAIRS: Final = 64
"""Maximum number of entries of a mapping."""
MAX_HEADERS: Final = 16
MAX_HEADER_BYTES: Final = 1024
"""Maximum length of the value of one header."""
MAX_PATH: Final = 256
MAX_FILE_NAME: Final = 1024

AUTHORIZATION: Final = "authorization"

_SEGMENT: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@-]+")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
_RESERVED: Final = (
    HOP_BY_HOP
    | PER_HOP_HEADERS
    | CLIENT_ADDRESS_HEADERS
    | {b"content-encoding", b"content-type", b"tracestate", b"x-model"}
)
"""Headers that differ by request, so that no entry can set them: headers of the connection, of the body, of the trace,
of the client, and of the model."""

Pairs = tuple[tuple[str, str], ...]
"""The pairs of a mapping, in the order in which they were written."""


class InvalidField(Exception):
    """A field value is invalid; the message states the reason and the remedy."""


def text(value: Any) -> str:
    """Return a text that is not blank; raises InvalidField."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidField("not a text; write a word, in quotes if it looks like a number")
    return value


def canonical(name: str) -> str:
    """Return the name by which headers are compared: CGI and WSGI servers do not distinguish `_` from `-`."""
    return name.lower().replace("_", "-")


def _base_path(value: Any) -> str:
    path = text(value)
    segments = path[1:].split("/")
    well_formed = path.startswith("/") and all(_SEGMENT.fullmatch(segment) for segment in segments)
    if not well_formed or len(path) > MAX_PATH or not {".", ".."}.isdisjoint(segments):
        raise InvalidField(
            f"{path[:80]!r} is not a base path; write one such as /llama/v2: at most {MAX_PATH} letters, digits and "
            "marks, no query, no % escape, no . or .. segment, and no / at the end"
        )
    return path


def _header_name(value: Any) -> str:
    name = text(value)
    if not _HEADER_NAME.fullmatch(name):
        raise InvalidField(f"{name[:80]!r} is not the name of a header; use up to 64 letters, digits and -")
    if canonical(name).encode() in _RESERVED or canonical(name).startswith(OWN_PREFIX.decode()):
        raise InvalidField(f"{name}: the agent sets this header itself; remove it")
    return name.lower()


def _headers(value: Any) -> Pairs:
    headers = _pairs(value, MAX_HEADERS, "headers")
    for name, content in headers:
        if canonical(_header_name(name)) == AUTHORIZATION:
            raise InvalidField(f"{name}: a credential does not belong into this file; use credential_file")
        if not _HEADER_VALUE.fullmatch(content) or len(content) > MAX_HEADER_BYTES:
            raise InvalidField(
                f"{name}: the value is not 1-{MAX_HEADER_BYTES} ASCII characters without line breaks or blanks around "
                "them; correct it"
            )
    if len({canonical(name) for name, _ in headers}) < len(headers):
        raise InvalidField("a header is named twice; remove one")
    return tuple((name.lower(), content) for name, content in headers)


def _engine_names(value: Any) -> Pairs:
    names = _pairs(value, MAX_PAIRS, "models")
    for model, name in names:
        if max(len(model), len(name)) > MAX_MODEL:
            raise InvalidField(f"a name has more than {MAX_MODEL} characters; write the name that the engine lists")
        if not name.isprintable() or name != name.strip():
            raise InvalidField(f"{model}: the engine's name has control characters or blanks around it; correct it")
    if len({name for _, name in names}) < len(names):
        raise InvalidField("two models have the same name in the engine; give each model a name of its own")
    return names


def _pairs(value: Any, maximum: int, what: str) -> Pairs:
    if not isinstance(value, dict) or not 1 <= len(value) <= maximum:
        raise InvalidField(f"not a mapping of 1-{maximum} {what}; write {{name: value, ...}}")
    return tuple((text(name), text(content)) for name, content in value.items())


def _credential_header(value: Any) -> str:
    return _header_name(value)


def _file(value: Any) -> str:
    name = text(value)
    if not name.startswith("/") or len(name) > MAX_FILE_NAME or not name.isprintable():
        raise InvalidField(f"{name[:80]!r} is not an absolute path; write one such as /etc/penstock/engine.key")
    return name


def _server_name(value: Any) -> str:
    name = text(value)
    if not is_host(name):
        raise InvalidField(f"{name[:80]!r} is not a host name; write the name in the engine's certificate")
    return name


CHECKS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "base_path": ("base_path", _base_path),
    "headers": ("headers", _headers),
    "engine_names": ("engine_names", _engine_names),
}
"""By field name in files and registrations: the attribute of EndpointSpec, and a parser that raises InvalidField."""

FILE_CHECKS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "credential_file": ("credential_file", _file),
    "credential_header": ("credential_header", _credential_header),
    "ca_file": ("ca_file", _file),
    "client_certificate_file": ("client_certificate_file", _file),
    "client_key_file": ("client_key_file", _file),
    "server_name": ("server_name", _server_name),
}
"""The fields that are accepted only in the endpoints file. With these fields, a registration could make the agent read
any file of this machine, or send a secret of this machine to any address."""

_TLS_FIELDS: Final = ("ca_file", "client_certificate_file", "client_key_file", "server_name")


def conflicts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields that contradict other fields, each with its problem.

    Args:
        values: by attribute of EndpointSpec; None where a value is invalid.
    """
    problems: list[tuple[str, str]] = []
    models = values.get("models") or ()
    for model, name in values.get("engine_names") or ():
        if models and model not in models:
            problems.append(("engine_names", f"{model[:80]!r} is not one of the endpoint's models; add it to models"))
        elif name != model and name in models:
            problems.append(
                (
                    "engine_names",
                    f"{name[:80]!r}, the engine's name of {model[:80]!r}, is itself one of the endpoint's models, "
                    "so that requests for one would reach the other; rename one of them",
                )
            )
    if values.get("pool"):
        pooled = [f"{model}-{values['pool']}" for model in models]
        problems += [("pool", f"{each} is one of the models; remove it") for each in pooled if each in models]
    problems += _credential_conflicts(values)
    if "memory_group" in values and "memory_gb" not in values:
        problems.append(("memory_group", "the size of the memory is missing; add memory_gb"))
    if values.get("burst"):
        problems += [
            (field, "nothing but requests may reach a burst endpoint; remove it, or burst")
            for field in ("metrics_port", "kv_events_port", "gpu_metrics_port", "memory_gb")
            if field in values
        ]
    address = values.get("address")
    if address is not None and not address.tls:
        for field in _TLS_FIELDS:
            if field in values:
                problems.append((field, "the address does not use TLS; write https://"))
    return problems


def _credential_conflicts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    problems: list[tuple[str, str]] = []
    header = values.get("credential_header")
    if "credential_header" in values and "credential_file" not in values:
        problems.append(("credential_header", "there is no credential for this header; add credential_file"))
    if header and canonical(header) in {canonical(name) for name, _ in values.get("headers") or ()}:
        problems.append(("headers", f"{header} is the header of the credential; remove it"))
    for field, other in (
        ("client_certificate_file", "client_key_file"),
        ("client_key_file", "client_certificate_file"),
    ):
        if field in values and other not in values:
            problems.append((field, f"a certificate and its key belong together; add {other}"))
    return problems
