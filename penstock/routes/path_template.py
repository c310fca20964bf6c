"""Path templates of routes: parsing, matching, and the overlap of two templates.

A template is a path whose segments are literals or parameters, such as `/v2/models/{model}/infer`. A literal matches
the same bytes only; it is never percent-decoded. A parameter matches one non-empty segment, which is percent-decoded
once (RFC 3986, section 2.1).

Engines and proxies differ in how they normalise a path. A parameter therefore does not match a segment that two servers
could read differently: `.` and `..`, also as a part of the decoded value; a percent-encoded character that needs no
encoding, such as `%2e`, or that would decode again, `%25`; `;` and a backslash; control characters; and bytes that are
not UTF-8. An encoded slash, `%2F`, is accepted only in parameters that may contain one (names of models do:
`org/model`).
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Final

MAX_SEGMENTS: Final = 32
"""Maximum number of segments of a template."""

MAX_VALUE_BYTES: Final = 512
"""Maximum length (bytes) of a parameter's value; a percent-encoded character counts as one byte."""

NO_PARAMETERS: Final[Mapping[str, str]] = MappingProxyType({})

_LITERAL: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,=:@-]+")
_PARAMETER: Final = re.compile(r"\{([a-z][a-z0-9_]{0,31})\}")
_SEGMENT: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,=:@-]|%[0-9A-Fa-f]{2})" + b"{1,%d}" % MAX_VALUE_BYTES)
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_FORBIDDEN: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%;\\\x7f" + bytes(range(0x20))
)
"""Characters that must not be percent-encoded in a parameter."""
_DOTS: Final = frozenset({"", ".", ".."})


class TemplateError(ValueError):
    """A template is malformed. The message states the problem."""


class PathTemplate:
    """A parsed path template."""

    def __init__(self, text: str) -> None:
        """Parse a template.

        Raises:
            TemplateError: the template is malformed.
        """
        if not text.startswith("/"):
            raise TemplateError("does not begin with a slash")
        names: list[str] = []
        segments: list[bytes | str] = []
        for segment in text[1:].split("/") if text != "/" else ():
            parameter = _PARAMETER.fullmatch(segment)
            if parameter is not None:
                names.append(parameter[1])
                segments.append(parameter[1])
            elif segment in _DOTS:
                raise TemplateError(f"has the segment {segment!r}")
            elif _LITERAL.fullmatch(segment) is None:
                problem = "a parameter is a whole segment" if "{" in segment or "}" in segment else "use plain letters"
                raise TemplateError(f"has the segment {segment!r}; {problem}")
            else:
                segments.append(segment.encode())
        if len(segments) > MAX_SEGMENTS:
            raise TemplateError(f"has more than {MAX_SEGMENTS} segments")
        for name in names:
            if names.count(name) > 1:
                raise TemplateError(f"has the parameter {{{name}}} twice")
        self.text = text
        self.parameters = tuple(names)
        """Names of the parameters, in order."""
        self.shape = tuple(isinstance(segment, str) for segment in segments)
        """Whether each segment is a parameter. Templates are matched in ascending order, so that literals precede."""
        self._segments = tuple(segments)
        self._pattern = re.compile(
            b"/" + b"/".join(re.escape(segment) if isinstance(segment, bytes) else b"([^/]+)" for segment in segments)
        )
        """Matches the literals, so that parameters are decoded only if all literals are equal."""

    @property
    def is_exact(self) -> bool:
        """Whether the template has no parameter, so that it matches one path only."""
        return not self.parameters

    def match(self, path: bytes, with_slash: Container[str] = ()) -> Mapping[str, str] | None:
        """Values of the parameters if the template matches `path`; None if it does not.

        Args:
            path: as received, without the query.
            with_slash: names of the parameters that may contain an encoded slash.
        """
        found = self._pattern.fullmatch(path)
        if found is None:
            return None
        values: dict[str, str] = {}
        for name, given in zip(self.parameters, found.groups(), strict=True):
            value = decode_parameter(given, may_have_slash=name in with_slash)
            if value is None:
                return None
            values[name] = value
        return values

    def overlaps(self, other: PathTemplate) -> bool:
        """Whether some path is matched by both templates."""
        if len(self._segments) != len(other._segments):
            return False
        return all(
            ours == theirs
            if isinstance(ours, bytes) and isinstance(theirs, bytes)
            else isinstance(ours, str) or isinstance(theirs, str)
            for ours, theirs in zip(self._segments, other._segments, strict=True)
        )

    def replace(self, path: bytes, name: str, value: str) -> bytes:
        """The path with another value of the parameter `name`; the other segments stay as received."""
        segments = path.split(b"/")
        segments[1 + self._segments.index(name)] = encode_parameter(value)
        return b"/".join(segments)


def decode_parameter(segment: bytes, *, may_have_slash: bool = False) -> str | None:
    """The value of a path segment; None if servers could read the segment differently (see the module docstring)."""
    if _SEGMENT.fullmatch(segment) is None:
        return None
    if b"%" not in segment:
        value = segment.decode()
        return value if value not in _DOTS else None
    for escape in _ESCAPE.finditer(segment):
        if int(escape[1], 16) in _FORBIDDEN:
            return None
    try:
        value = _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()), segment).decode()
    except UnicodeDecodeError:
        return None
    if "/" not in value:
        return value
    return value if may_have_slash and _DOTS.isdisjoint(value.split("/")) else None


def encode_parameter(value: str) -> bytes:
    """A value as a path segment; the inverse of `decode_parameter`."""
    return b"".join(
        byte.to_bytes() if byte in _PLAIN else b"%%%02X" % byte  # RFC 3986, section 2.1: upper-case digits
        for byte in value.encode()
    )


_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:@")
