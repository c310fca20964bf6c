"""One agent as a process: `python -m tests.support.takeover_agent DIRECTORY PORT ENGINE_PORT [CERTIFICATES]`.

Serves until SIGTERM, then drains as the daemon does. Prints the port, and then the number of interrupted requests.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from adapters.tls_contexts import ServerTls
from regional_agent.http.drain import drain_all
from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address
from tests.support.agents import running_agent


async def serve(directory: Path, port: int, engine_port: int, made: Path | None) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    engines = [Address("127.0.0.1", engine_port)]
    tls = ServerTls(made / "one.pem", made / "one.key") if made is not None else None
    async with running_agent(
        directory, engines, slots=1000, port=port, limits=Limits(idle_linger_s=15.0), tls=tls
    ) as agent:
        print(agent.traffic.port, flush=True)
        await stop.wait()
        print(await drain_all([agent.listener], 20.0, agent.proxy.shut_down), flush=True)


if __name__ == "__main__":
    certificates = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), certificates))
