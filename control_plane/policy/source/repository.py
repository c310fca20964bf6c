"""Reader of a bundle in a git repository. Each read runs in a separate process, which exits or is killed.

The start of a process takes longer than the read, so the process of the next read may be started ahead; the process
then waits for its request.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

import msgspec

from adapters.garbage_collection import main_command
from control_plane.policy.bundle_limits import MAX_BUNDLE_BYTES
from control_plane.policy.source.checkout import CheckoutRequest, CheckoutResult
from control_plane.policy.source.readers import Bundle, SourceUnreadable
from control_plane.policy.source.repository_url import without_credentials, without_secrets

TIMEOUT_S = 20.0
"""Time (s) after which a read is aborted; the next poll retries."""

MAX_RESULT_BYTES = 4 * MAX_BUNDLE_BYTES
"""Maximum size (bytes) of a result: more than a bundle, because JSON escapes some characters."""

_MODULE = "control_plane.policy.source.checkout"
_decoder = msgspec.json.Decoder(CheckoutResult)


class RepositoryReader:
    """Reads one folder of one branch or tag.

    Args:
        url: URL of the repository, or an absolute path; may contain a password.
        ref: branch or tag.
        folder: path of the bundle inside the repository; empty for its root.
        poll_s: time between two reads, in seconds.
        timeout_s: timeout of one read, in seconds.
        ahead: whether the process of the next read is started ahead; `close` ends it.
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
        self.place = f"{without_credentials(url)} {ref}" + (f":{folder}" if folder else "")

    async def read(self) -> Bundle:
        """Return the bundle of the commit that the ref points at now.

        Raises:
            SourceUnreadable: the repository is unreachable, has no such ref, is too large, or exceeds the timeout.
        """
        result = await self._request(CheckoutRequest(self._url, self._ref, self._folder, self._tip))
        if self._ahead:
            self._waiting = asyncio.create_task(_start_process(), name="next policy read")
        if result.problem:
            raise SourceUnreadable(f"{self.place}: {result.problem}")
        if result.tip != self._tip:
            self._tip, self._bundle = result.tip, Bundle(result.files, result.errors, result.provenance)
        return self._bundle

    async def close(self) -> None:
        """Kill the process that waits for the next read."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with suppress(OSError):
                await _kill(await waiting)

    async def _request(self, request: CheckoutRequest) -> CheckoutResult:
        encoded, output, errors = msgspec.json.encode(request), b"", b""
        waiting = await self._take_waiting()
        if waiting is not None:
            output, errors = await self._exchange(waiting, encoded)
        if not output and not errors:
            # Without output, no process was waiting or the process had exited: a read writes to one of both streams.
            output, errors = await self._exchange(await _start_process(), encoded)
        try:
            return _decoder.decode(output)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            lines = without_secrets(errors.decode("utf-8", "replace"), self._url).split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
            raise SourceUnreadable(f"{self.place}: the reading process ended unexpectedly: {last[:200]}") from None

    async def _take_waiting(self) -> asyncio.subprocess.Process | None:
        """Return the process that was started ahead; None if no process was started or the process has exited."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with suppress(OSError):
                process = await waiting
                if process.returncode is None:
                    return process
        return None

    async def _exchange(self, process: asyncio.subprocess.Process, request: bytes) -> tuple[bytes, bytes]:
        """Send the request; return standard output and standard error of the process after its exit."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await _exchange(process, request)
        except TimeoutError:
            raise SourceUnreadable(f"{self.place}: not read within {self._timeout_s:g} s") from None
        finally:
            await _kill(process)


async def _start_process() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *main_command(_MODULE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
    )


async def _exchange(process: asyncio.subprocess.Process, request: bytes) -> tuple[bytes, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with suppress(ConnectionError):
        process.stdin.write(request)
        await process.stdin.drain()
    process.stdin.close()
    output, errors = await asyncio.gather(_up_to(process.stdout, MAX_RESULT_BYTES), _up_to(process.stderr, 100_000))
    await process.wait()
    return output, errors


async def _up_to(stream: asyncio.StreamReader, max_bytes: int) -> bytes:
    """Read a stream to its end, so that the writer is not blocked, and return the first `max_bytes` bytes."""
    kept = bytearray()
    while chunk := await stream.read(65_536):
        kept += chunk[: max_bytes - len(kept)]
    return bytes(kept)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process group, because git over SSH starts a child process."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _environment() -> dict[str, str]:
    """Return the environment without Penstock's settings, and with SSH prompts disabled."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=5")
    return environment
