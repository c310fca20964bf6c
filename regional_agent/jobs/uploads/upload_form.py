"""Reads the multipart form of an upload as it arrives: small fields, and the content of the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

MAX_FIELD_BYTES: Final = 1024
"""Maximum size (bytes) of a field other than the file."""

MAX_PARTS: Final = 16

MAX_FILENAME: Final = 255
"""Characters of a file name that are kept."""

_BOUNDARY: Final = re.compile(rb'multipart/form-data\s*;.*?boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME: Final = re.compile(rb'[;\s]name="((?:[^"\\]|\\.)*)"')
_FILENAME: Final = re.compile(rb'[;\s]filename="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(rb'\\(["\\])')


class BadForm(Exception):
    """The body is not a form with the fields of an upload. The message names the problem."""


class UploadForm:
    """Parses one form."""

    def __init__(self, content_type: bytes, field: bytes, on_file: Callable[[bytes], None]) -> None:
        """Parse a form with a Content-Type; `on_file` receives the content of the file, which is in `field`.

        Raises:
            BadForm: the Content-Type is not that of a form.
        """
        found = _BOUNDARY.match(content_type)
        if found is None:
            raise BadForm("the Content-Type is not multipart/form-data with a boundary")
        # Imported late: only agents with a job store need the package.
        from python_multipart.multipart import MultipartParser

        self.fields: dict[str, str] = {}
        """The fields besides the file."""
        self.filename = ""
        self.has_file = False
        self._is_complete = False
        self._file_field = field
        self._on_file = on_file
        self._header = b""
        self._value = b""
        self._disposition = b""
        self._name = b""
        self._field = b""
        self._parts = 0
        callbacks: Any = {
            "on_part_begin": self._on_part_begin,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }
        self._parser = MultipartParser(found[1] or found[2], callbacks)

    def feed(self, data: bytes) -> None:
        """Parse a further part of the body. Raises BadForm."""
        from python_multipart.exceptions import FormParserError

        try:
            self._parser.write(data)
        except FormParserError as error:
            raise BadForm(f"the form is malformed: {error}") from None

    def finish(self) -> None:
        """Check that the form is complete. Raises BadForm."""
        if not self._is_complete:
            raise BadForm("the form has no closing delimiter")
        if not self.has_file:
            raise BadForm(f"the form has no field `{self._file_field.decode()}`")

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise BadForm(f"the form has more than {MAX_PARTS} parts")
        self._disposition = self._name = self._field = self._header = self._value = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        self._name = _unescaped(_NAME.search(self._disposition))
        if self._name == self._file_field:
            if self.has_file:
                raise BadForm(f"the form has several fields `{self._file_field.decode()}`")
            self.has_file = True
            filename = _unescaped(_FILENAME.search(self._disposition))
            self.filename = filename.decode("utf-8", "replace")[:MAX_FILENAME]

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == self._file_field:
            self._on_file(data[start:end])
            return
        self._field += data[start:end]
        if len(self._field) > MAX_FIELD_BYTES:
            raise BadForm(f"the field `{self._name.decode('latin-1')[:64]}` is longer than {MAX_FIELD_BYTES} bytes")

    def _on_part_end(self) -> None:
        if self._name != self._file_field:
            self.fields[self._name.decode("utf-8", "replace")] = self._field.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._is_complete = True


def _unescaped(quoted: re.Match[bytes] | None) -> bytes:
    """The value of a parameter, in which a backslash may stand before a quotation mark or a backslash; empty without
    the parameter."""
    return b"" if quoted is None else _ESCAPED.sub(rb"\1", quoted[1])
