"""Checks of the part of a large body that arrives after its request was routed, before the part is forwarded.

An engine reads the model name after it has received the whole body. A request whose body could then name another model
is refused.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.routing.multipart_form import FormScanner, form_boundary

MODEL_STRING: Final = re.compile(
    rb'"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"',
)
"""A JSON string with the value `model`, with or without escapes."""

MAX_STRING_BYTES: Final = 32
"""Maximum length (bytes) of a match of MODEL_STRING."""


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
    """Checks that the body contains no further string `model`: of several values, parsers use the last or the first."""

    def __init__(self, routed: bytes | bytearray) -> None:
        """Check what follows the part `routed`, by which the request is routed."""
        # A string that begins in the routed part can end in the next one. A complete string was counted already.
        self._rest = MODEL_STRING.split(bytes(routed[-MAX_STRING_BYTES + 1 :]))[-1]

    def feed(self, chunk: bytes) -> str:
        """Check a further part of the body; returns the problem, or an empty string."""
        data = self._rest + chunk
        self._rest = data[-MAX_STRING_BYTES + 1 :]
        if MODEL_STRING.search(data):
            return "the body contains the string `model` again; send `model` first, in a smaller body"
        return ""

    def finish(self) -> str:
        """Accept the end of the body without a check, since every parser rejects incomplete JSON."""
        return ""


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
