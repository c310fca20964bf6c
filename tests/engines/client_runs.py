"""Runs the script of a client in the clients' virtual environment."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from tests.engines.environments import CLIENTS, MLSERVER, TRITON, Environment
from tests.engines.region import MODEL, RATE_LIMITED, RETRY_AFTER_S, Region, key_of
from tests.engines.service_cases import EMBEDDER, SUM, SUM_STREAM
from tests.engines.suite import Failed, Result


class Client(NamedTuple):
    """A client; `clients/<name>_cases.py` is its script."""

    distribution: str
    engines: tuple[str, ...]
    """Engines that its cases use; without the first, none can be run."""
    environment: Environment = CLIENTS
    is_grpc: bool = False
    """Whether it uses gRPC, for which it reaches the engines through Envoy and the endpoint picker."""


SCRIPTS = {
    "openai": Client("openai", ("vllm", "infinity")),
    "anthropic": Client("anthropic", ("vllm",)),
    "litellm": Client("litellm", ("vllm", "infinity")),
    "langchain": Client("langchain-openai", ("vllm", "infinity")),
    "tritonclient": Client("tritonclient", ("mlserver",), MLSERVER),
    "tritonclient_grpc": Client("tritonclient", ("mlserver",), MLSERVER, is_grpc=True),
    "tritonclient_stream": Client("tritonclient", ("triton",), TRITON, is_grpc=True),
}
TIMEOUT_S = 300.0


async def client_results(region: Region, client: str, names: list[str]) -> AsyncIterator[tuple[str, Result]]:
    """Run the cases of a client: the name and the result of each.

    Args:
        names: parts of the names of cases; all run if there is none.

    Raises:
        Failed: the script ended early, or did not end.
    """
    tenant = RATE_LIMITED[list(SCRIPTS).index(client)]
    asked = {
        "url": await region.envoy_url() if SCRIPTS[client].is_grpc else region.url,
        "key": key_of("tester"),
        "limited_key": key_of(tenant),
        "limited_tenant": tenant,
        "retry_after_s": RETRY_AFTER_S,
        "access_log": str(region.access_log),
        "models": {"chat": MODEL, "embeddings": EMBEDDER, "tensors": SUM, "streams": SUM_STREAM},
    }
    file = region.directory / f"{client}.json"
    file.write_text(json.dumps(asked))
    script = Path(__file__).parent / "clients" / f"{client}_cases.py"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PENSTOCK_", "PYTHON"))}
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
    with (region.directory / f"{client}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(region.installed[SCRIPTS[client].environment.name].python), str(script), str(file), *names,
            stdout=asyncio.subprocess.PIPE, stderr=log, env=environment,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            async with asyncio.timeout(TIMEOUT_S):
                async for line in process.stdout:
                    if line.startswith(b'{"name"'):
                        found = json.loads(line)
                        yield found.pop("name"), Result(**found)
                code = await process.wait()
        except TimeoutError:
            raise Failed(f"the cases have not ended within {TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if code:
        errors = await asyncio.to_thread(Path(log.name).read_text)
        raise Failed(f"the script ended with code {code}: {errors.strip().rpartition(chr(10))[2]}")
