"""Cases of engines other than vLLM: MLServer, LitServe, Infinity for embeddings, and llama.cpp."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from tests.engines.region import Region
from tests.engines.servers import START_TIMEOUT_S, Server, infinity, litserve, llama_cpp, mlserver, triton
from tests.engines.suite import NotOffered, case, expect

MLSERVER, TRITON, LITSERVE, INFINITY, LLAMA_CPP = "mlserver", "triton", "litserve", "infinity", "llama-cpp"
SUM, SUM_STREAM, ECHO, EMBEDDER, GGUF = "sum", "sum-stream", "echo", "embedder", "tiny-gguf"
"""The model of each."""
SLOTS = 4


async def start_mlserver(region: Region) -> None:
    """Start MLServer as an endpoint of the agent."""
    server = mlserver(region.installed[MLSERVER], region.directory / MLSERVER, SUM)
    await _start(region, server, SUM, engine="triton", metrics_port=server.metrics_port, grpc_port=server.grpc_port)


async def start_triton(region: Region) -> None:
    """Start a server of Triton's protocol as an endpoint of the agent."""
    server = triton(region.installed[TRITON], region.directory / TRITON)
    await _start(region, server, SUM_STREAM, engine="http", health="/v2/health/ready", grpc_port=server.grpc_port)


async def start_litserve(region: Region) -> None:
    """Put LitServe behind the agent."""
    await _start(region, litserve(region.installed[LITSERVE], region.directory / LITSERVE), ECHO, engine="http")


async def start_infinity(region: Region) -> None:
    """Put Infinity behind the agent."""
    server = infinity(region.installed[INFINITY], region.directory / INFINITY, EMBEDDER)
    await _start(region, server, EMBEDDER, engine="auto")


async def start_llama_cpp(region: Region) -> None:
    """Put llama.cpp behind the agent."""
    server = llama_cpp(region.installed[LLAMA_CPP], region.directory / LLAMA_CPP, GGUF)
    # The server runs one request at a time, and any other request, GET /v1/models too, interrupts its stream.
    await _start(region, server, GGUF, engine="http", slots=1, health="/openapi.json")


async def _start(region: Region, server: Server, model: str, slots: int = SLOTS, **fields: object) -> None:
    region.servers[server.name] = server
    await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.wait_ready, START_TIMEOUT_S)
    await region.add(server.name, server, server.url, [model], slots=slots, **fields)


async def post(region: Region, path: str, body: object, key: str | None = None) -> httpx.Response:
    """POST to the agent.

    Raises:
        NotOffered: the agent has no route for the path.
    """
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    answer = await region.http.post(region.url + path, json=body, headers=headers)
    if answer.status_code == 404 and answer.headers.get("x-penstock-refusal") == "not_found":
        raise NotOffered(f"the agent has no route {path}")
    return answer


def rows(*values: list[float]) -> dict[str, Any]:
    """An inference request of the Open Inference Protocol with one tensor."""
    data = [number for row in values for number in row]
    return {"inputs": [{"name": "x", "shape": [len(values), len(values[0])], "datatype": "FP32", "data": data}]}


@case(MLSERVER)
async def inference(region: Region) -> None:
    """POST /v2/models/{model}/infer reaches the model that its path names."""
    answer = await post(region, f"/v2/models/{SUM}/infer", rows([1, 2], [3, 4]))
    expect(answer.status_code == 200, f"{answer.status_code}: {answer.text}")
    expect(answer.json()["outputs"][0]["data"] == [3.0, 7.0], answer.text)
    expect(answer.headers.get("x-penstock-endpoint") == MLSERVER, f"the headers are {dict(answer.headers)}")


@case(MLSERVER)
async def inference_errors(region: Region) -> None:
    """Errors of the agent have KServe's format, and errors of the engine pass through."""
    unknown = await post(region, "/v2/models/unknown/infer", rows([1, 2]))
    expect(unknown.status_code == 404, f"{unknown.status_code}: {unknown.text}")
    expect(isinstance(unknown.json().get("error"), str), f"the error of the agent is {unknown.text}")
    wrong = await post(region, f"/v2/models/{SUM}/infer", {"inputs": 7})
    expect(wrong.status_code in (400, 422), f"{wrong.status_code}: {wrong.text}")
    denied = await post(region, f"/v2/models/{SUM}/infer", rows([1, 2]), key="wrong")
    expect(denied.status_code == 401 and isinstance(denied.json().get("error"), str), f"without a key: {denied.text}")


@case(MLSERVER)
async def inferences_at_once(region: Region) -> None:
    """More requests at once than the endpoint has slots are all served."""
    answers = await asyncio.gather(*(post(region, f"/v2/models/{SUM}/infer", rows([1, 2])) for _ in range(40)))
    expect({answer.status_code for answer in answers} == {200}, f"{sorted(answer.status_code for answer in answers)}")


