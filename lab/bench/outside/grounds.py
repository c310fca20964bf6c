"""The engines of a contest: the lab's, started anew for every run, or real vLLM servers that run through all of it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

import httpx

from adapters.servers.errors import NotReady, ServerError
from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from adapters.servers.readiness import http_ok
from lab.bench.live.fleet import start_engines
from lab.planet.configs import url
from lab.planet.topology import Engine
from lab.server_starting import PORT_TRIES, start_server

START_TIMEOUT_S: Final = 600.0
"""On a busy machine; vLLM takes 20 s on one that is not."""

IDLE_TIMEOUT_S: Final = 120.0

CONTEXT_TOKENS: Final = 8192

ACCELERATOR: Final = "l40s"
"""The slowest accelerator of the shipped policy; how fast the servers are, agents learn from responses."""

MODEL_SCRIPT: Final = Path(__file__).parents[3] / "tests" / "engines" / "tiny_model.py"

_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for POST /reset_prefix_cache
}


class Ground(Protocol):
    """Engines that every system of a contest finds in the same state."""

    @property
    def engines(self) -> Sequence[Engine]:
        """The engines, for the configuration of agents."""

    @property
    def what(self) -> str:
        """Description for the results."""

    def ready(self, directory: Path) -> AbstractContextManager[Mapping[str, int]]:
        """Return a context of one run, with idle engines and empty prefix caches, that yields their ports by name."""


class FakeEngines:
    """The lab's engines, started anew for every run."""

    def __init__(self, engines: Sequence[Engine], time_scale: float) -> None:
        self.engines = engines
        self.what = f"{len(engines)} engines of the lab"
        self._time_scale = time_scale

    @contextmanager
    def ready(self, directory: Path) -> Iterator[Mapping[str, int]]:
        """Start the engines, and kill them at the end."""
        running = start_engines(self.engines, self._time_scale, directory)
        try:
            yield running.ports
        finally:
            running.process.kill()


class VllmServers:
    """Running vLLM servers with a small model, whose prefix caches are emptied before every run."""

    def __init__(self, engines: Sequence[Engine], ports: Mapping[str, int]) -> None:
        self.engines = engines
        self.what = f"{len(engines)} vLLM servers on the CPU"
        self._ports = ports

    @contextmanager
    def ready(self, directory: Path) -> Iterator[Mapping[str, int]]:
        """Wait until the servers are idle, and empty their prefix caches."""
        for name, port in self._ports.items():
            _wait_idle(name, port)
            httpx.post(f"{url(port)}/reset_prefix_cache", timeout=30.0).raise_for_status()
        yield self._ports


@contextmanager
def vllm_servers(program: Path, count: int, model: str, slots: int, directory: Path) -> Iterator[VllmServers]:
    """Run vLLM servers with a small model during the context.

    Args:
        program: vLLM's console script.
        count: number of servers.
        model: name under which they serve the model.
        slots: number of requests that each server runs at once.
        directory: directory for the model and the logs.

    Raises:
        ServerError: a server does not start, or the model cannot be written.
    """
    written = write_model(program, directory / "model")
    engines = [Engine(f"vllm-{number}", model, ACCELERATOR, f"zone-{number}", slots) for number in range(1, count + 1)]
    with ExitStack() as up:
        with ThreadPoolExecutor(count) as starts:
            found = starts.map(lambda engine: _start(program, engine, written, directory, up), engines)
        yield VllmServers(engines, dict(zip((engine.name for engine in engines), found, strict=True)))


def write_model(program: Path, out: Path) -> Path:
    """Write the small model whose responses end by themselves, with the Python beside vLLM's console script.

    Raises:
        ServerError: with what the script printed.
    """
    command = [str(program.with_name("python")), str(MODEL_SCRIPT), "chat", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | _ENVIRONMENT, check=False)
    if ended.returncode:
        raise ServerError(f"the model cannot be written: {ended.stderr[-500:]}")
    return out


def _start(program: Path, engine: Engine, model: Path, directory: Path, up: ExitStack) -> int:
    ports: list[int] = []

    def make() -> ServerProcess:
        ports[:] = free_ports(1)
        argv = [
            *(str(program), "serve", str(model), "--served-model-name", engine.model),
            *("--host", LOOPBACK, "--port", str(ports[0]), "--max-num-seqs", str(engine.max_num_seqs)),
            *("--max-model-len", str(CONTEXT_TOKENS), "--enforce-eager", "--dtype", "float32"),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            # Responses then have the same length behind every router.
            *("--override-generation-config", '{"temperature": 0.0}'),
        ]
        return ServerProcess(
            engine.name,
            argv,
            log_path=directory / f"{engine.name}.log",
            ready=http_ok(f"{url(ports[0])}/health"),
            ports=ports,
            env=os.environ | _ENVIRONMENT,
        )

    up.callback(start_server(make, tries=PORT_TRIES, timeout_s=START_TIMEOUT_S).stop, 20.0)
    # The first request of a server takes longer.
    warm = {"model": engine.model, "messages": [{"role": "user", "content": "warm up"}], "max_tokens": 20}
    httpx.post(f"{url(ports[0])}/v1/chat/completions", json=warm, timeout=IDLE_TIMEOUT_S).raise_for_status()
    return ports[0]


def _wait_idle(name: str, port: int) -> None:
    until = time.monotonic() + IDLE_TIMEOUT_S
    while requests_of(httpx.get(f"{url(port)}/metrics", timeout=30.0).text) > 0.0:
        if time.monotonic() > until:
            raise NotReady(f"{name} still has requests {IDLE_TIMEOUT_S:.0f} s after a run")
        time.sleep(0.5)


def requests_of(metrics: str) -> float:
    """Return the number of running and waiting requests in a vLLM's metrics."""
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line.startswith(names))
