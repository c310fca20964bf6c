"""Reads the `model` field of a multipart form (RFC 7578), and refuses forms that parsers read differently.

An engine parses the form again, with a parser of its own. A form is refused unless it has the shape that common clients
send and every parser reads alike: one Content-Type with one boundary; the boundary string nowhere but in delimiter
lines that end with CRLF; part headers without continuation lines, repetitions or escapes; and a closing delimiter.
"""

from __future__ import annotations

import re
from typing import Final

MAX_MODEL_BYTES: Final = 1024

MAX_PART_HEAD_BYTES: Final = 16 * 1024
"""Maximum size (bytes) of the headers of one part."""

MAX_PARTS: Final = 256

_FORM_TYPE: Final = re.compile(
    rb"multipart/form-data"
    rb"(?:[ \t]*;[ \t]*charset=(?:utf-8|\"utf-8\"))?"
    rb"[ \t]*;[ \t]*boundary=(?:([0-9A-Za-z'+_.-]{1,70})|\"([0-9A-Za-z'()+_,./:=?-]{1,70})\")"
    rb"(?:[ \t]*;[ \t]*charset=(?:utf-8|\"utf-8\"))?",
    re.IGNORECASE,
)
"""The accepted values of Content-Type. Engines decode the fields by the parameter `charset`."""

_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff]*)")
_DISPOSITION: Final = re.compile(
    rb"form-data[ ]?;[ ]?name=(?:\"([0-9A-Za-z_.\[\]-]{1,128})\"|([0-9A-Za-z_.-]{1,128}))"
    rb"([ ]?;[ ]?filename=(?:\"[^\"\\]*\"|[0-9A-Za-z_.-]+))?"
    rb"([ ]?;[ ]?filename\*=utf-8''[0-9A-Za-z_.%!$&+^`|~-]+)?",
    re.IGNORECASE,
)
"""The accepted values of Content-Disposition. Parsers differ in the meaning of a backslash in quotes."""

_TEXT_TYPE: Final = re.compile(rb"text/plain(?:[ ]?;[ ]?charset=(?:utf-8|\"utf-8\"))?", re.IGNORECASE)
_NESTED_TYPES: Final = (b"multipart/", b"message/")
_IDENTITY_ENCODINGS: Final = frozenset({b"7bit", b"8bit", b"binary"})
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_BLOCK_BYTES: Final = 64 * 1024
"""Size (bytes) of the blocks in which data is scanned: each part of a form copies the remainder of its block."""

_START, _HEAD, _BODY, _EPILOGUE = range(4)


def form_boundary(content_type: bytes) -> bytes | None:
    """The boundary that a Content-Type declares; None if parsers could read another one, or the type is not a form."""
    found = _FORM_TYPE.fullmatch(content_type)
    return None if found is None else found[1] or found[2]


