"""Every parser that engines use reads an accepted form in the same way; other forms are refused."""

from __future__ import annotations

import asyncio
import email
import email.policy
from collections.abc import AsyncIterator
from email.message import Message
from io import BytesIO
from typing import Any
from unittest.mock import MagicMock

import pytest
from aiohttp import MultipartReader, StreamReader
from hypothesis import example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from starlette.datastructures import Headers
from werkzeug.formparser import parse_form_data

from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routing.reasons import Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.body_checks import FormCheck
from regional_agent.requests.model_name import request_fields
from regional_agent.requests.multipart_form import MAX_PARTS, FormScanner, form_boundary
from tests.support.examples import examples

UPLOAD = b"/v1/images/edits"


def request(body: bytes, *content_types: bytes, whole: bool = True, model_header: bytes | None = None) -> Request:
    form = Request()
    form.route = next(route for route in OPENAI_ROUTES if route.path == UPLOAD.decode())
    form.path = form.target = UPLOAD
    form.headers = [(b"content-type", content_type) for content_type in content_types]
    if model_header is not None:
        form.headers.append((b"x-model", model_header))
    form.body, form.whole, form.received_bytes = body, whole, len(body)
    return form


def accepted_model(content_type: bytes, body: bytes) -> str | None:
    fields = request_fields(request(body, content_type))
    return None if isinstance(fields, Refusal) else fields.model


# The values of `model` that real parsers read.


def by_email(content_type: bytes, body: bytes, policy: Any) -> list[str]:
    message: Message = email.message_from_bytes(b"Content-Type: " + content_type + b"\r\n\r\n" + body, policy=policy)
    models = []
    for part in message.walk():
        if part is not message and part.get_param("name", header="content-disposition") == "model":
            value = part.get_payload(decode=True)
            assert isinstance(value, bytes)
            models.append(value.decode())
    return models


def by_werkzeug(content_type: bytes, body: bytes) -> list[str]:
    environ = {
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": content_type.decode("latin-1"),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": BytesIO(body),
    }
    _, fields, files = parse_form_data(environ, silent=False)
    return [*fields.getlist("model"), *(file.filename or "" for file in files.getlist("model"))]


def by_python_multipart(content_type: bytes, body: bytes) -> list[str]:
    from python_multipart import parse_form

    models: list[str] = []
    headers = {"Content-Type": content_type, "Content-Length": str(len(body)).encode()}

    def on_field(field: Any) -> None:
        if field.field_name == b"model":
            models.append((field.value or b"").decode())

    def on_file(file: Any) -> None:
        if file.field_name == b"model":
            models.append("a file")

    parse_form(headers, BytesIO(body), on_field, on_file)
    return models


def by_starlette(content_type: bytes, body: bytes) -> list[str]:
    from starlette.formparsers import MultiPartParser

    async def parts() -> AsyncIterator[bytes]:
        yield body

    async def parse() -> list[str]:
        headers = Headers(raw=[(b"content-type", content_type)])
        form = await MultiPartParser(headers, parts()).parse()
        return [value if isinstance(value, str) else "a file" for value in form.getlist("model")]

    return asyncio.run(parse())


def by_aiohttp(content_type: bytes, body: bytes) -> list[str]:
    async def parse() -> list[str]:
        stream = StreamReader(MagicMock(_reading_paused=False), 2**20, loop=asyncio.get_running_loop())
        stream.feed_data(body)
        stream.feed_eof()
        headers = CIMultiDictProxy(CIMultiDict({"Content-Type": content_type.decode("latin-1")}))
        reader, models = MultipartReader(headers, stream), []
        while (part := await reader.next()) is not None:
            assert not isinstance(part, MultipartReader)
            value = await part.read(decode=True)
            if part.name == "model":
                models.append(bytes(value).decode())
        return models

    return asyncio.run(parse())


def readings(content_type: bytes, body: bytes) -> dict[str, list[str]]:
    return {
        "email": by_email(content_type, body, email.policy.compat32),
        "email, with the policy for HTTP": by_email(content_type, body, email.policy.HTTP),
        "Werkzeug": by_werkzeug(content_type, body),
        "python-multipart": by_python_multipart(content_type, body),
        "Starlette": by_starlette(content_type, body),
        "aiohttp": by_aiohttp(content_type, body),
    }


