"""Starts each engine on loopback, with a tiny model that the engine's Python environment wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from adapters.servers.readiness import http_ok
from tests.engines.environments import CannotInstall, Installed

START_TIMEOUT_S = 600.0
"""On a busy machine; vLLM takes 20 s on one that is not."""

VLLM_RUNS = 4
"""Requests that each vLLM runs at once."""
VLLM_CONTEXT = 4096

_HERE = Path(__file__).parent
_LIBRARIES = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache, /sleep, /wake_up and /is_sleeping
    "VLLM_NO_USAGE_STATS": "1",
}


class Server(ServerProcess):
    """An engine's process, and its address."""

    def __init__(
        self, name: str, argv: list[str], port: int, health: str, directory: Path, more: Mapping[str, str] | None = None
    ) -> None:
        self.port = port
        self.metrics_port = port
        self.grpc_port: int | None = None
        """Port of inferences over gRPC, if it has one."""
        self.kv_events_port: int | None = None
        """Port of the log of KV events, if it has one."""
        self.url = f"http://{LOOPBACK}:{port}"
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PENSTOCK_", "PYTHON"))}
        super().__init__(
            name,
            ["nice", "-n", "5", *argv],
            log_path=directory / f"{name}.log",
            ready=http_ok(self.url + health),
            ports=(port,),
            env=environment | _LIBRARIES | dict(more or {}),
        )


def write_model(installed: Installed, kind: str, out: Path, *more: Path, script: str = "tiny_model.py") -> Path:
    """Write a tiny model with the engine's own libraries, unless it is there."""
    if not out.exists():
        arguments = [argument for argument in (kind, str(out), *map(str, more)) if argument]
        command = [str(installed.python), str(_HERE / script), *arguments]
        written = subprocess.run(command, capture_output=True, text=True, env=os.environ | _LIBRARIES, check=False)
        if written.returncode:
            raise CannotInstall(f"the tiny model cannot be written: {written.stderr[-500:]}")
    return out


def vllm_server(
    installed: Installed,
    directory: Path,
    name: str,
    models: tuple[str, ...],
    adapter: str,
    context_tokens: int = VLLM_CONTEXT,
) -> Server:
    """A vLLM with a tiny Llama of several names and a LoRA adapter of it; not started yet."""
    llama = write_model(installed, "llama", directory / "llama")
    lora = write_model(installed, "adapter", directory / "adapter", llama)
    port, events_port, replay_port = free_ports(3)
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://{LOOPBACK}:{events_port}",
        "replay_endpoint": f"tcp://{LOOPBACK}:{replay_port}",
    }
    argv = [
        *(str(installed.python), "-m", "vllm.entrypoints.cli.main", "serve", str(llama)),
        *("--served-model-name", *models, "--host", LOOPBACK, "--port", str(port)),
        *("--max-model-len", str(context_tokens), "--max-num-seqs", str(VLLM_RUNS)),
        # Of 32 bits, so that a response does not depend on which others run at the same time.
        *("--dtype", "float32", "--enforce-eager", "--enable-prompt-tokens-details"),
        *("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{adapter}={lora}"),
        *("--enable-prefix-caching", "--kv-events-config", json.dumps(events)),
    ]
    server = Server(name, argv, port, "/health", directory, _VLLM)
    server.kv_events_port = replay_port
    return server


def mlserver(installed: Installed, directory: Path, model: str) -> Server:
    """An MLServer with the model of `services/sum_model.py`; not started yet."""
    directory.mkdir(parents=True, exist_ok=True)
    port, grpc_port, metrics_port = free_ports(3)
    settings = {
        "host": LOOPBACK,
        "http_port": port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        "parallel_workers": 0,
    }
    (directory / "settings.json").write_text(json.dumps(settings))
    (directory / "model-settings.json").write_text(json.dumps({"name": model, "implementation": "sum_model.SumModel"}))
    shutil.copy(_HERE / "services" / "sum_model.py", directory)
    server = Server(
        "mlserver", [str(installed.bin / "mlserver"), "start", str(directory)], port, "/v2/health/ready", directory
    )
    server.metrics_port, server.grpc_port = metrics_port, grpc_port
    return server


def triton(installed: Installed, directory: Path) -> Server:
    """A server that speaks Triton's protocol, of `services/triton_service.py`; not started yet."""
    directory.mkdir(parents=True, exist_ok=True)
    port, grpc_port = free_ports(2)
    script = _HERE / "services" / "triton_service.py"
    argv = [str(installed.python), str(script), str(port), str(grpc_port)]
    server = Server("triton", argv, port, "/v2/health/ready", directory)
    server.grpc_port = grpc_port
    return server


def litserve(installed: Installed, directory: Path) -> Server:
    """A LitServe with `services/echo_service.py`; not started yet."""
    directory.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    argv = [str(installed.python), str(_HERE / "services" / "echo_service.py"), str(port)]
    return Server("litserve", argv, port, "/health", directory)


def infinity(installed: Installed, directory: Path, model: str) -> Server:
    """An Infinity with a tiny encoder, which serves OpenAI's paths; not started yet."""
    directory.mkdir(parents=True, exist_ok=True)
    encoder = write_model(installed, "encoder", directory / "encoder")
    (port,) = free_ports(1)
    argv = [
        *(str(installed.bin / "infinity_emb"), "v2", "--model-id", str(encoder), "--served-model-name", model),
        *("--host", LOOPBACK, "--port", str(port), "--url-prefix", "/v1", "--engine", "torch", "--device", "cpu"),
        *("--no-bettertransformer", "--no-model-warmup"),
    ]
    return Server(
        "infinity", argv, port, "/health", directory, {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    )


def llama_cpp(installed: Installed, directory: Path, model: str) -> Server:
    """A llama.cpp server with a tiny Llama; not started yet."""
    directory.mkdir(parents=True, exist_ok=True)
    llama = write_model(installed, "", directory / "tiny.gguf", script="tiny_gguf.py")
    (port,) = free_ports(1)
    argv = [
        *(str(installed.python), "-m", "llama_cpp.server", "--model", str(llama), "--model_alias", model),
        *("--host", LOOPBACK, "--port", str(port), "--n_ctx", "2048", "--n_threads", "1"),
    ]
    return Server("llama-cpp", argv, port, "/openapi.json", directory)