class FormScanner:
    """Scans one form in parts of any size. Keeps no more than the headers of a part, or the model name."""

    def __init__(self, boundary: bytes, field: bytes = b"model") -> None:
        """Scan a form with this boundary, whose `field` names the model."""
        self.model: str | None = None
        """The value of the field that names the model, once the field is complete."""
        self.model_span: tuple[int, int] | None = None
        """Start and end of that value in the body; None where its part declares a length."""
        self.problem = ""
        """Why the form is refused; empty while the form is valid."""
        self._boundary = b"--" + boundary
        self._field = field
        self._state = _START
        self._rest = b""
        """Received bytes that have not been interpreted yet."""
        self._consumed_bytes = 0
        """Bytes before `_rest`."""
        self._parts = 0
        self._part_bytes = 0
        """Interpreted bytes of the current part's body."""
        self._declared_bytes: int | None = None
        """Content-Length of the current part."""
        self._value: bytearray | None = None
        """The interpreted bytes of the field that names the model; None in other parts."""

    def feed(self, data: bytes | bytearray) -> None:
        """Scan a further part of the form."""
        for start in range(0, len(data), _BLOCK_BYTES):
            self._rest += data[start : start + _BLOCK_BYTES]
            while not self.problem and self._step():
                pass
            if self.problem:
                self._rest = b""
                return

    def finish(self) -> None:
        """Process the end of the form, which must follow its closing delimiter."""
        if not self.problem and self._state != _EPILOGUE:
            self.problem = "the form has no closing delimiter"

    def _step(self) -> bool:
        """Interpret the next element; returns whether there is another one."""
        if self._state == _START:
            return self._start()
        if self._state == _HEAD:
            return self._head()
        if self._state == _BODY:
            return self._body()
        if self._rest and not b"\r\n".startswith(self._rest):
            self.problem = "the form continues after its closing delimiter"
        return False

    def _start(self) -> bool:
        line = self._boundary + b"\r\n"
        if len(self._rest) < len(line) and line.startswith(self._rest):
            return False
        if not self._rest.startswith(line):
            self.problem = "the form does not begin with its boundary"
            return False
        self._rest, self._state = self._rest[len(line) :], _HEAD
        self._consumed_bytes += len(line)
        return True

    def _head(self) -> bool:
        end = self._rest.find(b"\r\n\r\n", 0, MAX_PART_HEAD_BYTES)
        if end < 0:
            if len(self._rest) >= MAX_PART_HEAD_BYTES:
                self.problem = f"a part of the form has more than {MAX_PART_HEAD_BYTES} bytes of headers"
            return False
        self._parts += 1
        if self._parts > MAX_PARTS:
            self.problem = f"the form has more than {MAX_PARTS} parts"
            return False
        head, self._rest = self._rest[:end], self._rest[end + 4 :]
        self._consumed_bytes += end + 4
        self._part_bytes, self._state = 0, _BODY
        self.problem = self._read_head(head)
        return not self.problem

    def _read_head(self, head: bytes) -> str:
        """Read the headers of a part; returns the problem, or an empty string."""
        if self._boundary in head:
            return "the boundary occurs in the headers of a part"
        try:
            if _CONTROLS.search(head.decode().replace("\r\n", "")):
                return "the headers of a part contain control characters"
        except UnicodeDecodeError:
            return "the headers of a part are not UTF-8"
        headers: dict[bytes, bytes] = {}
        for line in head.split(b"\r\n"):
            found = _HEADER.fullmatch(line)
            if found is None or found[1].lower() in headers:
                return "a part has a header that is malformed, folded or repeated"
            headers[found[1].lower()] = found[2].rstrip(b" ")
        disposition = _DISPOSITION.fullmatch(headers.get(b"content-disposition", b""))
        if disposition is None:
            return 'a part is not declared as `Content-Disposition: form-data; name="..."; filename="..."`'
        kind = headers.get(b"content-type", b"text/plain")
        if kind.lower().startswith(_NESTED_TYPES):
            return "a part is itself made of parts"
        if headers.get(b"content-transfer-encoding", b"binary").lower() not in _IDENTITY_ENCODINGS:
            return "a part has a Content-Transfer-Encoding"
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 12):
            return "a part has an invalid Content-Length"
        self._declared_bytes = None if length is None else int(length)
        return self._read_name(disposition[1] or disposition[2], disposition[3] or disposition[4], kind)

    def _read_name(self, name: bytes, filename: bytes | None, kind: bytes) -> str:
        """Recognise the field that names the model; returns the problem, or an empty string."""
        self._value = None
        if name == b"_charset_":
            return "the form declares a charset; encode it as UTF-8"
        if name.lower().partition(b"[")[0] != self._field.lower():
            return ""
        if name != self._field or filename is not None or not _TEXT_TYPE.fullmatch(kind):
            return f"the field `{self._field.decode()}` is not plain text in UTF-8"
        if self.model is not None:
            return "the form contains no model name, or more than one"
        self._value = bytearray()
        return ""

    def _body(self) -> bool:
        rest, boundary = self._rest, self._boundary
        at = rest.find(boundary)
        if at < 0:
            # The last bytes may be the start of a CRLF and a delimiter, so they are not interpreted yet.
            self._take(max(0, len(rest) - len(boundary) - 1))
            return False
        end = at + len(boundary)
        follows = rest[end : end + 2]
        if at < 2 or rest[at - 2 : at] != b"\r\n" or (len(follows) == 2 and follows not in (b"\r\n", b"--")):
            self.problem = "the boundary occurs outside a delimiter line"
            return False
        if len(follows) < 2:
            self._take(at - 2)
            return False
        self._take(at - 2)
        if self._declared_bytes not in (None, self._part_bytes):
            self.problem = "the Content-Length of a part is not its length"
        elif self._value is not None and not self.problem:
            self._read_value(self._value)
        self._consumed_bytes += end + 2 - (at - 2)
        self._rest, self._state = rest[end + 2 :], _HEAD if follows == b"\r\n" else _EPILOGUE
        return not self.problem

    def _take(self, length: int) -> None:
        """Interpret the first `length` bytes of `_rest` as the body of the current part."""
        if self._value is not None:
            self._value += self._rest[:length]
            if len(self._value) > MAX_MODEL_BYTES:
                self.problem = "the model name in the form is too long"
        self._part_bytes += length
        self._consumed_bytes += length
        self._rest = self._rest[length:]

    def _read_value(self, value: bytearray) -> None:
        try:
            model = value.decode()
        except UnicodeDecodeError:
            self.problem = "the model name in the form is not UTF-8"
            return
        if not model or model != model.strip() or _CONTROLS.search(model):
            self.problem = "the model name in the form is empty, or has blanks around it or control characters in it"
        self.model = model
        if self._declared_bytes is None:
            self.model_span = self._consumed_bytes - len(value), self._consumed_bytes