def part(disposition: bytes, value: bytes, *headers: bytes) -> bytes:
    lines = [b"Content-Disposition: " + disposition, *headers]
    return b"--b-1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + value + b"\r\n"


MODEL = part(b'form-data; name="model"', b"m")
FILE = part(b'form-data; name="file"; filename="a.wav"', b"\x00RIFF", b"Content-Type: audio/wav")
FORM = b"multipart/form-data; boundary=b-1"
END = b"--b-1--\r\n"

COMMON = {
    "curl": (FORM, FILE + MODEL + END),
    "a browser": (
        b"multipart/form-data; boundary=b-1",
        MODEL + FILE.replace(b"a.wav", "Aufnähme; 1.wav".encode()) + END,
    ),
    "requests": (FORM, MODEL + FILE.replace(b"\r\nContent-Type: audio/wav", b"") + END),
    "undici": (FORM, MODEL + FILE + b"--b-1--\r\n\r\n"[:-2]),
    ".NET": (
        b'multipart/form-data; boundary="b-1"',
        part(b"form-data; name=model", b"m", b"Content-Type: text/plain; charset=utf-8")
        + part(b"form-data; name=file; filename=a.wav; filename*=utf-8''a.wav", b"x")
        + END,
    ),
    "OkHttp": (
        b"multipart/form-data; boundary=b-1",
        part(b'form-data; name="model"', b"m", b"Content-Transfer-Encoding: binary", b"Content-Length: 1") + FILE + END,
    ),
    "Spring": (
        b"multipart/form-data;charset=UTF-8;boundary=b-1",
        part(b'form-data; name="model"', b"m", b"Content-Type: text/plain;charset=UTF-8", b"Content-Length: 1")
        + FILE
        + b"--b-1--",
    ),
}


@pytest.mark.parametrize("client", COMMON)
def test_forms_of_common_clients_are_accepted_and_read_alike(client: str) -> None:
    content_type, body = COMMON[client]
    assert accepted_model(content_type, body) == "m"
    for parser, models in readings(content_type, body).items():
        assert models == ["m"], parser


NESTED_PARTS = part(b'form-data; name="files"', b"x", b"Content-Type: multipart/mixed; boundary=c")
NESTED_MESSAGE = part(b'form-data; name="file"', b"x: y\r\n\r\n", b"Content-Type: message/rfc822")

