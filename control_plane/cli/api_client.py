"""Client of the control plane's HTTP API, used by every command that connects to a fleet.

The client takes several base URLs, finds the leader through any of them, and turns problem details into messages that
state a remedy.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import msgspec

from control_plane.auth.admin_token import AdminToken, may_resend_credential
from control_plane.page import Page
from control_plane.status.status import Status

T = TypeVar("T")
P = TypeVar("P", bound=Page[Any])

TIMEOUT_S = 5.0
"""Time limit (s) of a request to one control plane."""

REPEATABLE = frozenset({"PUT", "DELETE"})
"""Methods of which a repeated request changes nothing (RFC 9110, 9.2.2)."""


class ApiError(Exception):
    """A request could not be completed."""

    is_usage_error = False
    """Whether the command line has to be corrected."""


class Unreachable(ApiError):
    """No control plane answered; the message states the failure at each URL."""


class ResponseLost(Unreachable):
    """A control plane received a request and did not answer; whether it made the change is unknown."""


class NoLeader(ApiError):
    """The request needs a leader, and no control plane leads."""


class EmptyName(ApiError):
    """A name or identifier on the command line is empty, so that the path would be another one."""

    is_usage_error = True

    def __init__(self) -> None:
        super().__init__("a name or identifier on the command line is empty; is a variable of the shell not set?")


class ApiRefused(ApiError):
    """A control plane answered with problem details (RFC 9457)."""

    def __init__(self, url: str, status: int, detail: str, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{url}: {detail}" if status >= 500 else detail)
        self.status = status
        """HTTP status code."""
        self.problem = problem
        """Members of the problem document, extension members included; empty if the body was no problem document."""
        self.is_usage_error = status in (400, 404, 405, 406, 415, 422)


class TokenRejected(ApiRefused):
    """A control plane rejected the token (401)."""

    def __init__(self, url: str, problem: Mapping[str, Any]) -> None:
        super().__init__(
            url, 401, f"{url}: the token was rejected; use a token that is valid for this control plane", problem
        )
        self.is_usage_error = True


class ApiResponse(msgspec.Struct, frozen=True):
    """A successful response."""

    url: str
    """Base URL of the control plane that answered."""
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as plain values.

        Raises:
            ApiError: the body is not JSON.
        """
        return self.decoded(Any)

    def decoded(self, type: type[T]) -> T:
        """Return the body as `type`.

        Raises:
            ApiError: the body does not match `type`: the control plane runs another version.
        """
        try:
            return msgspec.json.decode(self.body, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(f"{self.url}: the response does not match this version: {error}") from None


class ApiClient:
    """A client for the control planes of one fleet; use it as a context manager."""

    def __init__(
        self,
        urls: Sequence[str],
        token: AdminToken,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
        is_dry_run: bool = False,
    ) -> None:
        """Prepare a client without sending anything.

        Args:
            urls: base URLs of control planes, tried in order.
            token: sent with every request.
            tls: for HTTPS; None trusts the authorities that the system trusts.
            timeout_s: time limit (s) of a request to one control plane.
            is_dry_run: whether control planes only check changes, and make none.
        """
        self.is_dry_run = is_dry_run
        self._urls = [url.rstrip("/") for url in urls]
        headers = {"authorization": token.header()}
        self._http = httpx.Client(timeout=timeout_s, headers=headers, verify=True if tls is None else tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def status(self) -> Status:
        """Return the leader's status, or that of the first control plane that answers.

        Raises:
            Unreachable: no control plane answered.
            TokenRejected: a control plane rejected the token.
        """
        return self._find()[1]

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        changes: bool = False,
    ) -> ApiResponse:
        """Send a request to the leader or, if none leads, to the first control plane that answers.

        A PUT or DELETE whose response is lost is sent once more: a repeated one changes nothing.

        Args:
            method: HTTP method.
            path: from the root, such as `/v1/status`.
            params: query parameters; None values are left out.
            body: sent as JSON; bytes are sent as they are.
            headers: additional headers.
            changes: whether the request changes state, which needs a leader.

        Raises:
            Unreachable: no control plane answered.
            NoLeader: the request needs a leader, and none leads.
            ApiRefused: the response is a problem.
            EmptyName: a segment of the path is empty.
        """
        if "" in path.split("/")[1:]:
            raise EmptyName
        try:
            return self._request_once(method, path, params, body, headers, changes)
        except ResponseLost:
            if method not in REPEATABLE:
                raise
        return self._request_once(method, path, params, body, headers, changes)

    def pages(self, path: str, page_type: type[P], params: Mapping[str, Any] | None = None) -> list[P]:
        """Return all pages of a list, decoded as `page_type`.

        Raises:
            Unreachable: no control plane answered.
            ApiRefused: the response is a problem.
        """
        pages: list[P] = []
        while not pages or pages[-1].next_cursor is not None:
            cursor = pages[-1].next_cursor if pages else None
            answer = self.request("GET", path, params={**(params or {}), "cursor": cursor})
            pages.append(answer.decoded(page_type))
        return pages

    def listed(self, path: str, page_type: type[Page[T]], params: Mapping[str, Any] | None = None) -> list[T]:
        """Return the entries of all pages of a list; raises as `pages`."""
        return [entry for page in self.pages(path, page_type, params) for entry in page.items]

    def _request_once(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: Any,
        headers: Mapping[str, str] | None,
        changes: bool,
    ) -> ApiResponse:
        url, status = self._find()
        if changes and self.is_dry_run and method != "GET":
            params = {**(params or {}), "dry_run": "true"}
        if changes and status.leader is None:
            raise NoLeader("no control plane leads, so changes are not possible; try again")
        return self._send(url, method, path, params, body, headers)

    def lines(self, path: str) -> Iterator[str]:
        """Stream a long response line by line.

        Raises:
            Unreachable: no control plane answered, or the response was cut off.
            ApiRefused: the response is a problem.
        """
        url, _ = self._find()
        try:
            with self._http.stream("GET", f"{url}{path}") as response:
                if response.status_code >= 300:
                    response.read()
                    raise _refusal(url, response)
                yield from _split_lines(response.iter_bytes())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(f"{url}: {_describe_failure(error)}") from None

    def _find(self) -> tuple[str, Status]:
        """Return the URL and status of the leader, or of the first control plane that answers."""
        failures = []
        for url in self._urls:
            try:
                status = self._status_of(url)
            except TokenRejected:
                raise
            except ApiError as failure:
                message = str(failure)
                failures.append(message if message.startswith(url) else f"{url}: {message}")
                continue
            leader = status.leader
            if status.leading or leader is None or leader.url == url or not may_resend_credential(url, leader.url):
                return url, status
            try:
                return leader.url, self._status_of(leader.url)
            except ApiError:
                return url, status
        raise Unreachable(f"no control plane answers: {'; '.join(failures)}")

    def _status_of(self, url: str) -> Status:
        response = self._send(url, "GET", "/v1/status", None, None, None)
        status: Status = response.decoded(Status)
        return status

    def _send(
        self,
        url: str,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: Any,
        headers: Mapping[str, str] | None,
    ) -> ApiResponse:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        content = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        sent = dict(headers or {}) | ({"content-type": "application/json"} if content is not None else {})
        try:
            response = self._http.request(method, f"{url}{path}", params=given, content=content, headers=sent)
        except (httpx.ReadError, httpx.ReadTimeout, httpx.RemoteProtocolError) as error:
            raise ResponseLost(f"{url}: {_describe_failure(error)}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(f"{url}: {_describe_failure(error)}") from None
        if response.status_code >= 300:
            raise _refusal(url, response)
        return ApiResponse(url, response.status_code, dict(response.headers), response.content)


def _describe_failure(error: Exception) -> str:
    """Return the message of a connection error, with a remedy for common TLS errors."""
    message = str(error) or type(error).__name__
    for fragment, remedy in _TLS_REMEDIES.items():
        if fragment in message:
            return f"{message}; {remedy}"
    return message


_TLS_REMEDIES = {
    "is not valid for": "use a host name that the certificate contains",
    "CERTIFICATE_VERIFY_FAILED": "name the authorities that signed the certificate with --ca-file",
    "WRONG_VERSION_NUMBER": "the server does not use TLS: use http://",
    "disconnected without sending a response": "if the server uses TLS: use https://",
}


def _refusal(url: str, response: httpx.Response) -> ApiRefused:
    try:
        problem = msgspec.json.decode(response.content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problem = {}
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return TokenRejected(url, problem)
    return ApiRefused(url, response.status_code, _format_problem(response.status_code, problem), problem)


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split at line feeds only: JSON may contain other characters that `str.splitlines` splits at."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
    if rest:
        yield rest.decode("utf-8", "replace")


def _format_problem(status: int, problem: Mapping[str, Any]) -> str:
    """Return the detail of a problem, and each of its field errors that the detail does not contain."""
    detail = str(problem.get("detail") or problem.get("title") or f"HTTP status {status}")
    errors = problem.get("errors")
    messages = [error.get("problem") for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    return "\n".join([detail, *(str(message) for message in messages if str(message) not in detail)])
