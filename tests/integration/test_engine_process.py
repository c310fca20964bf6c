"""`penstock-lab engines` as a process: several engines, bad input, signals, a witness file that survives SIGKILL."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.witness import Witness
from tests.support.engines import PROGRAM, running_engines
from tests.support.wait import until, until_async

MODEL = "llama-3.1-8b"
ENGINE = {"name": "a", "model": MODEL, "accelerator": "h100", "cold_start_s": 0, "time_scale": 10}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}


def of_length(tokens: int) -> dict[str, Any]:
    """Fields of a request whose answer has exactly that many tokens."""
    return {"max_tokens": tokens, "ignore_eos": True}


def run(tmp_path: Path, content: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    config = tmp_path / "engines.yaml"
    config.write_text(content if isinstance(content, str) else json.dumps(content))
    return subprocess.run(
        [PROGRAM, "engines", "--config", config],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **options,
    )


async def test_two_hundred_endpoints_serve_from_one_process(tmp_path: Path) -> None:
    engines = [{"name": f"gpu-{n:03}", "zone": f"z{n % 3}"} for n in range(200)]
    with running_engines(tmp_path, *engines) as process:
        assert len(set(process.urls.values())) == 200
        limits = httpx.Limits(max_connections=400)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:

            async def ask(name: str) -> int:
                answer = await client.post(
                    process.urls[name] + "/v1/chat/completions",
                    json=CHAT | of_length(10),
                    headers={"x-request-id": name, "x-lab-residency": "eu-de"},
                )
                return answer.text.count("data: ")

            assert await asyncio.gather(*map(ask, process.urls)) == [12] * 200
        findings = process.findings()
        assert findings.checked == len(findings.finished) == 200
        assert not findings.violations
        assert process.stop() == 0


async def test_the_witness_keeps_what_was_written_before_a_sigkill(tmp_path: Path) -> None:
    with running_engines(tmp_path, {"name": "a", "max_num_seqs": 8}, region="eu-gb") as process:
        url = process.urls["a"] + "/v1/chat/completions"
        async with httpx.AsyncClient(timeout=100) as client:

            async def ask(number: int) -> None:
                headers = {"x-request-id": str(number), "x-lab-residency": "eu-de"}
                async with client.stream("POST", url, json=CHAT | of_length(100_000), headers=headers) as answer:
                    assert answer.status_code == 200
                    accepted.append(number)
                    async for _ in answer.aiter_bytes():
                        pass

            accepted: list[int] = []
            asking = [asyncio.create_task(ask(number)) for number in range(30)]
            await until(lambda: len(accepted) == 30 and len(process.findings().started) == 8)
            process.kill()
            results = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(result, httpx.TransportError) for result in results)
        findings = Witness(process.witness_dir).read()[0]
        assert len(findings.arrived) == findings.checked == len(findings.violations) == 30
        assert len(findings.started) == 8
        assert not findings.finished


async def test_each_start_writes_a_separate_witness_file(tmp_path: Path) -> None:
    for _ in range(2):
        with running_engines(tmp_path, {"name": "a"}) as process:
            async with httpx.AsyncClient(timeout=100) as client:
                await client.post(
                    process.urls["a"] + "/v1/chat/completions",
                    json={**CHAT, "max_tokens": 2},
                    headers={"x-request-id": "1"},
                )
            process.kill()
    assert len(list((tmp_path / "witness").iterdir())) == 2
    assert Witness(tmp_path / "witness").read()[0].started == {"1": 2}


def test_an_engine_without_a_writable_witness_does_not_serve(tmp_path: Path) -> None:
    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    config = tmp_path / "engines.json"
    config.write_text(json.dumps({"region": "eu-de", "witness_dir": str(tmp_path / "w"), "endpoints": [ENGINE]}))
    process = subprocess.Popen(
        [PROGRAM, "engines", "--config", config],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=small_files,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with pytest.raises(httpx.TransportError):
            _ask_forever(url)
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 1
        # The limit may be the end of a line.
        assert re.search(r"\.jsonl: (a line was written only in part|cannot be written: File too large)", errors)
        assert errors.count("\n") == 1
    finally:
        process.kill()
        process.communicate()


def test_sigint_ends_it_as_sigterm_does(tmp_path: Path) -> None:
    with running_engines(tmp_path, {"name": "a"}) as process:
        process.popen.send_signal(signal.SIGINT)
        assert process.popen.wait(timeout=100) == 0


async def test_sigterm_ends_requests_in_progress_and_records_the_ends(tmp_path: Path) -> None:
    with running_engines(tmp_path, {"name": "a", "max_num_seqs": 1}) as process:
        url = process.urls["a"] + "/v1/chat/completions"
        body = CHAT | of_length(100_000)
        async with httpx.AsyncClient(timeout=100) as client:
            runs, waits = (
                asyncio.create_task(client.post(url, json=body, headers={"x-request-id": name}))
                for name in ("runs", "waits")
            )

            async def one_waits() -> bool:
                waiting = 'vllm:num_requests_waiting{engine="0",model_name="llama-3.1-8b"} 1\n'
                return waiting in (await client.get(process.urls["a"] + "/metrics")).text

            await until_async(one_waits)
            assert await asyncio.to_thread(process.stop) == 0
            results = await asyncio.gather(runs, waits, return_exceptions=True)
        assert all(isinstance(result, httpx.TransportError) for result in results)
        findings = process.findings()
        assert len(findings.started) == 1
        assert findings.aborted == findings.arrived == {"runs": 1, "waits": 1}


async def test_a_pause_delays_the_tokens(tmp_path: Path) -> None:
    with running_engines(tmp_path, {"name": "a", "time_scale": 1}) as process:
        async with httpx.AsyncClient(timeout=100) as client:
            clock = asyncio.get_running_loop()
            began_s = clock.time()
            url = process.urls["a"] + "/v1/chat/completions"
            async with client.stream("POST", url, json=CHAT | of_length(300)) as answer:
                pieces = answer.aiter_bytes()
                await anext(pieces)
                os.kill(process.popen.pid, signal.SIGSTOP)
                await asyncio.sleep(1.5)
                os.kill(process.popen.pid, signal.SIGCONT)
                async for _ in pieces:
                    pass
            # 300 tokens of 6.5 ms take 2 s; the pause adds its length, less the catch-up limit.
            assert clock.time() - began_s > 2 + 1.5 - 0.25 - 0.1


def test_bad_input_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    file = {"region": "eu-de", "witness_dir": str(tmp_path / "w"), "endpoints": [ENGINE]}
    occupied = socket.create_server(("127.0.0.1", 0))
    taken = {**file, "endpoints": [{**ENGINE, "port": occupied.getsockname()[1]}]}
    not_a_directory = tmp_path / "file"
    not_a_directory.touch()
    for content, message in (
        ("", "engines.yaml: Expected `object`, got `null`"),
        (
            {**file, "endpoints": [{**ENGINE, "accelerator": "abacus"}]},
            "endpoints[0].accelerator: 'abacus' is not known",
        ),
        (
            taken,
            f"endpoints[0].port: cannot listen on 127.0.0.1 port {occupied.getsockname()[1]}: Address already in use",
        ),
        ({**file, "host": "no such host"}, "cannot listen on no such host"),
        ({**file, "witness_dir": str(not_a_directory / "w")}, "witness_dir: cannot write in"),
    ):
        result = run(tmp_path, content)
        assert (result.returncode, result.stdout) == (2, "")
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
    occupied.close()
    assert not (tmp_path / "w").exists(), "nothing is left behind"


def _ask_forever(url: str) -> None:
    with httpx.Client(timeout=100) as client:
        while True:
            client.post(url + "/v1/chat/completions", json={**CHAT, "max_tokens": 1})
