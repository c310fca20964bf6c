"""The region's endpoints as a YAML file, read strictly: a mistake names its line, its field and the remedy.

- name: gpu-1
  url: http://10.0.0.11:8000
  models: [llama-3-8b]
  zone: a
  accelerator: h100
  slots: 16
  queue: 4
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from regional_agent.carry.upstream import Address

LARGEST_FILE_BYTES = 4 * 1024 * 1024
MOST_ENDPOINTS = 4096
MOST_MODELS = 64
"""Models of one endpoint: adapters count."""
MOST_REQUESTS = 100_000
"""No endpoint runs or queues more."""
DEEPEST = 8
"""Levels of nesting that are looked at; the format has three."""
MOST_PROBLEMS = 20
"""Mistakes told at once."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class BadEndpointFile(Exception):
    """The file cannot be used; one line a mistake, each with file, line, field and remedy."""


class EndpointSpec(msgspec.Struct, frozen=True):
    """One endpoint as the file has it."""

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


class _Wrong(Exception):
    """What is wrong with one value, and the remedy."""


def read_endpoint_file(path: Path) -> bytes:
    """The bytes of the file, up to LARGEST_FILE_BYTES and one more; raises BadEndpointFile."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise BadEndpointFile(f"{path}: cannot read the endpoints: {error.strerror}; put the file there") from None


def parse_endpoints(content: bytes, path: Path) -> tuple[EndpointSpec, ...]:
    """The endpoints in a file's content; an empty list is a region without any.

    Raises:
        BadEndpointFile: anything in it is wrong; nothing of it may be used then.
    """
    if len(content) > LARGEST_FILE_BYTES:
        raise BadEndpointFile(f"{path}: more than {LARGEST_FILE_BYTES} bytes; is this the endpoints file?")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise BadEndpointFile(f"{path}: not UTF-8 text; save it as UTF-8") from None
    root = _compose(text, path)
    if not isinstance(root, yaml.SequenceNode):
        raise BadEndpointFile(f"{path}:1: not a list; write one `- name: ...` entry an endpoint, or [] for none")
    if len(root.value) > MOST_ENDPOINTS:
        raise BadEndpointFile(f"{path}: {len(root.value)} endpoints; at most {MOST_ENDPOINTS}: split the region")
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


def _entries(root: yaml.SequenceNode, path: Path) -> tuple[EndpointSpec, ...]:
    specs: list[EndpointSpec] = []
    problems: list[str] = []
    taken: dict[str | Address, str] = {}
    for node in root.value:
        at = f"{path}:{node.start_mark.line + 1}"
        found: list[str] = []
        fields = _fields(node, path, found)
        if not found:
            spec = EndpointSpec(**fields)
            for field, value in (("name", spec.name), ("url", spec.address)):
                if value in taken:
                    found.append(f"{at}: {field}: {value} is that of {taken[value]} too; give each endpoint its own")
                taken[value] = f"{spec.name} (line {node.start_mark.line + 1})"
            specs.append(spec)
        problems += found
        if len(problems) >= MOST_PROBLEMS:
            break
    if problems:
        raise BadEndpointFile("\n".join(problems[:MOST_PROBLEMS]))
    return tuple(specs)


def _fields(node: yaml.Node, path: Path, problems: list[str]) -> dict[str, Any]:
    """The values of one entry by EndpointSpec's names; adds what is wrong to `problems`."""
    if not isinstance(node, yaml.MappingNode):
        at = f"{path}:{node.start_mark.line + 1}"
        problems.append(f"{at}: not an endpoint; write {', '.join(f'`{field}:`' for field in _REQUIRED)}")
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
            values[name] = check(value)
        except _Wrong as wrong:
            problems.append(f"{at}: {field}: {wrong}")
            values[name] = None
    for field in _REQUIRED:
        if _CHECKS[field][0] not in values:
            problems.append(f"{path}:{node.start_mark.line + 1}: {field}: missing; add it")
    return values


def _text(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:str" or not node.value.strip():
        raise _Wrong("not a text; write a word, in quotes if it looks like a number")
    return str(node.value)


def _name(node: yaml.Node) -> str:
    name = _text(node)
    if not _NAME.fullmatch(name):
        raise _Wrong(f"{name!r} is not a name; use up to 63 letters, digits, and . _ - inside")
    return name


def _url(node: yaml.Node) -> Address:
    try:
        return Address.parse(_text(node))
    except ValueError:
        raise _Wrong(f"{node.value!r} is not an address; write http://host:port") from None


def _models(node: yaml.Node) -> tuple[str, ...]:
    if not isinstance(node, yaml.SequenceNode) or not 1 <= len(node.value) <= MOST_MODELS:
        raise _Wrong(f"not a list of 1-{MOST_MODELS} models; write [name, ...] as policy names them")
    models = tuple(_text(one) for one in node.value)
    if len(set(models)) < len(models):
        raise _Wrong("a model is named twice; remove one")
    return models


def _count(least: int) -> Callable[[yaml.Node], int]:
    def check(node: yaml.Node) -> int:
        text = node.value if isinstance(node, yaml.ScalarNode) else ""
        if node.tag != "tag:yaml.org,2002:int" or not text.isdigit() or not least <= int(text) <= MOST_REQUESTS:
            raise _Wrong(f"not a whole number from {least} to {MOST_REQUESTS}; count requests")
        return int(text)

    return check


_CHECKS: dict[str, tuple[str, Callable[[yaml.Node], Any]]] = {
    "name": ("name", _name),
    "url": ("address", _url),
    "models": ("models", _models),
    "zone": ("zone", _name),
    "accelerator": ("accelerator", _name),
    "slots": ("slots", _count(1)),
    "queue": ("queue", _count(0)),
}
_REQUIRED = ("name", "url", "models", "slots")
