"""`penstock anycast` as a process of a real ExaBGP, whose routes a real BIRD receives over loopback."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess, find_script
from lab import debian_packages
from tests.support.paths import ROOT
from tests.support.small_http import SmallHttp
from tests.support.wait import until, until_async

PREFIX = "192.0.2.0/24"
OTHER_LOOPBACK = "127.0.0.2"
EXABGP = os.environ.get("EXABGP") or shutil.which("exabgp")
BIRD, BIRDC = debian_packages.program("bird"), debian_packages.program("birdc")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(EXABGP is None or BIRD is None, reason="there is no exabgp or bird: run `make test-anycast`"),
]


class Routers(NamedTuple):
    """ExaBGP with the command, and the route table of BIRD."""

    exabgp: ServerProcess
    bird: ServerProcess
    ask: Callable[[str], str]
    """Returns what BIRD answers to a command."""

    def routes(self) -> str:
        return self.ask("show route all")

    async def until(self, holds: Callable[[str], bool]) -> float:
        """Wait until the routes of BIRD are as wanted; returns the time (s)."""
        began = time.monotonic()

        async def found() -> bool:
            return holds(await asyncio.to_thread(self.routes))

        await until_async(found)
        return time.monotonic() - began


@asynccontextmanager
async def routers(directory: Path, urls: list[str], *options: str) -> AsyncIterator[Routers]:
    assert EXABGP is not None
    assert BIRD is not None
    assert BIRDC is not None
    (port,) = free_ports(1)
    control = directory / "bird.ctl"
    (directory / "bird.conf").write_text(
        "log stderr all;\nrouter id 10.0.0.1;\nprotocol device {}\n"
        f"protocol bgp exabgp {{ local {LOOPBACK} port {port} as 65001;"
        f" neighbor {OTHER_LOOPBACK} as 65002; multihop; passive; strict bind yes;"
        " debug { packets };"
        " ipv4 { import all; export none; }; }\n"
    )
    command = [sys.executable, find_script("penstock"), "anycast", PREFIX, "--every", "0.1", *options]
    command += [part for url in urls for part in ("--ready-url", url)]
    (directory / "exabgp.conf").write_text(
        f"process anycast {{ run {' '.join(command)}; encoder text; }}\n"
        f"neighbor {LOOPBACK} {{ router-id 10.0.0.2; local-address {OTHER_LOOPBACK}; local-as 65002; peer-as 65001;"
        f" connect {port}; hold-time 9; family {{ ipv4 unicast; }} api {{ processes [ anycast ]; }} }}\n"
    )
    environment = debian_packages.environment() | {
        "PYTHONPATH": str(ROOT),
        "exabgp_daemon_drop": "false",
        "exabgp_daemon_user": "root",
        "exabgp_api_cli": "false",
    }
    bird = ServerProcess(
        "bird",
        [BIRD, "-f", "-c", str(directory / "bird.conf"), "-s", str(control), "-P", str(directory / "bird.pid")],
        log_path=directory / "bird.log",
        env=environment,
    )
    exabgp = ServerProcess(
        "exabgp", [EXABGP, "server", str(directory / "exabgp.conf")], log_path=directory / "exabgp.log", env=environment
    )

    def ask(command: str) -> str:
        asked = [BIRDC or "", "-s", str(control), *command.split()]
        return subprocess.run(asked, capture_output=True, text=True, env=environment, check=False).stdout

    bird.start()
    exabgp.start()
    try:
        yield Routers(exabgp, bird, ask)
    finally:
        exabgp.kill()
        bird.kill()


async def test_a_prefix_follows_the_readiness_of_agent_and_picker(tmp_path: Path) -> None:
    statuses = {"agent": (200, b""), "picker": (200, b"")}
    async with SmallHttp(lambda *_: statuses["agent"]) as agent, SmallHttp(lambda *_: statuses["picker"]) as picker:
        urls = [f"{agent.url}/readyz", f"{picker.url}/ready"]
        async with routers(tmp_path, urls, "--hold", "0.2", "--med", "50", "--community", "65002:7") as found:
            await found.until(lambda routes: PREFIX in routes)
            text = await asyncio.to_thread(found.routes)
            assert "BGP.med: 50" in text
            assert "BGP.community: (65002,7)" in text
            for name in statuses:
                statuses[name] = (503, b"not ready")
                withdrawn_s = await found.until(lambda routes: PREFIX not in routes)
                print(f"\nwithdrawn {withdrawn_s:.2f} s after {name} was not ready")
                assert withdrawn_s < 5.0
                statuses[name] = (200, b"")
                await found.until(lambda routes: PREFIX in routes)


async def test_a_command_that_is_killed_is_withdrawn_until_it_has_checked_again(tmp_path: Path) -> None:
    async with SmallHttp(lambda *_: (200, b"")) as agent, routers(tmp_path, [agent.url], "--hold", "3") as found:
        await found.until(lambda routes: PREFIX in routes)
        children = await asyncio.to_thread(
            subprocess.run, ["pgrep", "-P", str(found.exabgp.pid)], capture_output=True, text=True, check=True
        )
        os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
        withdrawn_s = await found.until(lambda routes: PREFIX not in routes)
        print(f"\nwithdrawn {withdrawn_s:.2f} s after the command was killed")
        await found.until(lambda routes: PREFIX in routes)


async def test_a_dead_agent_and_a_lost_session_are_withdrawn(tmp_path: Path) -> None:
    async with SmallHttp(lambda *_: (200, b"")) as agent, routers(tmp_path, [agent.url], "--hold", "0.2") as found:
        await found.until(lambda routes: PREFIX in routes)
        await agent.stop()
        withdrawn_s = await found.until(lambda routes: PREFIX not in routes)
        print(f"\nwithdrawn {withdrawn_s:.2f} s after the agent closed its port")
        await agent.start()
        await found.until(lambda routes: PREFIX in routes)
        found.exabgp.kill()
        withdrawn_s = await found.until(lambda routes: PREFIX not in routes)
        print(f"withdrawn {withdrawn_s:.2f} s after ExaBGP was killed")


async def test_a_session_that_comes_back_has_the_prefix_as_it_is_then(tmp_path: Path) -> None:
    log = tmp_path / "exabgp.log"
    async with SmallHttp(lambda *_: (200, b"")) as agent, routers(tmp_path, [agent.url], "--hold", "0.2") as found:
        await found.until(lambda routes: PREFIX in routes)

        def sessions() -> int:
            """Sessions of which BIRD has received all routes of the time of their establishment."""
            return (tmp_path / "bird.log").read_text().count("Got END-OF-RIB")

        for is_ready in (True, False):
            await asyncio.to_thread(found.bird.kill)
            if not is_ready:
                await agent.stop()
                # By ExaBGP, which does so after the command.
                await until(lambda: "route removed" in log.read_text().partition("announced -> withdrawn")[2])
            before = sessions()
            found.bird.start()
            await until(lambda before=before: sessions() > before)
            assert (PREFIX in await asyncio.to_thread(found.routes)) == is_ready
