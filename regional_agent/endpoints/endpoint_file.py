"""The region's endpoints as a YAML file, read strictly: a mistake names its line, its field and the remedy.

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
  slots: 16

The second entry stands for as many endpoints as its name has addresses. Of an endpoint's `engine` (see penstock/
engines.py), `version`, `health` (a path) and `metrics_port` none has to be said.
"""

from __future__ import annotations

import re
from pathlib import Path
from stat import S_ISREG
from typing import Any

import yaml

from regional_agent.endpoints.endpoint_dns import MAX_NAME, DnsEntry, dns_address
from regional_agent.endpoints.endpoint_fields import CHECKS, MAX_MODELS, EndpointSpec, Wrong
from regional_agent.upstream.address import Address

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_ENDPOINTS = 4096
DEEPEST = 8
"""Levels of nesting that are looked at; the format has three."""
MAX_PROBLEMS = 20
"""Mistakes told at once."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Entry = EndpointSpec | DnsEntry


class BadEndpointFile(Exception):
    """The file cannot be used; one line a mistake, each with file, line, field and remedy."""


def read_endpoint_file(path: Path) -> bytes:
    """The bytes of the file, up to MAX_FILE_BYTES and one more; raises BadEndpointFile."""
    try:
        if not S_ISREG(path.stat().st_mode):  # to open a pipe, say, would wait for ever
            raise BadEndpointFile(f"{path}: cannot read the endpoints: not a plain file; put one there")
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadEndpointFile(f"{path}: cannot read the endpoints: {error.strerror}; put the file there") from None


def parse_endpoints(content: bytes, path: Path) -> tuple[Entry, ...]:
    """The endpoints in a file's content; an empty list is a region without any.

    Raises:
        BadEndpointFile: anything in it is wrong; nothing of it may be used then.
    """
    if len(content) > MAX_FILE_BYTES:
        raise BadEndpointFile(f"{path}: more than {MAX_FILE_BYTES} bytes; is this the endpoints file?")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise BadEndpointFile(f"{path}: not UTF-8 text; save it as UTF-8") from None
    root = _compose(text, path)
    if not isinstance(root, yaml.SequenceNode):
        raise BadEndpointFile(f"{path}:1: not a list; write one `- name: ...` entry an endpoint, or [] for none")
    if len(root.value) > MAX_ENDPOINTS:
        raise BadEndpointFile(f"{path}: {len(root.value)} endpoints; at most {MAX_ENDPOINTS}: split the region")
    return _entries(root, path)


def _compose(text: str, path: Path) -> yaml.Node | None:
    try:
        # libyaml's composer recurses in C and takes the process down on deep nesting; its parser does not.
        depth = 0
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise BadEndpointFile(f"{path}: nested too deeply; write a flat list of endpoints")
        return yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problem = getattr(error, "problem", None) or "unreadable characters"
        raise BadEndpointFile(f"{at}: not YAML: {problem}; mend the syntax there") from None


def _entries(root: yaml.SequenceNode, path: Path) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    problems: list[str] = []
    taken: dict[str | Address, str] = {}
    for node in root.value:
        line = node.start_mark.line + 1
        found: list[str] = []
        fields = _fields(node, path, found)
        if not found:
            entry, spec, source = _entry(fields)
            for field, value in (("name", spec.name), (source, spec.address)):
                if value in taken:
                    found.append(
                        f"{path}:{line}: {field}: {value} is that of {taken[value]} too; give each endpoint its own"
                    )
                taken[value] = f"{spec.name} (line {line})"
            entries.append(entry)
        problems += found
        if len(problems) >= MAX_PROBLEMS:
            break
    if problems:
        raise BadEndpointFile("\n".join(problems[:MAX_PROBLEMS]))
    return tuple(entries)


def _entry(fields: dict[str, Any]) -> tuple[Entry, EndpointSpec, str]:
    """An entry, what it says of its endpoints, and the field that says where they are."""
    if "dns" not in fields:
        spec = EndpointSpec(**fields)
        return spec, spec, "url"
    host = fields.pop("dns")
    spec = EndpointSpec(**fields, address=host)
    return DnsEntry(spec), spec, "dns"


def _fields(node: yaml.Node, path: Path, problems: list[str]) -> dict[str, Any]:
    """The values of one entry by EndpointSpec's names; adds what is wrong to `problems`."""
    line = f"{path}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        problems.append(f"{line}: not an endpoint; write {', '.join(f'`{field}:`' for field in _REQUIRED)}")
        return {}
    values: dict[str, Any] = {}
    for key, value in node.value:
        at = f"{path}:{key.start_mark.line + 1}"
        field = key.value if isinstance(key, yaml.ScalarNode) else "?"
        if field not in _CHECKS:
            problems.append(f"{at}: {field}: no such field; there are {', '.join(_CHECKS)}")
            continue
        name, check = _CHECKS[field]
        if name in values:
            problems.append(f"{at}: {field}: given twice; remove one")
        try:
            values[name] = check(_plain(value))
        except Wrong as wrong:
            problems.append(f"{at}: {field}: {wrong}")
            values[name] = None
    problems += [f"{line}: {wrong}" for wrong in _wrong_together(values)]
    return values


def _wrong_together(values: dict[str, Any]) -> list[str]:
    """What is missing, or does not go with the rest."""
    wrong = [
        f"{field}: missing; add it"
        for field in _REQUIRED
        if _CHECKS[field][0] not in values and not (field == "url" and "dns" in values)
    ]
    if "address" in values and "dns" in values:
        wrong.append("dns: the endpoint has a url already; remove one of them")
    if "dns" in values and len(values.get("name") or "") > MAX_NAME:
        wrong.append(f"name: more than {MAX_NAME} characters; addresses come after it: shorten it")
    return wrong


def _plain(node: yaml.Node) -> Any:
    """A node's value as JSON would have it; None for what no field takes.

    Of a list only so much as is needed to see that it is too long, and no lists in it: with aliases a small file can
    stand for a list that fits no memory.
    """
    if isinstance(node, yaml.SequenceNode):
        return [_plain(one) if isinstance(one, yaml.ScalarNode) else None for one in node.value[: MAX_MODELS + 1]]
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str":
        return node.value
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:int" and _DECIMAL.fullmatch(node.value):
        return int(node.value)
    return None


def _dns(value: Any) -> Address:
    address = dns_address(value)
    if address is None:
        raise Wrong("not a name with a port; write name:port, such as engines.default.svc:8000")
    return address


_DECIMAL = re.compile(r"-?[0-9]{1,15}")
_CHECKS = {**CHECKS, "dns": ("dns", _dns)}
_REQUIRED = ("name", "url", "models", "slots")
