"""Input images of a workflow: which a request has, the upload of each to a ComfyUI, and their names in the workflow.

ComfyUI reads images from a folder that all its clients share, and an upload may replace a file of that name. Each
image therefore has a random name there, which takes the place of the client's name in the nodes of the workflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from penstock.converters.comfyui import FOLDER, BadWorkflow
from penstock.converters.long_texts import BadText, base64_pieces

MEMBER: Final = "input_images"
"""Member of a request with its images by name; ComfyUI knows no such member."""

MAX_IMAGES: Final = 16
"""Maximum number of input images of a workflow."""

MAX_IMAGE_BYTES: Final = 32 * 1024 * 1024
"""Maximum size (bytes) of one input image."""

MAX_ALL_BYTES: Final = 64 * 1024 * 1024
"""Maximum size (bytes) of all input images of a workflow."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_STORED: Final = re.compile(r"[A-Za-z0-9._() -]{1,128}")
_KINDS: Final = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
)
"""First bytes of the formats, and the end of names of such files."""


class InputImage(NamedTuple):
    """An input image of a request; it has either content, in base64, or a URL."""

    name: str
    """The name in the nodes of the workflow."""
    encoded: memoryview
    url: str

    def pieces(self) -> Iterator[bytes]:
        """Decode the content in pieces, each of which takes some ms; raises BadWorkflow."""
        try:
            yield from base64_pieces(self.encoded)
        except BadText:
            raise BadWorkflow(f"`{MEMBER}`: b64_json of {self.name} is not base64") from None


NO_CONTENT: Final = memoryview(b"")


def input_images(body: bytes, texts: Mapping[str, memoryview]) -> tuple[InputImage, ...]:
    """Return the input images of a request; raises BadWorkflow, also if no node uses one of them.

    Args:
        texts: the long texts of the request, by those that the body has in their places.
    """
    try:
        request: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()  # `prompt_with_client` refuses it
    given = request.get(MEMBER) if isinstance(request, dict) else None
    if given is None:
        return ()
    if not isinstance(given, dict) or len(given) > MAX_IMAGES:
        raise BadWorkflow(f"`{MEMBER}` must be an object with at most {MAX_IMAGES} images by name")
    used = _names_in(request.get("prompt"))
    found = []
    for name, image in given.items():
        if _NAME.fullmatch(name) is None:
            raise BadWorkflow(f"`{MEMBER}`: a name has 1 to 100 letters, digits, `.`, `-` and `_`")
        if name not in used:
            raise BadWorkflow(f"`{MEMBER}`: no node of the workflow has the input {name}")
        found.append(_image(name, image, texts))
    return tuple(found)


def kind_of(name: str, content: bytes) -> str:
    """Return the end of the name of an image file (PNG, JPEG, GIF, WebP); raises BadWorkflow for any other content."""
    if len(content) > MAX_IMAGE_BYTES:
        raise BadWorkflow(f"`{MEMBER}`: {name} has more than {MAX_IMAGE_BYTES} bytes")
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "webp"
    for begin, kind in _KINDS:
        if content.startswith(begin):
            return kind
    raise BadWorkflow(f"`{MEMBER}`: {name} is no image in PNG, JPEG, GIF or WebP")


def upload_form(filename: str, content: bytes, boundary: str) -> tuple[str, bytes]:
    """Return the Content-Type and the body of an upload.

    Args:
        boundary: random, so that no content has it.
    """
    fields = {"subfolder": FOLDER, "type": "input", "overwrite": "false"}
    head = "".join(
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    head += f'--{boundary}\r\ncontent-disposition: form-data; name="image"; filename="{filename}"\r\n'
    head += "content-type: application/octet-stream\r\n\r\n"
    form = b"".join((head.encode(), content, f"\r\n--{boundary}--\r\n".encode()))
    return f"multipart/form-data; boundary={boundary}", form


def stored_as(body: bytes) -> str:
    """Return the name by which nodes find an uploaded image, from the response to its upload; raises BadWorkflow."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    name, folder = (found.get("name"), found.get("subfolder")) if isinstance(found, dict) else (None, None)
    if not isinstance(name, str) or _STORED.fullmatch(name) is None or folder not in ("", FOLDER):
        raise BadWorkflow("the response to the upload of an image has no name of a file")
    return f"{folder}/{name}" if folder else name


def with_images(body: bytes, stored: Mapping[str, str]) -> bytes:
    """Return a request without its input images, and with their names at the ComfyUI in the inputs of its nodes."""
    request: dict[str, Any] = msgspec.json.decode(body)
    request.pop(MEMBER, None)
    for node in request["prompt"].values():
        inputs = node.get("inputs") if isinstance(node, dict) else None
        if isinstance(inputs, dict):
            inputs |= {
                key: stored[value] for key, value in inputs.items() if isinstance(value, str) and value in stored
            }
    return msgspec.json.encode(request)


def _image(name: str, image: object, texts: Mapping[str, memoryview]) -> InputImage:
    if isinstance(image, dict) and len(image) == 1:
        encoded, url = image.get("b64_json"), image.get("url")
        if isinstance(url, str):
            return InputImage(name, NO_CONTENT, url)
        if isinstance(encoded, str):
            return InputImage(name, texts.get(encoded) or memoryview(encoded.encode()), "")
    raise BadWorkflow(f"`{MEMBER}`: {name} must be an object with either b64_json or url")


def _names_in(prompt: object) -> set[str]:
    """Return all strings in the inputs of the nodes of a workflow."""
    nodes = prompt.values() if isinstance(prompt, dict) else ()
    inputs = [node["inputs"] for node in nodes if isinstance(node, dict) and isinstance(node.get("inputs"), dict)]
    return {value for each in inputs for value in each.values() if isinstance(value, str)}
