"""Engines that others simulate: NVIDIA Dynamo's `dynamo.mocker`, each behind a `dynamo.frontend` of its own.

A mocker runs vLLM's scheduler and prefix cache with modelled times, without etcd and NATS: its frontend finds it in a
folder. Its tokens are drawn, 1000 to 1999, and those of ENDS end an answer, so that nothing states its length.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from adapters.servers.readiness import http_ok
from lab.bench.outside.driver import program_version
from lab.bench.outside.grounds import ACCELERATOR
from lab.planet.configs import url
from lab.planet.topology import Engine

ENDS: Final = range(1000, 1008)
"""Eight of the thousand tokens: an answer has 125 tokens in the mean, geometrically distributed."""

VOCABULARY: Final = 2000

START_TIMEOUT_S: Final = 60.0

_SPECIAL: Final = ("<s>", "</s>")

_TEMPLATE: Final = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Mockers:
    """Simulated engines, started anew for every run."""

    def __init__(self, python: Path, count: int, model: str, slots: int) -> None:
        """Run `count` engines with `slots` each, by the interpreter of an environment that has `ai-dynamo`.

        Raises:
            DriverError: the environment does not have it.
        """
        self._python = python
        version = program_version(python, "-c", "from importlib.metadata import version; print(version('ai-dynamo'))")
        names = [f"mocker-{number}" for number in range(1, count + 1)]
        self.engines: Sequence[Engine] = [Engine(name, model, ACCELERATOR, f"zone-{name}", slots) for name in names]
        self.what = f"{count} engines of dynamo.mocker {version}"

    @contextmanager
    def ready(self, directory: Path) -> Iterator[Mapping[str, int]]:
        """Start the engines, and stop them at the end."""
        model = directory / "mocker-model"
        write_model(model)
        with ExitStack() as up:
            yield {engine.name: self._start(engine, model, directory / engine.name, up) for engine in self.engines}

    def _start(self, engine: Engine, model: Path, directory: Path, up: ExitStack) -> int:
        directory.mkdir(parents=True)
        planes = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
        environment = os.environ | {
            "DYN_FILE_KV": str(directory),
            "DYN_HTTP_RPC_HOST": LOOPBACK,
            "DYN_LOG": "error",
            "DYN_TCP_RPC_HOST": LOOPBACK,
            "HF_HUB_OFFLINE": "1",
        }

        def program(name: str, arguments: Sequence[str], **options: Any) -> ServerProcess:
            argv = [str(self._python), "-m", name, *planes, *arguments]
            log = directory.with_suffix(f".{name}.log")
            return ServerProcess(f"{engine.name} ({name})", argv, log_path=log, env=environment, **options)

        named = ("--model-path", str(model), "--model-name", engine.model, "--max-num-seqs", str(engine.max_num_seqs))
        # The size of a token in the cache counts where prefill and decode are apart; it would be read from weights.
        worker = program("dynamo.mocker", (*named, "--kv-bytes-per-token", "1000"))
        (port,) = free_ports(1)
        serves = http_ok(f"{url(port)}/v1/models", engine.model.encode())
        where = ("--http-host", LOOPBACK, "--http-port", str(port), "--router-mode", "round-robin")
        frontend = program("dynamo.frontend", where, ready=serves, ports=(port,))
        for each in (worker, frontend):
            up.callback(each.kill)
            each.start()
        frontend.wait_ready(START_TIMEOUT_S, needs=(worker,))
        return port


def write_model(directory: Path) -> None:
    """Write a model without weights. A byte of a prompt is a token; a drawn token is a word."""
    directory.mkdir(parents=True)
    names = [*_SPECIAL, *_byte_letters()]
    names += [f"\u0120w{number}" for number in range(len(names), VOCABULARY)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    begin, end = _SPECIAL
    files = {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": {name: number for number, name in enumerate(names)}, "merges": []},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": begin,
            "eos_token": end,
            "chat_template": _TEMPLATE,
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "max_position_embeddings": 1_000_000,
            "vocab_size": VOCABULARY,
            "bos_token_id": 0,
            "eos_token_id": [*ENDS],
        },
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": [*ENDS]},
    }
    for name, content in files.items():
        (directory / name).write_bytes(msgspec.json.encode(content))


def _byte_letters() -> list[str]:
    """The letter for each byte, as byte-level tokenizers have them (GPT-2): those that do not print have others."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(others)) for byte in range(0x100)]
