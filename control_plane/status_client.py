"""Asking control planes for their status: the first that answers, then the one that it says leads."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import msgspec

from control_plane.admin_token import AdminToken
from control_plane.status import Status

TIMEOUT_S = 3.0


class NoStatus(Exception):
    """Nobody answered with a status; the message says what each did instead."""


class TokenRefused(NoStatus):
    """A control plane does not know the token."""


def fetch_status(urls: Sequence[str], token: AdminToken) -> Status:
    """The leader's status where it can be had, else that of the first control plane that answers.

    Args:
        urls: base URLs of control planes, tried in turn.
        token: the operators' token.

    Raises:
        NoStatus: none answered.
        TokenRefused: one refused the token.
    """
    failures = []
    with httpx.Client(timeout=TIMEOUT_S, headers={"authorization": token.header()}) as client:
        for url in urls:
            try:
                status = _ask(client, url)
            except NoStatus as failure:
                if isinstance(failure, TokenRefused):
                    raise
                failures.append(str(failure))
                continue
            if status.leading or status.leader is None or status.leader.url == url:
                return status
            try:
                return _ask(client, status.leader.url)
            except NoStatus:
                return status
    raise NoStatus("; ".join(failures))


def _ask(client: httpx.Client, url: str) -> Status:
    try:
        response = client.get(f"{url.rstrip('/')}/v1/status")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NoStatus(f"{url}: {error or type(error).__name__}") from None
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise TokenRefused(f"{url}: the token is refused; use the file that this control plane was given")
    if response.status_code != httpx.codes.OK:
        raise NoStatus(f"{url}: answered {response.status_code}")
    try:
        return msgspec.json.decode(response.content, type=Status)
    except msgspec.DecodeError as error:
        raise NoStatus(f"{url}: no status of this version: {error}") from None
