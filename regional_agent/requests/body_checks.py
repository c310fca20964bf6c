"""Checks of bodies: their content codings, and forms of which a part arrives after the request was routed.

An engine reads the model name after it has received the whole body. A request whose body could then name another model
is refused before that part is forwarded.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.multipart_form import FormScanner, form_boundary

_MODEL_STRING: Final = re.compile(
    rb'"(?:[mM]|\\u00[46][dD])(?:[oO]|\\u00[46][fF])(?:[dD]|\\u00[46]4)(?:[eE]|\\u00[46]5)(?:[lL]|\\u00[46][cC])(?:"|\\u0000)'
)
"""A JSON string with the value `model`, in any case, with or without escapes, or with a NUL after it."""

_MAX_STRING_BYTES: Final = 40
"""Maximum length (bytes) of a match of _MODEL_STRING."""

MAX_UNCOMPRESSED_BYTES: Final = 1024 * 1024
"""Maximum size (bytes) of a compressed body's content that is read, in about three milliseconds."""

_GZIP: Final = 16 + zlib.MAX_WBITS


def content_codings(request: Request) -> list[bytes]:
    """The content codings of a body, in lower case, except `identity`."""
    listed = b",".join(request.every(b"content-encoding")).lower().split(b",")
    return [coding for each in listed if (coding := each.strip()) not in (b"", b"identity")]


def uncompressed(body: bytes | bytearray) -> bytes | None:
    """The content of a body in gzip; None if it exceeds MAX_UNCOMPRESSED_BYTES or is not one complete member."""
    decoder = zlib.decompressobj(_GZIP)
    try:
        content = decoder.decompress(body, MAX_UNCOMPRESSED_BYTES)
    except zlib.error:
        return None
    return content if decoder.eof and not decoder.unused_data else None


class FormCheck:
    """Checks that the form is well-formed, and that a `model` field agrees with the name that routed the request."""

    def __init__(self, scanner: FormScanner) -> None:
        """Check the form that `scanner` scans."""
        self.scanner = scanner
        self.expected: str | None = None
        """The model name in the header or the query; None where the form itself named the model."""
        self._scanned_bytes = 0

    def scan(self, body: bytes | bytearray) -> str:
        """Scan the part of `body` that was not scanned before; returns the problem, or an empty string."""
        self.scanner.feed(body[self._scanned_bytes :])
        self._scanned_bytes = len(body)
        return self.scanner.problem

    def feed(self, chunk: bytes) -> str:
        """Check a further part of the body; returns the problem, or an empty string."""
        self.scanner.feed(chunk)
        return self._problem()

    def finish(self) -> str:
        """Check the end of the body; returns the problem, or an empty string."""
        self.scanner.finish()
        return self._problem()

    def _problem(self) -> str:
        model = self.scanner.model
        if self.expected is not None and model is not None and model != self.expected:
            return "the form names another model than the rest of the request"
        return self.scanner.problem


class JsonCheck:
    """Searches JSON that is forwarded as it arrives for the string `model`, as a name or a value at any depth."""

    def __init__(self) -> None:
        """Begin with the first part."""
        self._rest = b""

    def finds_model(self, part: bytes) -> bool:
        """Whether the string ends in a further part."""
        data = self._rest + part
        self._rest = data[-_MAX_STRING_BYTES + 1 :]
        return _MODEL_STRING.search(data) is not None


def scan_form(request: Request, field: str = "model") -> FormCheck | Refusal:
    """Scan the part of a form that has arrived; returns its check, or a refusal. `field` names the model."""
    form = request.body_check
    if form is None:
        boundary = form_boundary(request.header(b"content-type") or b"")
        if boundary is None:
            return Refusal(
                Reason.BAD_REQUEST, "Content-Type is not of the form `multipart/form-data; boundary=<boundary>`"
            )
        form = request.body_check = FormCheck(FormScanner(boundary, field.encode()))
    assert isinstance(form, FormCheck)
    problem = form.scan(request.body)
    if not problem and request.whole:
        problem = form.finish()
    return Refusal(Reason.BAD_REQUEST, problem) if problem else form
