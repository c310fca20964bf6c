"""Loads the settings of a daemon: command-line flags win over the environment, and the environment over a YAML file.

A setting has one name: `etcd_endpoints` in the file is `<PREFIX>ETCD_ENDPOINTS` in the environment and
`--etcd-endpoints` on the command line. The file is YAML, like the policy, the endpoints and the API keys; its reader
returns the line of each field, which the TOML reader of the standard library does not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from adapters.configuration.strict_yaml import YamlDocument, read_yaml
from adapters.error_text import printable, suggest
from adapters.files.plain_file import read_plain_file

MAX_FILE_BYTES = 256 * 1024
MAX_ERRORS = 50
"""Number of errors in the configuration file after which no further document is read."""

CONFIG = "CONFIG"
"""Name of the environment variable, after the prefix, that names the configuration file."""

_MENTION = re.compile(r"\{([a-z0-9_]+)\}")
"""Reference to a setting in a validator's message, such as `{tls_key_file}`; replaced by its name in its source."""

S = TypeVar("S", bound=BaseModel)


class BadSettings(Exception):
    """Settings are invalid; one line for each, with its place (file and line, variable, or flag) and the remedy."""


class Source(Enum):
    """Source of the value of a setting."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class Origin(NamedTuple):
    """Origin of the value of one setting: the source, and the place in the source."""

    source: Source
    place: str = ""
    """File and line, variable, or flag; empty for a default."""


class LoadedSettings(NamedTuple, Generic[S]):
    """Valid settings, and the origin of each value by field name."""

    settings: S
    origins: Mapping[str, Origin]


class ConfigFile(NamedTuple):
    """Content of a configuration file, without the settings whose value is null."""

    path: Path
    document: YamlDocument

    def place(self, *path: str | int) -> str:
        """Return the file and line of a field."""
        return f"{self.path}:{self.document.line_of(path)}"


def read_config_file(path: Path, model: type[BaseModel]) -> ConfigFile:
    """Read a configuration file.

    Raises:
        BadSettings: the file cannot be read, is not YAML, or has a field that is no setting of `model`.
    """
    text = _read_text(path)
    documents, errors = read_yaml(
        text, beginning="write one `setting: value` a line", max_documents=1, max_errors=MAX_ERRORS
    )
    problems = [
        f"{path}:{error.line}: {': '.join(map(str, (*error.path, error.problem)))}; {error.remedy}" for error in errors
    ]
    if not documents and not problems:
        documents = [YamlDocument(1, {}, {})]
    for document in documents:
        problems += [
            f"{path}:{document.line_of((name,))}: {name}: no such setting; "
            + suggest(name, model.model_fields, "docs/reference/settings.md lists them")
            for name in document.content
            if name not in model.model_fields
        ]
    if problems:
        raise BadSettings("\n".join(map(printable, problems)))
    (document,) = documents
    content = {name: value for name, value in document.content.items() if value is not None}
    return ConfigFile(path, YamlDocument(document.line, content, document.lines))


def load_with_origins(
    model: type[S],
    prefix: str,
    *,
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> LoadedSettings[S]:
    """Merge and validate the settings.

    Args:
        model: the settings. The message of a validator of the whole model begins with `{field}: ` and may refer to
            other settings as `{field}`.
        prefix: prefix of the names of the environment variables.
        config: the configuration file; None reads the file that the environment names, if any.
        flags: values of the command line, by field name.
        environment: variables; an empty variable counts as not set. None uses the environment of the process.

    Raises:
        BadSettings: the file, or a setting, is missing or invalid. The message contains no value of a secret.
    """
    variables = os.environ if environment is None else environment
    if config is None and variables.get(prefix + CONFIG):
        config = Path(variables[prefix + CONFIG])
    file = read_config_file(config, model) if config is not None else None
    values = _file_values(file, model) if file is not None else {}
    origins = {name: Origin(Source.FILE, file.place(name)) for name in values} if file is not None else {}
    for name in model.model_fields:
        text = variables.get(prefix + name.upper())
        if text:
            values[name], origins[name] = text, Origin(Source.ENVIRONMENT, prefix + name.upper())
    for name, value in (flags or {}).items():
        values[name], origins[name] = value, Origin(Source.FLAG, f"--{name.replace('_', '-')}")
    try:
        settings = model(**values)
    except ValidationError as error:
        describe = _Describer(model, prefix, origins, file)
        lines = [printable(describe(problem)) for problem in error.errors(include_input=False, include_url=False)]
        raise BadSettings("\n".join(lines)) from None
    return LoadedSettings(settings, {name: origins.get(name, Origin(Source.DEFAULT)) for name in model.model_fields})


def _file_values(file: ConfigFile, model: type[BaseModel]) -> dict[str, Any]:
    """Return the values of a file, whose relative paths are those from its folder: the folder may be moved."""
    return {
        name: str(file.path.parent / value)
        if isinstance(value, str) and _is_path(model.model_fields[name].annotation)
        else value
        for name, value in file.document.content.items()
    }


def _is_path(annotation: Any) -> bool:
    """Whether the values of a type may be paths, such as those of `Path | None`."""
    return annotation is Path or any(map(_is_path, get_args(annotation)))


class _Describer:
    """Formats the validation errors of pydantic with the origin of each setting."""

    def __init__(
        self, model: type[BaseModel], prefix: str, origins: Mapping[str, Origin], file: ConfigFile | None
    ) -> None:
        self._model = model
        self._prefix = prefix
        self._origins = origins
        self._file = file

    def __call__(self, problem: Any) -> str:
        message = str(problem["msg"]).removeprefix("Value error, ")
        if not problem["loc"]:
            begin = _MENTION.match(message)
            place = self._place(begin[1]) if begin is not None else ""
            rest = message[begin.end() :] if begin is not None else message
            return place + _MENTION.sub(self._name, rest)
        field, *inside = problem["loc"]
        # Pydantic adds steps in brackets to the path, such as [key] for an error in a key of a mapping.
        inside = [step for step in inside if isinstance(step, int) or "[" not in step]
        place = self._place(str(field), *inside) + "".join(f"[{step}]" for step in inside)
        if problem["type"] == "missing":
            return f"{place}: not set"
        if problem["type"] == "extra_forbidden":
            return f"{place}: no such setting"
        return f"{place}: {_MENTION.sub(self._name, message)}"

    def _place(self, field: str, *inside: str | int) -> str:
        """Return the place of a setting: file, line and name, variable, or flag."""
        origin = self._origins.get(field)
        if origin is None:
            return f"{self._file.path}: {field}" if self._file is not None else self._prefix + field.upper()
        if origin.source is Source.FILE and self._file is not None:
            return f"{self._file.place(field, *inside)}: {field}"
        return origin.place

    def _name(self, mention: re.Match[str]) -> str:
        """Return the name of a mentioned setting in the source that set it: flag, variable, or field of the file."""
        field = mention[1]
        if field not in self._model.model_fields:
            return mention[0]
        origin = self._origins.get(field)
        if origin is not None and origin.source is not Source.FILE:
            return origin.place
        return field if self._file is not None else self._prefix + field.upper()


def _read_text(path: Path) -> str:
    try:
        content = read_plain_file(path, MAX_FILE_BYTES).content
    except OSError as error:
        raise BadSettings(f"{path}: cannot read the configuration: {error.strerror}; name a readable file") from None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadSettings(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None
