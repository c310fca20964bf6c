"""Reads the endpoints file, which is YAML. Errors name the line, the field and the remedy.

- name: gpu-1
  url: http://10.0.0.11:8000
  models: [llama-3-8b]
  zone: a
  accelerator: h100
  slots: 16
  queue: 4
  engine: vllm
- name: gpus
  dns: engines.default.svc:8000
  models: [llama-3-8b]
  slots: 8

The second entry creates one endpoint for each address of its host name. A Service or InferencePool (`kubernetes`) may
take the place of `dns`: see endpoints/discovery/. Further fields are optional: `engine` (see
penstock/health/engines/engine_kinds.py), `version`, `health` (a path), `metrics_port`, `kv_events_port`, `grpc_port`,
and the fields in endpoint_options.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from adapters.files.plain_file import UnusableFile, read_plain_file
from regional_agent.endpoints.discovery import discovered_server, dns_discovery
from regional_agent.endpoints.discovery.dns_discovery import DnsEntry, dns_address
from regional_agent.endpoints.discovery.endpoint_discovery import Entry
from regional_agent.endpoints.discovery.kubernetes_entry import KubernetesEntry, default_server_name, read_source
from regional_agent.endpoints.endpoint_fields import CHECKS, MAX_MODELS, EndpointSpec
from regional_agent.endpoints.endpoint_options import FILE_CHECKS, MAX_PAIRS, InvalidField, conflicts
from regional_agent.upstream.address import Address

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_ENDPOINTS = 4096
MAX_DEPTH = 8
"""Maximum levels of nesting; the format has three: lists and mappings are values of an entry's fields."""
MAX_PROBLEMS = 20
"""Maximum number of errors reported at once."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BadEndpointFile(UnusableFile):
    """The file is invalid. The message has one line per error, with file, line, field and remedy."""


def read_endpoint_file(path: Path) -> bytes:
    """Read the file; raises BadEndpointFile."""
    try:
        return read_plain_file(path, MAX_FILE_BYTES).content
    except OSError as error:
        raise BadEndpointFile(f"{path}: cannot read the endpoints: {error.strerror}; put the file there") from None


def parse_endpoints(content: bytes, path: Path) -> tuple[Entry, ...]:
    """Parse the content of an endpoints file; an empty list is valid.

    Raises:
        BadEndpointFile: an entry is invalid; the file is rejected as a whole.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise BadEndpointFile(f"{path}: not UTF-8 text; save it as UTF-8") from None
    root = _compose(text, path)
    if not isinstance(root, yaml.SequenceNode):
        raise BadEndpointFile(f"{path}:1: not a list; write one `- name: ...` entry per endpoint, or [] for none")
    if len(root.value) > MAX_ENDPOINTS:
        raise BadEndpointFile(f"{path}: {len(root.value)} endpoints; at most {MAX_ENDPOINTS}: split the region")
    return _entries(root, path)


def _compose(text: str, path: Path) -> yaml.Node | None:
    try:
        # libyaml's composer recurses in C, and deep nesting would crash the process; its parser does not recurse.
        depth = 0
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise BadEndpointFile(f"{path}: nested too deeply; write a flat list of endpoints")
        return yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problem = getattr(error, "problem", None) or "unreadable characters"
        raise BadEndpointFile(f"{at}: not YAML: {problem}; correct the syntax there") from None


def _entries(root: yaml.SequenceNode, path: Path) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    problems: list[str] = []
    taken: dict[Any, str] = {}
    for node in root.value:
        line = node.start_mark.line + 1
        found: list[str] = []
        fields = _fields(node, path, found)
        if not found:
            entry, spec, source, place = _entry(fields)
            for field, value in (("name", spec.name), (source, place)):
                if value in taken:
                    found.append(
                        f"{path}:{line}: {field}: {value} is also that of {taken[value]}; each endpoint needs its own"
                    )
                taken[value] = f"{spec.name} (line {line})"
            entries.append(entry)
        problems += found
        if len(problems) >= MAX_PROBLEMS:
            break
    if problems:
        raise BadEndpointFile("\n".join(problems[:MAX_PROBLEMS]))
    return tuple(entries)


def _entry(fields: dict[str, Any]) -> tuple[Entry, EndpointSpec, str, Any]:
    """Return an entry, its endpoint or template, and the field and the value that no other entry may have."""
    if "dns" in fields:
        host = fields.pop("dns")
        spec = EndpointSpec(**fields, address=host)
        return DnsEntry(spec), spec, "dns", spec.address
    if "kubernetes" in fields:
        source = fields.pop("kubernetes")
        tls = source.scheme == "https"
        if tls:
            fields.setdefault("server_name", default_server_name(source))
        spec = EndpointSpec(**{"models": (), "slots": 0, **fields}, address=Address("", 0, tls))
        return KubernetesEntry(spec, source), spec, "kubernetes", source.key
    spec = EndpointSpec(**fields)
    return spec, spec, "url", spec.address


