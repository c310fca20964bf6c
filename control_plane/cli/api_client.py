"""The one client of the control plane's API: several URLs, the leader through any of them, errors people can act on."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from control_plane.auth.admin_token import AdminToken
from control_plane.status.status import Status

TIMEOUT_S = 5.0
"""How long (s) one control plane may take to answer."""


class ApiError(Exception):
    """What was asked for is not to be had."""

    at_fault = False
    """Whether the command that asked has to be corrected."""


class NobodyAnswers(ApiError):
    """No control plane could be asked; the message says what each did instead."""


class NoLeader(ApiError):
    """Control planes answer, but none of them leads."""


class ApiRefused(ApiError):
    """A control plane answered with a problem (RFC 9457)."""

    def __init__(self, url: str, status: int, detail: str, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{url}: {detail}" if status >= 500 else detail)
        self.status = status
        """HTTP status."""
        self.problem = problem
        """Its members, with whatever is said besides; empty where the body was none."""
        self.at_fault = status in (400, 404, 405, 406, 415, 422)


class TokenRefused(ApiRefused):
    """A control plane does not know the token."""

    def __init__(self, url: str, problem: Mapping[str, Any]) -> None:
        super().__init__(url, 401, f"{url}: the token is refused; use one that this control plane was given", problem)
        self.at_fault = True


class Answer(msgspec.Struct, frozen=True):
    """What a control plane answered, when it was no problem."""

    url: str
    """Base URL of who answered."""
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as plain values.

        Raises:
            ApiError: it is no JSON.
        """
        return self.decoded(Any)

    def decoded(self, type: Any) -> Any:
        """The body as `type`.

        Raises:
            ApiError: it is none, so the control plane is of another version.
        """
        try:
            return msgspec.json.decode(self.body, type=type)
        except msgspec.DecodeError as error:
            raise ApiError(f"{self.url}: no answer of this version: {error}") from None


class ApiClient:
    """Asks control planes; use it as a context manager."""

    def __init__(
        self, urls: Sequence[str], token: AdminToken, *, ca_file: Path | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Nothing is asked yet.

        Args:
            urls: base URLs of control planes, tried in turn.
            token: sent to each.
            ca_file: PEM certificates of the authorities that sign theirs; None takes the system's.
            timeout_s: how long (s) one may take to answer.
        """
        self._urls = [url.rstrip("/") for url in urls]
        verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=str(ca_file)) if ca_file else True
        self._http = httpx.Client(timeout=timeout_s, headers={"authorization": token.header()}, verify=verify)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def status(self) -> Status:
        """The leader's status where it can be had, else that of the first control plane that answers.

        Raises:
            NobodyAnswers: none does.
            TokenRefused: one refused the token.
        """
        return self._find()[1]

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        changes: bool = False,
    ) -> Answer:
        """Ask the leader, or while none leads whoever answers.

        Args:
            path: from the root, such as `/v1/status`.
            params: of the query; those that are None are left out.
            body: sent as JSON; bytes are sent as they are.
            changes: whether it changes something, which takes a leader, whoever is asked.

        Raises:
            NobodyAnswers: nobody could be asked.
            NoLeader: it takes a leader, and there is none.
            ApiRefused: the answer was a problem.
        """
        url, status = self._find()
        if changes and status.leader is None:
            raise NoLeader("no control plane leads, so nothing can be changed; try again")
        return self._send(url, method, path, params, body, headers)

    def lines(self, path: str) -> Iterator[str]:
        """Read something long of the leader, or of whoever answers, line by line.

        Raises:
            NobodyAnswers: nobody could be asked, or the answer broke off.
            ApiRefused: the answer was a problem.
        """
        url, _ = self._find()
        try:
            with self._http.stream("GET", f"{url}{path}") as response:
                if response.status_code >= 300:
                    response.read()
                    raise _refusal(url, response)
                yield from _lines(response.iter_bytes())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NobodyAnswers(f"{url}: {_why(error)}") from None

    def _find(self) -> tuple[str, Status]:
        """The leader, or the first that answers: where it was reached, and its status."""
        failures = []
        for url in self._urls:
            try:
                status = self._status_of(url)
            except TokenRefused:
                raise
            except ApiError as failure:
                told = str(failure)
                failures.append(told if told.startswith(url) else f"{url}: {told}")
                continue
            leader = status.leader
            if status.leading or leader is None or leader.url == url or not may_follow(url, leader.url):
                return url, status
            try:
                return leader.url, self._status_of(leader.url)
            except ApiError:
                return url, status
        raise NobodyAnswers(f"no control plane answers: {'; '.join(failures)}")

    def _status_of(self, url: str) -> Status:
        answer = self._send(url, "GET", "/v1/status", None, None, None)
        try:
            return msgspec.json.decode(answer.body, type=Status)
        except msgspec.DecodeError as error:
            raise ApiError(f"{url}: no status of this version: {error}") from None

    def _send(
        self,
        url: str,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: Any,
        headers: Mapping[str, str] | None,
    ) -> Answer:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        content = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        sent = dict(headers or {}) | ({"content-type": "application/json"} if content is not None else {})
        try:
            response = self._http.request(method, f"{url}{path}", params=given, content=content, headers=sent)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NobodyAnswers(f"{url}: {_why(error)}") from None
        if response.status_code >= 300:
            raise _refusal(url, response)
        return Answer(url, response.status_code, dict(response.headers), response.content)


def may_follow(from_url: str, to_url: str) -> bool:
    """Whether a token that was sent to one URL may go to another that it named: never from TLS to none."""
    return to_url.startswith("https://") or not from_url.startswith("https://")


def _why(error: Exception) -> str:
    """Why there is no answer, and the remedy where TLS is the matter, of which OpenSSL says little."""
    told = str(error) or type(error).__name__
    for sign, remedy in _TLS_REMEDIES.items():
        if sign in told:
            return f"{told}; {remedy}"
    return told


_TLS_REMEDIES = {
    "is not valid for": "ask it by a name that is in its certificate",
    "CERTIFICATE_VERIFY_FAILED": "name the authorities that signed its certificate with --ca-file",
    "WRONG_VERSION_NUMBER": "it speaks no TLS: ask it with http://",
}


def _refusal(url: str, response: httpx.Response) -> ApiRefused:
    try:
        problem = msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.DecodeError:
        problem = {}
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return TokenRefused(url, problem)
    return ApiRefused(url, response.status_code, _told(response.status_code, problem), problem)


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Text by lines that end with a line feed alone; JSON may hold other characters that can be taken for an end."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
    if rest:
        yield rest.decode("utf-8", "replace")


def _told(status: int, problem: Mapping[str, Any]) -> str:
    """What a problem says, with each field that is wrong where it lists them."""
    detail = str(problem.get("detail") or problem.get("title") or f"answered {status}")
    errors = problem.get("errors")
    told = [one.get("problem") for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []
    return "\n".join([detail, *(str(one) for one in told if str(one) not in detail)])