AMBIGUOUS = {
    "boundary within another parameter": (b"multipart/form-data; xboundary=A; boundary=b-1", MODEL + END),
    "two boundaries": (b"multipart/form-data; boundary=b-1; boundary=b-2", MODEL + END),
    "continued boundary": (b"multipart/form-data; boundary*0=b; boundary*1=-1", MODEL + END),
    "encoded boundary": (b"multipart/form-data; boundary*=utf-8''b-1", MODEL + END),
    "escaped boundary": (b'multipart/form-data; boundary="b\\-1"', MODEL + END),
    "boundary and comment": (b"multipart/form-data; boundary=b-1 (c)", MODEL + END),
    "another charset": (b"multipart/form-data; charset=utf-16; boundary=b-1", MODEL + END),
    "another kind of multipart": (b"multipart/mixed; boundary=b-1", MODEL + END),
    "continued name": (FORM, part(b"form-data; name*0=mo; name*1=del", b"m") + END),
    "encoded name": (FORM, part(b"form-data; name*=utf-8''model", b"m") + END),
    "escaped name": (FORM, part(b'form-data; name="mo\\del"', b"m") + END),
    "repeated name": (FORM, part(b'form-data; name="file"; name="model"', b"m") + END),
    "name in another case": (FORM, part(b'form-data; name="Model"', b"m") + END),
    "name after the filename": (FORM, part(b'form-data; filename="a"; name="model"', b"m") + END),
    "escape in a filename": (FORM, MODEL + part(b'form-data; name="file"; filename="a\\"; name=model"', b"x") + END),
    "attachment": (FORM, part(b'attachment; name="model"', b"m") + END),
    "two models": (FORM, MODEL + FILE + MODEL + END),
    "model as a file": (FORM, part(b'form-data; name="model"; filename="a"', b"m") + END),
    "model in base64": (FORM, part(b'form-data; name="model"', b"bQ==", b"Content-Transfer-Encoding: base64") + END),
    "model in UTF-16": (
        FORM,
        part(b'form-data; name="model"', "m".encode("utf-16"), b"Content-Type: text/plain; charset=utf-16") + END,
    ),
    "declared charset": (FORM, part(b'form-data; name="_charset_"', b"utf-16") + MODEL + END),
    "blanks around the model": (FORM, part(b'form-data; name="model"', b" m") + END),
    "line break in the model": (FORM, part(b'form-data; name="model"', b"m\n") + END),
    "two dispositions": (
        FORM,
        part(b'form-data; name="model"', b"m", b'Content-Disposition: form-data; name="file"') + END,
    ),
    "folded header": (FORM, b'--b-1\r\nContent-Disposition: form-data;\r\n name="model"\r\n\r\nm\r\n' + END),
    "bare line feeds": (FORM, (FILE + MODEL + END).replace(b"\r\n", b"\n")),
    "delimiter after a line feed": (FORM, part(b'form-data; name="file"', b"x\n" + MODEL) + END),
    "delimiter with blanks": (FORM, FILE + MODEL.replace(b"--b-1", b"--b-1 ") + END),
    "longer boundary": (FORM, MODEL + FILE.replace(b"--b-1", b"--b-12") + END),
    "preamble": (FORM, b"preamble\r\n" + MODEL + END),
    "leading line break": (FORM, b"\r\n" + MODEL + END),
    "epilogue": (FORM, MODEL + END + MODEL),
    "no end": (FORM, MODEL),
    "cut off": (FORM, MODEL[:-2]),
    "boundary in a header": (FORM, part(b'form-data; name="file"; filename="--b-1"', b"x") + MODEL + END),
    "nested parts": (
        FORM,
        part(b'form-data; name="files"', b"x", b"Content-Type: multipart/mixed; boundary=c") + MODEL + END,
    ),
    "nested message": (
        FORM,
        part(b'form-data; name="file"', b"x: y\r\n\r\n", b"Content-Type: message/rfc822") + MODEL + END,
    ),
    "false length": (FORM, part(b'form-data; name="file"', b"xy", b"Content-Length: 1") + MODEL + END),
    "too many parts": (FORM, part(b'form-data; name="x"', b"") * MAX_PARTS + MODEL + END),
    "empty": (FORM, b""),
    "empty model": (FORM, part(b'form-data; name="model"', b"") + END),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_a_form_that_parsers_could_read_differently_is_refused(case: str) -> None:
    content_type, body = AMBIGUOUS[case]
    refusal = request_fields(request(body, content_type, model_header=b"m"))
    assert isinstance(refusal, Refusal)


def test_content_types_that_engines_could_parse_otherwise_are_refused() -> None:
    assert isinstance(request_fields(request(MODEL + END, FORM, b"application/json")), Refusal)
    assert isinstance(request_fields(request(MODEL + END, b"audio/wav", FORM, model_header=b"m")), Refusal)
    urlencoded = b'{"model": "a", "x": "&model=b&"}'
    assert isinstance(request_fields(request(urlencoded, b"application/x-www-form-urlencoded")), Refusal)
    packed = request(MODEL + END, FORM)
    packed.headers.append((b"content-encoding", b"deflate"))
    assert isinstance(request_fields(packed), Refusal)


def mutated(form: tuple[bytes, bytes], edits: list[tuple[int, bytes, bytes]]) -> tuple[bytes, bytes]:
    """Replace one occurrence of a token by another for each edit."""
    whole = b"\x01".join(form)
    for position, before, after in edits:
        places = [at for at in range(len(whole)) if whole.startswith(before, at)]
        if places:
            at = places[position % len(places)]
            whole = whole[:at] + after + whole[at + len(before) :]
    content_type, _, body = whole.partition(b"\x01")
    return content_type, body


TOKENS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"--",
    b"b-1",
    b"--b-1",
    b"\r\n--b-1\r\n",
    b"--b-1--",
    b'"',
    b"\\",
    b'\\"',
    b";",
    b"; ",
    b"=",
    b" ",
    b"\t",
    b"model",
    b"mo",
    b"name",
    b"name=",
    b"name*=",
    b"name*0=",
    b'name="model"',
    b"filename=",
    b"boundary=",
    b"utf-8''",
    b"%22",
    b"%6d",
    b"charset=utf-8",
    b"m",
    b"x",
    b"\xff",
    b"\x00",
    b"\x0b",
    b"\x85",
    b"'",
    b":",
    b",",
    b"(",
    b"Content-Disposition: form-data",
    b"Content-Type: text/plain",
    b"Content-Type: multipart/form-data; boundary=x",
    b"Content-Transfer-Encoding: 8bit",
    b"Content-Length: 1",
    b"\r\nX: y",
    b'\r\nContent-Disposition: form-data; name="x"',
]
EDITS = st.lists(
    st.tuples(
        st.integers(0, 40), st.sampled_from(TOKENS[:-1]), st.one_of(st.sampled_from(TOKENS), st.binary(max_size=3))
    ),
    max_size=4,
)