@case(LITSERVE)
async def prediction(region: Region) -> None:
    """POST /predict reaches the custom service."""
    answer = await post(region, "/predict", {"text": "rivers", "model": ECHO})
    expect(answer.status_code == 200, f"{answer.status_code}: {answer.text}")
    expect(answer.json() == {"output": "RIVERS"}, answer.text)


@case(LITSERVE)
async def predictions_at_once(region: Region) -> None:
    """More requests at once than the endpoint has slots wait in the agent and are all served."""
    body = {"text": "rivers", "seconds": 0.1, "model": ECHO}
    answers = await asyncio.gather(*(post(region, "/predict", body) for _ in range(20)))
    expect({answer.status_code for answer in answers} == {200}, f"{sorted(answer.status_code for answer in answers)}")


@case(LITSERVE)
async def failing_prediction(region: Region) -> None:
    """A request that LitServe answers with 500 passes through, and does not eject the only endpoint."""
    statuses = [(await post(region, "/predict", {"model": ECHO})).status_code for _ in range(6)]
    expect(set(statuses) <= {500, 502}, f"the statuses were {statuses}")
    answer = await post(region, "/predict", {"text": "rivers", "model": ECHO})
    expect(answer.status_code == 200, f"afterwards: {answer.status_code}: {answer.text}")


@case(INFINITY)
async def embeddings(region: Region) -> None:
    """POST /v1/embeddings returns an embedding for each input, the same each time, with usage."""
    body = {"model": EMBEDDER, "input": ["rivers", "lakes"]}
    first, second = [await post(region, "/v1/embeddings", body) for _ in range(2)]
    expect(first.status_code == 200, f"{first.status_code}: {first.text}")
    vectors = [item["embedding"] for item in first.json()["data"]]
    expect(len(vectors) == 2 and vectors[0] != vectors[1], f"{len(vectors)} embeddings")
    again = [item["embedding"] for item in second.json()["data"]]
    near = all(
        abs(a - b) < 1e-4
        for vector, repeated in zip(vectors, again, strict=True)
        for a, b in zip(vector, repeated, strict=True)
    )
    expect(near, "the same input has another embedding")
    expect(first.json()["usage"]["prompt_tokens"] > 0, f"the usage is {first.json()['usage']}")


@case(INFINITY)
async def embeddings_at_once(region: Region) -> None:
    """More requests at once than the endpoint has slots are all served."""
    body = {"model": EMBEDDER, "input": "rivers"}
    answers = await asyncio.gather(*(post(region, "/v1/embeddings", body) for _ in range(40)))
    expect({answer.status_code for answer in answers} == {200}, f"{sorted(answer.status_code for answer in answers)}")


@case(INFINITY)
async def rejected_embedding(region: Region) -> None:
    """An error of the embedding server passes through."""
    answer = await post(region, "/v1/embeddings", {"model": EMBEDDER, "input": []})
    expect(answer.status_code in (400, 422), f"{answer.status_code}: {answer.text}")


@case(INFINITY)
async def rerank(region: Region) -> None:
    """POST /v1/rerank reaches the server, which responds that the tiny model only computes embeddings."""
    answer = await post(region, "/v1/rerank", {"model": EMBEDDER, "query": "a", "documents": ["b", "c"]})
    expect(answer.status_code == 400 and "rerank" in answer.text, f"{answer.status_code}: {answer.text}")


def gguf_chat(**fields: object) -> dict[str, Any]:
    """A chat request to llama.cpp."""
    return {
        "model": GGUF,
        "messages": [{"role": "user", "content": "Rivers"}],
        "max_tokens": 24,
        "temperature": 0,
    } | fields


@case(LLAMA_CPP)
async def chat(region: Region) -> None:
    """A chat of llama.cpp is served, streamed and whole."""
    whole = await post(region, "/v1/chat/completions", gguf_chat())
    expect(whole.status_code == 200, f"{whole.status_code}: {whole.text}")
    text = whole.json()["choices"][0]["message"]["content"]
    streamed = (await post(region, "/v1/chat/completions", gguf_chat(stream=True))).text
    events = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: ")]
    expect(events[-1] == "[DONE]", f"the stream ends with {events[-1]}")
    parts = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    expect("".join(parts) == text, f"streamed {''.join(parts)!r}, whole {text!r}")


@case(LLAMA_CPP)
async def chats_at_once(region: Region) -> None:
    """Streams to an engine that runs one at a time wait in the agent, and none is interrupted."""
    answers = await asyncio.gather(
        *(post(region, "/v1/chat/completions", gguf_chat(stream=True, max_tokens=50)) for _ in range(4))
    )
    expect({answer.status_code for answer in answers} == {200}, f"{sorted(answer.status_code for answer in answers)}")
    ends = [answer.text.rstrip().endswith("data: [DONE]") and '"finish_reason": "' in answer.text for answer in answers]
    expect(all(ends), f"{ends.count(False)} of 4 streams were interrupted")
