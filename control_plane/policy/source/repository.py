"""A bundle in a git repository: each look is a process that reads the newest commit and ends, or is ended.

To start such a process takes longer than to read, so the next one may be started ahead: it waits for its question.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

import msgspec

from control_plane.policy.bundle_limits import MAX_BUNDLE_BYTES
from control_plane.policy.source.checkout import Answer, Request
from control_plane.policy.source.readers import Bundle, Unreadable
from control_plane.policy.source.repository_url import shown, without_secrets

TIMEOUT_S = 20.0
"""A repository that was not read after this long (s) is given up until the next look."""

MAX_ANSWER_BYTES = 4 * MAX_BUNDLE_BYTES
"""JSON writes some characters of a bundle as several."""

_MODULE = "control_plane.policy.source.checkout"
_decoder = msgspec.json.Decoder(Answer)


class RepositoryReader:
    """Reads one folder of one branch or tag.

    Args:
        url: of the repository, or an absolute path; may hold a password.
        ref: branch or tag.
        folder: of the bundle inside the repository; empty for its root.
        poll_s: time between two looks, in seconds.
        timeout_s: how long one look may take, in seconds.
        ahead: whether a process waits for the next look; then `close` in the end.
    """

    atomic = True

    def __init__(
        self, url: str, ref: str, folder: str, *, poll_s: float, timeout_s: float = TIMEOUT_S, ahead: bool = False
    ) -> None:
        self._url = url
        self._ref = ref
        self._folder = folder
        self._timeout_s = timeout_s
        self._ahead = ahead
        self._waiting: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._tip = ""
        self._bundle = Bundle({})
        self.poll_s = poll_s
        self.place = f"{shown(url)} {ref}" + (f":{folder}" if folder else "")

    async def read(self) -> Bundle:
        """The bundle in the commit that the ref points at now.

        Raises:
            Unreadable: the repository is out of reach, has no such ref, is too large, or is too slow.
        """
        answer = await self._ask(Request(self._url, self._ref, self._folder, self._tip))
        if self._ahead:
            self._waiting = asyncio.create_task(_begin(), name="next look")
        if answer.problem:
            raise Unreadable(f"{self.place}: {answer.problem}")
        if answer.tip != self._tip:
            self._tip, self._bundle = answer.tip, Bundle(answer.files, answer.errors, answer.provenance)
        return self._bundle

    async def close(self) -> None:
        """End the process that waits for the next look."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with suppress(OSError):
                await _end(await waiting)

    async def _ask(self, request: Request) -> Answer:
        question, said, complained = msgspec.json.encode(request), b"", b""
        waiting = await self._waited()
        if waiting is not None:
            said, complained = await self._talk(waiting, question)
        if not said and not complained:
            # None was waiting, or it had died unnoticed: one that works says at least something.
            said, complained = await self._talk(await _begin(), question)
        try:
            return _decoder.decode(said)
        except msgspec.DecodeError:
            lines = without_secrets(complained.decode("utf-8", "replace"), self._url).split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
            raise Unreadable(f"{self.place}: the reading process ended unexpectedly: {last[:200]}") from None

    async def _waited(self) -> asyncio.subprocess.Process | None:
        """The process that waits, unless there is none or it is known to have died."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with suppress(OSError):
                process = await waiting
                if process.returncode is None:
                    return process
        return None

    async def _talk(self, process: asyncio.subprocess.Process, question: bytes) -> tuple[bytes, bytes]:
        """What a process answers, and what it complains of; it has ended then."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await _talk(process, question)
        except TimeoutError:
            raise Unreadable(f"{self.place}: not read within {self._timeout_s:g} s") from None
        finally:
            await _end(process)


async def _begin() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        # Nothing in the working directory may stand in for our own modules.
        *("-P", "-m", _MODULE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
    )


async def _talk(process: asyncio.subprocess.Process, request: bytes) -> tuple[bytes, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with suppress(ConnectionError):
        process.stdin.write(request)
        await process.stdin.drain()
    process.stdin.close()
    said, complained = await asyncio.gather(_up_to(process.stdout, MAX_ANSWER_BYTES), _up_to(process.stderr, 100_000))
    await process.wait()
    return said, complained


async def _up_to(stream: asyncio.StreamReader, max_bytes: int) -> bytes:
    """Everything up to the end; what is beyond `max_bytes` is dropped, so that whoever writes it may end."""
    kept = bytearray()
    while chunk := await stream.read(65_536):
        kept += chunk[: max_bytes - len(kept)]
    return bytes(kept)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End it, with whatever it began: git over SSH is another process."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _environment() -> dict[str, str]:
    """Ours without our own settings; SSH must never ask anybody anything."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=5")
    return environment
