"""Reads the model name from any multipart form.

The first line of the input is the Content-Type; the rest is the body, in which `\\n` stands for CRLF unless the line
begins with `!`. Property: the form is refused, or a second parser (Python's `email`) finds exactly one field `model`
with the same value; and the form has the same result when it arrives in two parts.
"""

from __future__ import annotations

import email
import email.policy

from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routing.reasons import Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.model_name import request_fields

WORDS = (
    *(b"multipart/form-data; boundary=", b"--x", b"--x--", b"\n\n", b'content-disposition: form-data; name="model"'),
    *(
        b'name="file"; filename="a"',
        b"name*=utf-8''model",
        b"filename*=",
        b"content-type: text/plain\n",
        b"; charset=utf-8",
    ),
    *(b"content-transfer-encoding: base64", b"content-length: 1", b'"', b"\\", b"\r", b"\x00", b"_charset_", b"!"),
)

PATH = b"/v1/audio/transcriptions"
_ROUTE = next(route for route in OPENAI_ROUTES if route.path == PATH.decode())


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    content_type, _, body = data.partition(b"\n")
    if content_type.startswith(b"!"):
        content_type = content_type[1:]
    else:
        body = body.replace(b"\n", b"\r\n")
    fields = request_fields(_request(content_type, body))
    if isinstance(fields, Refusal):
        assert fields.detail
        return
    if not content_type.lower().startswith(b"multipart/"):
        return
    assert _models(content_type, body) == [fields.model]
    started = _request(content_type, body)
    started.body, started.whole = body[: len(body) // 2], False
    early = request_fields(started)
    if not isinstance(early, Refusal) and started.body_check is not None:
        problem = started.body_check.feed(body[len(body) // 2 :]) or started.body_check.finish()
        assert not problem
        assert early.model == fields.model


def _request(content_type: bytes, body: bytes) -> Request:
    request = Request()
    request.method, request.target, request.path = b"POST", PATH, PATH
    request.route = _ROUTE
    request.headers = [(b"host", b"a"), (b"content-type", content_type)]
    request.index()
    request.body, request.whole, request.received_bytes, request.length = body, True, len(body), len(body)
    return request


def _models(content_type: bytes, body: bytes) -> list[str]:
    """The values of all fields `model`, as Python's `email` reads them."""
    head = b"Content-Type: " + content_type + b"\r\n\r\n"
    message = email.message_from_bytes(head + body, policy=email.policy.HTTP)
    models = []
    for part in message.walk():
        if part is not message and part.get_param("name", header="content-disposition") == "model":
            value = part.get_payload(decode=True)
            assert isinstance(value, bytes)
            models.append(value.decode())
    return models