@settings(max_examples=examples(1500), deadline=None)
@given(st.sampled_from(sorted(COMMON.values())), EDITS)
@example(COMMON["curl"], [])
@example(COMMON["curl"], [(0, b"m\r\n", b"\xff\r\n")])
def test_an_accepted_form_has_the_same_model_for_every_parser(
    form: tuple[bytes, bytes], edits: list[tuple[int, bytes, bytes]]
) -> None:
    content_type, body = mutated(form, edits)
    if any(byte in content_type for byte in b"\r\n\x00"):
        return  # not a header
    model = accepted_model(content_type, body)
    if model is None:
        return
    for parser, models in readings(content_type, body).items():
        assert models == [model], parser


@given(st.sampled_from(sorted(COMMON.values())), EDITS, st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_a_form_means_the_same_however_it_is_split(
    form: tuple[bytes, bytes], edits: list[tuple[int, bytes, bytes]], sizes: list[int]
) -> None:
    content_type, body = mutated(form, edits)
    boundary = form_boundary(content_type)
    if boundary is None:
        return
    at_once, split = FormScanner(boundary), FormScanner(boundary)
    at_once.feed(body)
    at_once.finish()
    at, step = 0, 0
    while at < len(body):
        split.feed(body[at : at + sizes[step % len(sizes)]])
        at, step = at + sizes[step % len(sizes)], step + 1
    split.finish()
    assert bool(split.problem) == bool(at_once.problem)
    if not at_once.problem:
        assert split.model == at_once.model


@pytest.mark.parametrize(
    ("first", "rest", "model_header", "good"),
    [
        (MODEL + FILE[:-2], b"\r\n" + END, None, True),
        (MODEL + FILE[:-2], b"\r\n" + MODEL + END, None, False),
        (FILE[:-2], b"\r\n" + MODEL + END, b"m", True),
        (FILE[:-2], b"\r\n" + MODEL + END, b"other", False),
        (FILE[:-2], b"\r\n" + END, b"m", True),
        (FILE[:-2], b"\r\n" + MODEL, b"m", False),
        (MODEL + FILE[:-2], b"\n--b-1\n", None, False),
    ],
)
def test_the_part_that_arrives_after_routing_is_checked(
    first: bytes, rest: bytes, model_header: bytes | None, good: bool
) -> None:
    early = request(first, FORM, whole=False, model_header=model_header)
    fields = request_fields(early)
    assert not isinstance(fields, Refusal)
    check = early.body_check
    assert isinstance(check, FormCheck)
    problems = [check.feed(rest[at : at + 1]) for at in range(len(rest))]
    assert (not any(problems) and not check.finish()) is good


def test_large_forms_are_scanned_in_linear_time() -> None:
    parts = part(b'form-data; name="x"', b"") * (MAX_PARTS - 1)
    scanner = FormScanner(b"b-1")
    scanner.feed(parts + MODEL[:-2] + b"")
    scanner.feed(b"\r\n" + END)
    assert scanner.model == "m"
    hostile = FormScanner(b"b-1")
    hostile.feed(FILE[:-2] + b"\r\n--b-" * 3_000_000)
    hostile.finish()
    assert hostile.problem