def _fields(node: yaml.Node, path: Path, problems: list[str]) -> dict[str, Any]:
    """Return the values of one entry by attribute of EndpointSpec; appends errors to `problems`."""
    line = f"{path}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        problems.append(f"{line}: not an endpoint; write {', '.join(f'`{field}:`' for field in _REQUIRED)}")
        return {}
    values: dict[str, Any] = {}
    for key, value in node.value:
        at = f"{path}:{key.start_mark.line + 1}"
        field = key.value if isinstance(key, yaml.ScalarNode) else "?"
        if field not in _CHECKS:
            problems.append(f"{at}: {field}: no such field; use one of {', '.join(_CHECKS)}")
            continue
        name, check = _CHECKS[field]
        if name in values:
            problems.append(f"{at}: {field}: given twice; remove one")
        try:
            values[name] = check(_plain(value))
        except InvalidField as error:
            problems.append(f"{at}: {field}: {error}")
            values[name] = None
    problems += [f"{line}: {problem}" for problem in _entry_problems(values)]
    lines = {key.value: key.start_mark.line + 1 for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
    problems += [
        f"{path}:{lines.get(field, node.start_mark.line + 1)}: {field}: {problem}"
        for field, problem in conflicts({"address": _address(values), **values})
    ]
    return values


def _address(values: dict[str, Any]) -> Address | None:
    """Return an address that uses TLS if the endpoints of a `dns` or `kubernetes` entry use TLS; else None."""
    if values.get("kubernetes"):
        return Address("", 0, values["kubernetes"].scheme == "https")
    address: Address | None = values.get("dns")
    return address


def _entry_problems(values: dict[str, Any]) -> list[str]:
    """Return the problems of an entry: missing fields, and fields that exclude each other."""
    sources = [field for field in _SOURCES if _CHECKS[field][0] in values]
    given = {*values, *(("address",) if sources else ()), *(("models", "slots") if "kubernetes" in values else ())}
    problems = [f"{field}: missing; add it" for field in _REQUIRED if _CHECKS[field][0] not in given]
    problems += [f"{field}: the endpoint also has a {sources[0]}; remove one of them" for field in sources[1:]]
    if sources and sources[0] != "url":
        max_name = dns_discovery.MAX_NAME if sources[0] == "dns" else discovered_server.MAX_NAME
        if len(values.get("name") or "") > max_name:
            problems.append(f"name: more than {max_name} characters, to which addresses are appended; shorten it")
    source = values.get("kubernetes")
    if source is not None and source.inference_pool and source.scheme == "https" and "server_name" not in values:
        problems.append("server_name: missing; add the name that the certificates of the pool's servers contain")
    return problems


def _plain(node: yaml.Node) -> Any:
    """Convert a node to a JSON value; None for types that no field accepts.

    Lists and mappings are truncated just above the maximum length, and what is nested in them is not converted, except
    for a list in a mapping, because with aliases a small file can expand to a list larger than memory.

    Raises:
        InvalidField: a mapping contains a key twice.
    """
    if isinstance(node, yaml.MappingNode):
        pairs = node.value[: MAX_PAIRS + 1]
        keys = [_plain(key) if isinstance(key, yaml.ScalarNode) else None for key, _ in pairs]
        if len(set(keys)) < len(keys):
            raise InvalidField("a name is given twice, or is not a text; correct it")
        return {
            key: None if isinstance(value, yaml.MappingNode) else _plain(value)
            for key, (_, value) in zip(keys, pairs, strict=True)
        }
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) if isinstance(item, yaml.ScalarNode) else None for item in node.value[: MAX_MODELS + 1]]
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str":
        return node.value
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:bool" and node.value in ("true", "false"):
        return node.value == "true"
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:int" and _DECIMAL.fullmatch(node.value):
        return int(node.value)
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:float" and _FRACTION.fullmatch(node.value):
        return float(node.value)
    return None


def _dns(value: Any) -> Address:
    address = dns_address(value)
    if address is None:
        raise InvalidField(
            "not a name with a port; write name:port, such as engines.default.svc:8000, or https://name:port"
        )
    return address


_DECIMAL = re.compile(r"-?[0-9]{1,15}")
_FRACTION = re.compile(r"-?[0-9]{1,15}\.[0-9]{1,15}")
_CHECKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **CHECKS,
    **FILE_CHECKS,
    "dns": ("dns", _dns),
    "kubernetes": ("kubernetes", read_source),
}
_SOURCES = ("url", "dns", "kubernetes")
"""The fields that locate the endpoints of an entry; an entry has exactly one of these fields."""
_REQUIRED = ("name", "url", "models", "slots")
