"""Faults of the files that a running fleet uses: replaced by FIFOs and devices, emptied, cut off, lost."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.attacks.fleet import VIEWERS, Fleet, within
from tests.attacks.suite import attack, expect
from tests.support.control_planes import OPERATOR

NOTICED_S = 20.0


def _socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        # By its name alone, since the path of a socket is limited to 107 bytes.
        here = os.getcwd()
        os.chdir(file.parent)
        try:
            bound.bind(file.name)
        finally:
            os.chdir(here)


NON_FILES: tuple[Callable[[Path], None], ...] = (
    os.mkfifo,
    _socket,
    lambda file: file.symlink_to("/dev/zero"),
    lambda file: file.mkdir(),
    lambda file: file.symlink_to(file.name),
    lambda file: file.symlink_to("/proc/self/fd/0"),
)
"""Put something that is not a file in place of a file: a FIFO, a socket, an endless device, a directory, a loop."""


@contextmanager
def kept(*files: Path) -> Iterator[None]:
    """Restore the content and the mode of files afterwards."""
    contents = {file: (file.read_bytes(), file.stat().st_mode & 0o777) for file in files}
    try:
        yield
    finally:
        for file, (content, mode) in contents.items():
            fresh = file.with_name(f".{file.name}.restored")
            fresh.touch(mode=mode)
            fresh.write_bytes(content)
            if file.is_dir() and not file.is_symlink():
                file.rmdir()
            fresh.replace(file)


async def refused_policy(fleet: Fleet) -> list[str]:
    """Errors of the newest policy revision at the leader."""
    leader = await fleet.leader()
    if leader is None:
        return []
    errors: list[str] = (await fleet.http.get(f"{leader.url}/v1/status", headers=OPERATOR)).json()["policy"]["refused"]
    return errors


@attack("35.1")
async def non_files_in_place_of_files(fleet: Fleet) -> None:
    """Every certificate, key, token and list of a running fleet is replaced by a FIFO, a socket, a device, a directory.

    All processes go on serving, name the files, and use them once they are restored.
    """
    identities = [fleet.agents[agent].log_path.parent / "identity" for agent in fleet.agents]
    identities += [server.log_path.parent / "identity" for server in fleet.control_planes]
    files = [directory / name for directory in identities for name in ("tls.key", "tls.crt", "ca.crt")]
    files += [agent.log_path.parent / "admin-keys.yaml" for agent in fleet.agents.values()]
    files += [agent.log_path.parent / "registration.token" for agent in fleet.agents.values()]
    files += [server.log_path.parent / "admin.token" for server in fleet.control_planes]
    files.append(fleet.directory / "keys.yaml")

    async def all_reject() -> bool:
        statuses = await asyncio.gather(*(fleet.status(agent) for agent in fleet.agents))
        kinds = {"identity", "tls", "admin_api_keys", "registration_tokens"}
        return all(kinds <= status["rejected_files"].keys() for status in statuses)

    async def none_rejects() -> bool:
        statuses = await asyncio.gather(*(fleet.status(agent) for agent in fleet.agents))
        return not any(status["rejected_files"] for status in statuses)

    with kept(*files):
        for number, file in enumerate(files):
            file.unlink()
            NON_FILES[number % len(NON_FILES)](file)
        expect(await within(NOTICED_S, all_reject), "an agent does not name its files")
        for agent in fleet.agents:
            answer = await fleet.chat(agent, "victim")
            expect(answer.status_code == 200, f"{agent} answers {answer.status_code}")
        for server in fleet.control_planes:
            answer = await fleet.http.get(f"{server.url}/v1/status", headers=OPERATOR)
            expect(answer.status_code == 200, f"{server.name} answers {answer.status_code}")
    expect(await within(NOTICED_S, none_rejects), "an agent does not use the restored files")


@attack("35.2")
async def policy_files_lost(fleet: Fleet) -> None:
    """The files of residency rules and of tenants are emptied, cut off, replaced by FIFOs and the like, and removed.

    So is a rule that lost an entry. The policy in force stays in every region, and the status has the reason.
    """
    before = await fleet.digests()
    rules, tenants = fleet.bundle / "residency.yaml", fleet.bundle / "tenants.yaml"
    for file in (rules, tenants):
        content = file.read_bytes()
        first = content[: content.index(b"\n---\n") + 1]
        shorter = content.replace(b"[es-victim, es-attacker]", b"[es-victim]")
        cut = (first,) if file is tenants else (first, shorter)
        for left in (b"", b"# residency\n", b"---\n", content[:-1], *cut, None, *NON_FILES):
            with kept(file):
                file.unlink()
                if isinstance(left, bytes):
                    file.write_bytes(left)
                elif left is not None:
                    left(file)
                case = f"{file.name}: {left if left is None or callable(left) else left[:20]!r}"
                expect(await within(NOTICED_S, lambda: refused_policy(fleet)), f"{case} is not refused")
                expect(await fleet.digests() == before, f"{case} is in force")

            async def is_accepted() -> bool:
                return not await refused_policy(fleet)

            expect(await within(NOTICED_S, is_accepted), f"the restored file is refused: {await refused_policy(fleet)}")


@attack("35.3")
async def emptied_keys(fleet: Fleet) -> None:
    """The files of API keys of control planes and agents are emptied.

    The previous keys stay in force; `[]` revokes them.
    """
    files = [fleet.directory / "keys.yaml"]
    files += [agent.log_path.parent / "admin-keys.yaml" for agent in fleet.agents.values()]
    viewer = {"authorization": f"Bearer {VIEWERS[0]}"}
    url = f"{fleet.control_planes[0].url}/v1/whoami"

    async def all_reject() -> bool:
        statuses = await asyncio.gather(*(fleet.status(agent) for agent in fleet.agents))
        return all("admin_api_keys" in status["rejected_files"] for status in statuses)

    async def is_revoked() -> bool:
        return (await fleet.http.get(url, headers=viewer)).status_code == 401

    with kept(*files):
        for file in files:
            file.write_bytes(b"")
        expect(await within(NOTICED_S, all_reject), "an agent does not reject the empty file")
        answer = await fleet.http.get(url, headers=viewer)
        expect(answer.status_code == 200, f"a viewer gets {answer.status_code}")
        files[0].write_text("[]")
        expect(await within(NOTICED_S, is_revoked), "[] revokes no key")
