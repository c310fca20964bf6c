"""The messages of ComfyUI that a workflow needs: prompt, queue, history, and the files of its outputs.

Source: server.py and execution.py of ComfyUI, and https://docs.comfy.org/development/comfyui-server/comms_routes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

MAX_IMAGES: Final = 1024
"""Maximum number of images of one workflow."""

MAX_SEPARATORS: Final = 100_000
"""Maximum number of the characters between values in the JSON of a request: ten times those of a large workflow. It is
decoded in some 10 ms then. A body of the maximum size could have millions, and occupy the agent for many seconds."""

_IMAGE_LISTS: Final = ("images", "gifs", "video", "audio", "files", "3d")
"""Members of a node's output that list files."""

_FILE_FIELDS: Final = (("prompt_id", ""), ("filename", ""), ("subfolder", ""), ("type", "output"))
"""Parameters of a request for a file, with their defaults."""

_NOT_OF_CLIENTS: Final = frozenset({"prompt_id", "number", "front"})

FOLDER: Final = "penstock"
"""Folder for the files of converted requests, within ComfyUI's folders of inputs and of outputs."""

_PREFIX: Final = "filename_prefix"
"""Input of the nodes that save files: folders, and the beginning of names."""

_PROMPT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")
"""It is a part of the path of a request."""


class ResultForm(StrEnum):
    """How a response contains the images: the query parameter `images`."""

    INLINE = "inline"
    """In the JSON, in base64."""
    URL = "url"
    """As paths of the route `/view`."""
    BYTES = "bytes"
    """The first image is the body."""


class BadWorkflow(Exception):
    """The request or a response of ComfyUI is not as documented. The message says what is wrong."""


class StoredFile(NamedTuple):
    """The place of a file at a ComfyUI."""

    filename: str
    subfolder: str
    type: str


class OutputFile(msgspec.Struct, frozen=True):
    """A file that a node has written."""

    node: str
    filename: str
    subfolder: str = ""
    type: str = "output"

    @property
    def stored(self) -> StoredFile:
        """The place of the file."""
        return StoredFile(self.filename, self.subfolder, self.type)


class Finished(msgspec.Struct, frozen=True):
    """A workflow that has ended, as its history has it."""

    succeeded: bool
    interrupted: bool
    files: tuple[OutputFile, ...]
    """All files, those of preview nodes included."""
    messages: Any
    """The messages of the execution, of which one has the error of a failed workflow."""

    @property
    def results(self) -> tuple[OutputFile, ...]:
        """The files without those of preview nodes, unless there are no others."""
        # Previews are written for people who look at the graph.
        return tuple(file for file in self.files if file.type != "temp") or self.files


class FileRequest(NamedTuple):
    """A request for a file of a prompt."""

    prompt_id: str
    file: StoredFile


def prompt_with_client(body: bytes, client_id: str, folder: str) -> bytes:
    """Return the body of a prompt with the identifier of another client, and without its choices of identifier and
    place in the queue, which could be those of other clients; raises BadWorkflow. No body may be decoded before.

    Args:
        folder: for the files that nodes save, within ComfyUI's folder of outputs; random, since the nodes of other
            clients' prompts load files by their names.
    """
    if sum(map(body.count, (b",", b":", b"[", b"{"))) > MAX_SEPARATORS:
        raise BadWorkflow(f"the request has more than {MAX_SEPARATORS} of the characters `,`, `:`, `[` and `{{`")
    prompt = _object(body, "the request")
    if not isinstance(prompt.get("prompt"), dict):
        raise BadWorkflow("the request has no workflow: `prompt` must be an object of nodes")
    for node in prompt["prompt"].values():
        inputs = node.get("inputs") if isinstance(node, dict) else None
        if isinstance(inputs, dict) and isinstance(inputs.get(_PREFIX), str):
            inputs[_PREFIX] = f"{FOLDER}/{folder}/{inputs[_PREFIX]}"
    kept = {name: value for name, value in prompt.items() if name not in _NOT_OF_CLIENTS}
    return msgspec.json.encode(kept | {"client_id": client_id})


def prompt_id_of(body: bytes) -> str:
    """Return the identifier in the response to a prompt; raises BadWorkflow."""
    found = _object(body, "the response to the prompt").get("prompt_id")
    if not isinstance(found, str) or _PROMPT_ID.fullmatch(found) is None:
        raise BadWorkflow("the response to the prompt has no prompt_id of letters, digits, `-` and `_`")
    return found


def file_request(query: Mapping[str, Sequence[str]]) -> FileRequest | None:
    """Return what the query of a request for a file names; None if it lacks a name or has one twice.

    Args:
        query: all values of each parameter.
    """
    values = [query.get(name, [default]) for name, default in _FILE_FIELDS]
    if any(len(each) != 1 for each in values):
        return None
    prompt_id, filename, subfolder, kind = (each[0] for each in values)
    if not filename or _PROMPT_ID.fullmatch(prompt_id) is None:
        return None
    return FileRequest(prompt_id, StoredFile(filename, subfolder, kind))


def finished(body: bytes, prompt_id: str) -> Finished | None:
    """Return the end of a workflow by its history; None if it has not ended. Raises BadWorkflow."""
    entry = _object(body, "the history").get(prompt_id)
    if not isinstance(entry, dict):
        return None
    status, outputs = entry.get("status"), entry.get("outputs")
    status = status if isinstance(status, dict) else {}
    messages = status.get("messages")
    names = [each[0] for each in messages if isinstance(each, list) and each] if isinstance(messages, list) else []
    succeeded = status.get("status_str", "success") == "success"
    files = _files(outputs) if isinstance(outputs, dict) else ()
    return Finished(succeeded, "execution_interrupted" in names, files, messages)


def place_in_queue(body: bytes, prompt_id: str) -> str:
    """Return `queue_running` or `queue_pending`, where a prompt is; empty if in neither. Raises BadWorkflow."""
    queue = _object(body, "the queue")
    for name in ("queue_running", "queue_pending"):
        entries = queue.get(name)
        if isinstance(entries, list) and any(_id_in(entry) == prompt_id for entry in entries):
            return name
    return ""


def _id_in(entry: object) -> object:
    return entry[1] if isinstance(entry, list) and len(entry) > 1 else None


def _files(outputs: dict[Any, Any]) -> tuple[OutputFile, ...]:
    found: list[OutputFile] = []
    for node, output in outputs.items():
        for name in _IMAGE_LISTS:
            listed = output.get(name) if isinstance(output, dict) else None
            for file in listed if isinstance(listed, list) else ():
                try:
                    found.append(msgspec.convert({"node": str(node), **file}, OutputFile))
                except (msgspec.ValidationError, TypeError):
                    continue
    if len(found) > MAX_IMAGES:
        raise BadWorkflow(f"the workflow has written more than {MAX_IMAGES} files")
    return tuple(found)


def _object(body: bytes, what: str) -> dict[str, Any]:
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadWorkflow(f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadWorkflow(f"{what} is not a JSON object")
    return found
