"""A workflow of ComfyUI as one request: the agent operates prompt, queue, history and files."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.converters.comfyui import BadWorkflow
from penstock.converters.comfyui_input_images import MAX_IMAGE_BYTES, NO_CONTENT, InputImage
from penstock.converters.long_texts import MAX_REST_BYTES, MIN_LONG_BYTES, PIECE_BYTES
from penstock.planning.plan import RegionPlan
from penstock.routes.presets.preset_registry import preset_routes
from penstock.routes.route import Timeouts
from regional_agent.converters import comfyui_run, converted_connection
from regional_agent.converters.comfyui_run import _in_turns as in_turns
from regional_agent.converters.image_fetch import ImageFetch
from regional_agent.http.limits import Limits
from regional_agent.jobs.async_requests import request_run
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.integration.test_async_requests import ended, until_shown
from tests.integration.test_objects import request
from tests.support import comfyui
from tests.support.agents import Agent, running_agent
from tests.support.certificates import make_authority, make_certificate
from tests.support.chats import ask
from tests.support.comfyui import PNG, ComfyUi, frame, workflow
from tests.support.jobs import JobClient, job_store
from tests.support.planet import MODEL, plan
from tests.support.small_http import Headers, SmallHttp
from tests.support.sockets import Answer, RawClient, engine, post
from tests.support.wait import PATIENCE_S, until

ROUTES = preset_routes("comfyui", MODEL)
WAIT = "/prompt/wait"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for the history and the queue often."""
    monkeypatch.setattr(comfyui_run, "MAX_POLL_S", 0.05)
    monkeypatch.setattr(comfyui_run, "POLLS_PER_QUEUE", 1)


@asynccontextmanager
async def serving(tmp_path: Path, comfy: ComfyUi, **fields: Any) -> AsyncIterator[Agent]:
    """An agent in front of a ComfyUI."""
    executor = asyncio.create_task(comfy.run())
    try:
        async with engine(comfy.script) as gpu, running_agent(tmp_path, [gpu.address], queue=0, **fields) as agent:
            agent.config.policy = replace(agent.config.policy, routes=ROUTES)
            yield agent
    finally:
        executor.cancel()


async def run(agent: Agent, *class_types: str, query: str = "") -> Answer:
    return await ask(agent, body=json.dumps(workflow(*class_types)).encode(), path=WAIT + query)


async def send(agent: Agent, *class_types: str) -> RawClient:
    client = await RawClient.connect(agent.traffic)
    client.send(post(json.dumps(workflow(*class_types)).encode(), path=WAIT))
    return client


async def test_a_workflow_is_one_request_with_its_images(tmp_path: Path) -> None:
    comfy = ComfyUi()
    async with serving(tmp_path, comfy) as agent:
        answer = await run(agent, "SaveImage", "PreviewImage", "SaveImage")
        assert answer.status == 200, answer.body
        found = json.loads(answer.body)
        assert [image["node"] for image in found["images"]] == ["0", "2"]
        assert [b64decode(image["b64_json"]) for image in found["images"]] == [PNG, PNG]
        assert found["images"][0]["content_type"] == "image/png"
        # The route of files finds the ComfyUI by the prompt.
        assert found["images"][0]["url"].endswith(f"&prompt_id={found['prompt_id']}")
        view = await request(agent, "GET", found["images"][0]["url"])
        assert (view.status, view.body) == (200, PNG)
        only = json.loads((await run(agent, "SaveImage", query="?images=url")).body)
        assert "b64_json" not in only["images"][0]
        # A client chooses neither the identifier, which could be that of another client, nor the place in the queue.
        body = json.dumps(workflow("SaveImage") | {"prompt_id": "x HTTP/1.1\r\n", "front": True, "number": -1}).encode()
        assert "x" not in json.loads((await ask(agent, body=body, path=WAIT)).body)["prompt_id"]
        for member in ("prompt_id", "front", "number"):
            chosen = json.dumps(workflow("SaveImage") | {"client_id": "c", member: 1}).encode()
            refused = await ask(agent, body=chosen, path="/prompt")
            assert (refused.status, member in json.loads(refused.body)["detail"]) == (400, True)
        image = await run(agent, "PreviewImage", query="?images=bytes")
        assert (image.status, image.headers["content-type"], image.body) == (200, "image/png", PNG)
        # Each workflow has a client of its own, since ComfyUI sends messages by client.
        assert len(set(comfy.clients)) == len(comfy.clients) == 4
        assert agent.counted()["ok"] == 5.0
        assert agent.held() == 0


def with_image(**image: str) -> bytes:
    """A workflow that loads an image of the request, and another string that looks like its name."""
    prompt = workflow("LoadImage", "SaveImage")
    prompt["prompt"]["0"]["inputs"] = {"image": "in.png", "note": "in.png!"}
    return json.dumps(prompt | {"input_images": {"in.png": image}}).encode()


async def test_input_images_of_the_request_are_uploaded_under_names_that_nobody_can_guess(tmp_path: Path) -> None:
    comfy = ComfyUi()
    async with serving(tmp_path, comfy) as agent:
        for _ in range(2):
            answer = await ask(agent, body=with_image(b64_json=b64encode(PNG).decode()), path=WAIT)
            assert answer.status == 200, answer.body
        assert comfy.loaded == [PNG, PNG]
        names = [re.fullmatch(r"penstock/[0-9a-f]{32}\.png", name) for name in comfy.inputs]
        assert (len(names), all(names)) == (2, True)
        for image, problem in (
            ({"b64_json": b64encode(b"<svg/>").decode()}, "no image"),
            ({"b64_json": "?"}, "not base64"),
            ({"url": "http://images.example/in.png"}, "must begin with https://"),
            ({"url": "https://169.254.169.254/in.png"}, "not public"),
            ({"url": f"https://localhost:{agent.traffic.port}/in.png"}, "not public"),
            ({"b64_json": "", "url": ""}, "either b64_json or url"),
        ):
            refused = await ask(agent, body=with_image(**image), path=WAIT)
            assert (refused.status, problem in json.loads(refused.body)["error"]["message"]) == (400, True), problem
        unused = json.dumps(workflow("SaveImage") | {"input_images": {"in.png": {"url": "https://x/"}}}).encode()
        assert (await ask(agent, body=unused, path=WAIT)).status == 400
        assert len(comfy.inputs) == 2
        assert agent.held() == 0


async def test_files_are_saved_in_folders_that_nobody_can_guess(tmp_path: Path) -> None:
    comfy = ComfyUi()
    async with serving(tmp_path, comfy) as agent:
        prompt = workflow("SaveImage")
        prompt["prompt"]["0"]["inputs"] = {"filename_prefix": "mine/a"}
        for _ in range(2):
            answer = await ask(agent, body=json.dumps(prompt).encode(), path=WAIT)
            (image,) = json.loads(answer.body)["images"]
            assert (image["filename"], b64decode(image["b64_json"])) == ("out 0.png", PNG)
            assert (await request(agent, "GET", image["url"])).body == PNG
        assert all(re.fullmatch("penstock/[0-9a-f]{32}/mine", folder) for folder in comfy.folders)
        assert len(comfy.folders) == 2


async def test_large_images_are_decoded_and_encoded_in_turns_with_other_work(tmp_path: Path) -> None:
    comfy, large, turns = ComfyUi(), PNG + bytes(range(256)) * 4000, list[int]()
    comfy.content = large
    turn = 0

    async def other() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def noted(pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            turns.append(turn)
            yield piece

    task = asyncio.create_task(other())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comfyui_run, "_in_turns", lambda pieces: in_turns(noted(pieces)))
        async with serving(tmp_path, comfy, limits=Limits(idle_linger_s=0.0)) as agent:
            encoded = json.dumps(b64encode(large).decode()).encode().replace(b"/", b"\\/").replace(b"=", b"\\u003d")
            body = with_image(b64_json="IMAGE").replace(b'"IMAGE"', encoded)
            body = body.replace(b"in.png!", b"n" * MIN_LONG_BYTES)
            answer = await ask(agent, body=body, path=WAIT)
            assert answer.status == 200, answer.body
            assert comfy.loaded == [large]
            ((_, _, prompt, _),) = (each["prompt"] for each in comfy.history.values())
            assert prompt["0"]["inputs"]["note"] == "n" * MIN_LONG_BYTES
            assert b64decode(json.loads(answer.body)["images"][0]["b64_json"]) == large
            refused = await ask(agent, body=body + b" " * MAX_REST_BYTES, path=WAIT)
            assert (refused.status, "images by URL" in json.loads(refused.body)["error"]["message"]) == (400, True)
            assert agent.held() == 0
    task.cancel()
    assert len(turns) == 2 * -(-len(large) * 4 // 3 // PIECE_BYTES)
    assert all(before < after for before, after in pairwise(turns))


async def test_an_input_image_is_fetched_from_a_checked_address_without_redirects(tmp_path: Path) -> None:
    make_authority(tmp_path / "ca", "ours")
    certificate = make_certificate(tmp_path / "ca", "ours", "images")
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
    trusted = partial(ssl.create_default_context, cafile=str(tmp_path / "ca/ours.pem"))
    hosts: list[str] = []

    def images(method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        hosts.append(dict(headers)[b"host"].decode())
        return {b"/in.png?a=b": (200, PNG), b"/moved": (302, b"")}.get(target, (200, b"x" * (MAX_IMAGE_BYTES + 1)))

    server = SmallHttp(images)
    server._tls = server_tls
    await server.start()

    async def resolved(host: str, port: int) -> list[str]:
        return {"localhost": ["127.0.0.1"], "two.example": ["127.0.0.1", "10.0.0.1"]}.get(host, [])

    fetch = ImageFetch(resolved, partial(UpstreamPool, trusted), lambda address: address == "127.0.0.1")

    async def content(url: str) -> bytes:
        return await fetch.content(InputImage("in.png", NO_CONTENT, url))

    try:
        assert await content(f"https://localhost:{server.port}/in.png?a=b") == PNG
        assert hosts == [f"localhost:{server.port}"]
        for url, problem in (
            (f"https://localhost:{server.port}/moved", "status 302"),
            (f"https://localhost:{server.port}/large", "TooLarge"),
            (f"https://two.example:{server.port}/in.png", "not public"),
            (f"https://none.example:{server.port}/in.png", "or none"),
        ):
            with pytest.raises(BadWorkflow, match=problem):
                await content(url)
        with pytest.raises(BadWorkflow, match="cannot be fetched"):
            await ImageFetch(resolved, is_permitted=lambda address: True).content(
                InputImage("in.png", NO_CONTENT, f"https://localhost:{server.port}/in.png?a=b")
            )
    finally:
        await server.stop()


async def test_only_files_of_the_named_prompt_are_read(tmp_path: Path) -> None:
    comfy = ComfyUi()
    async with serving(tmp_path, comfy) as agent:
        # Of another client: the name of its file is easily guessed.
        await run(agent, "PreviewImage", "PreviewImage", "SaveImage")
        answer = json.loads((await run(agent, "PreviewImage", "SaveImage", query="?images=url")).body)
        own, end = answer["images"][0]["url"], f"&prompt_id={answer['prompt_id']}"
        assert (await request(agent, "GET", own)).status == 200
        preview = f"/view?filename=out+0.png&subfolder=a%2Fb&type=temp{end}"
        assert (await request(agent, "GET", preview + "&preview=webp%3B90")).body == PNG
        before = len(comfy.viewed)
        for refused in (
            own.replace("+1.png", "+2.png"),
            own.replace("type=output", "type=temp"),
            own.replace("type=output", "type=input"),
            own.replace("%2Fb", "%2F.."),
            f"{own}&filename=out+2.png",
            f"/view?filename=out+2.png&{own.partition('?')[2]}",
            f"{own}&prompt%5Fid=other",
            own.replace("&type", ";type"),
            own.replace(end, ""),
            own.replace(end, f"&model={MODEL}"),
            own.replace(end, "&prompt_id=unknown"),
        ):
            assert (await request(agent, "GET", refused)).status == 404, refused
        client = await RawClient.connect(agent.traffic)
        for target, status in ((own, 200), (own.replace("+1.png", "+2.png"), 404)):
            client.send(f"HEAD {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert (await client.head())[0] == status
        assert len(comfy.viewed) == before + 1


async def test_a_workflow_occupies_its_slot_until_it_ends(tmp_path: Path) -> None:
    comfy = ComfyUi()
    comfy.failing_queues = 1
    async with serving(tmp_path, comfy, slots=1) as agent:
        client = await send(agent, "Wait", "SaveImage")
        await until(lambda: comfy.running is not None and comfy.failing_queues == 0)
        assert agent.held() == 1
        second = await send(agent, "SaveImage")
        await until(lambda: agent.waiting() == 1)
        comfy.release.set()
        assert [(await each.answer()).status for each in (client, second)] == [200, 200]
        await until(lambda: agent.held() == 0)


async def test_a_workflow_occupies_its_slot_until_its_client_has_received_the_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = PNG * 8000
    monkeypatch.setattr(comfyui, "PNG", image)
    transport, paused = converted_connection._ConverterTransport, asyncio.Event()
    pause = transport.pause_reading

    def pauses(self: converted_connection._ConverterTransport) -> None:
        paused.set()
        pause(self)

    monkeypatch.setattr(transport, "pause_reading", pauses)
    async with serving(tmp_path, ComfyUi()) as agent:
        client = await RawClient.connect(agent.traffic)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(post(json.dumps(workflow("SaveImage")).encode(), path=WAIT))
        # The rest of the response waits for the client.
        await asyncio.wait_for(paused.wait(), PATIENCE_S)
        assert agent.held() == 1
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        found = json.loads((await client.answer()).body)
        assert b64decode(found["images"][0]["b64_json"]) == image
        await until(lambda: agent.held() == 0)
        client.close()


async def test_errors_are_those_of_the_workflow_or_of_the_engine(tmp_path: Path) -> None:
    comfy = ComfyUi()
    async with serving(tmp_path, comfy) as agent:
        invalid = await ask(agent, body=b'{"prompt": {}}', path=WAIT)
        assert (invalid.status, json.loads(invalid.body)["error"]["type"]) == (400, "prompt_no_outputs")
        for body in (b'{"prompt": 7}', b"{}"):
            assert (await ask(agent, body=body, path=WAIT)).status == 400
        failed = await run(agent, "Fail")
        error = json.loads(failed.body)["error"]
        assert (failed.status, error["type"], error["details"][1][0]) == (422, "execution_error", "execution_error")
        # What a client's workflow causes is no fault of the endpoint.
        assert set(agent.counted()) == {"client_error"}
        client = await send(agent, "Wait")
        await until(lambda: comfy.running is not None)
        comfy._interrupted.set()
        assert (await client.answer()).status == 502
        client = await send(agent, "Wait")
        await until(lambda: comfy.running is not None)
        comfy.running = None
        lost = await client.answer()
        assert (lost.status, json.loads(lost.body)["error"]["type"]) == (502, "prompt_lost")


@pytest.mark.parametrize("targets_interrupts", [True, False])
async def test_a_client_that_leaves_ends_its_workflow_and_no_other(tmp_path: Path, targets_interrupts: bool) -> None:
    comfy = ComfyUi(targets_interrupts=targets_interrupts)
    async with serving(tmp_path, comfy) as agent:
        first, second, third = [await send(agent, "Wait", "SaveImage") for _ in range(3)]
        await until(lambda: comfy.running is not None and len(comfy.pending) == 2)
        waiting = [each[1] for each in comfy.pending]
        second.close()
        await until(lambda: [each[1] for each in comfy.pending] == waiting[1:])
        first.close()
        await until(lambda: comfy.running is not None and comfy.running[1] == waiting[1])
        await until(lambda: agent.held() == 1)
        comfy.release.set()
        assert (await third.answer()).status == 200
        assert agent.counted() == {"client_left": 2.0, "ok": 1.0}


async def test_a_workflow_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    comfy = ComfyUi()
    async with serving(tmp_path, comfy) as agent:
        limited = [replace(route, timeouts=Timeouts(first_byte_s=0.2)) for route in ROUTES if route.converter]
        routes = (*limited, *(route for route in ROUTES if not route.converter))
        agent.config.policy = replace(agent.config.policy, routes=routes)
        assert (await run(agent, "Wait")).status == 504
        await until(lambda: comfy.running is None and not comfy.pending)


@pytest.fixture
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for the history once, and again only when the WebSocket makes it necessary."""
    monkeypatch.setattr(comfyui_run, "POLL_GROWTH", 1e9)
    monkeypatch.setattr(comfyui_run, "MAX_WATCHED_POLL_S", 3600.0)


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize("kind", ["Wait", "Steps"])
async def test_the_websocket_shows_the_end_of_a_workflow(tmp_path: Path, kind: str) -> None:
    comfy = ComfyUi()
    async with serving(tmp_path, comfy) as agent:
        client = await send(agent, kind, "SaveImage")
        await until(lambda: list(comfy.sockets) == comfy.clients and comfy.histories_asked > 0)
        comfy.release.set()
        answer = await client.answer()
        # Only jobs receive interim responses.
        assert (answer.status, len(json.loads(answer.body)["images"])) == (200, 1)
        await until(lambda: not comfy.sockets)
        refused = await run(agent, "Fail")
        assert refused.status == 422


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize(
    ("sent", "is_closed_by"),
    [
        (b"", "engine"),
        (b"\x81\x7f" + b"\xff" * 8, "engine"),
        (frame(8, b"\x03\xe9"), "agent"),
        (frame(3, b"no opcode"), "agent"),
        (frame(9, b"ping") * 3000, "agent"),
    ],
    ids=["close", "endless message", "Close frame", "bad opcode", "many pings"],
)
async def test_a_workflow_ends_without_the_websocket(tmp_path: Path, sent: bytes, is_closed_by: str) -> None:
    comfy = ComfyUi()
    async with serving(tmp_path, comfy) as agent:
        client = await send(agent, "Wait", "SaveImage")
        await until(lambda: len(comfy.sockets) == 1 and comfy.histories_asked > 0)
        (socket,) = comfy.sockets.values()
        socket.write(sent)
        if is_closed_by == "engine":
            socket.close()
        await until(lambda: not comfy.sockets)
        comfy.release.set()
        assert (await client.answer()).status == 200
        comfy.refuses_sockets = True
        assert (await run(agent, "SaveImage")).status == 200
        assert agent.held() == 0


async def shows_progress(agent: Agent, comfy: ComfyUi) -> None:
    """Run a workflow as a job, whose progress is shown."""
    async with JobClient(agent.traffic) as client:
        body = workflow("SaveImage", "Steps", "SaveImage", "SaveImage")
        accepted = await client.http.post(WAIT, json=body, headers={"prefer": "respond-async"})
        job = accepted.json()["id"]
        shown = await until_shown(client, job, lambda found: (found["progress"] or {}).get("reported", 0))
        # One node of four is done, and half of the second one.
        assert (shown["status"], shown["progress"]) == ("in_progress", {"received_bytes": 0, "reported": 0.37})
        comfy.release.set()
        done = await ended(client, job)
        assert (done["status"], done["result"]["status_code"]) == ("completed", 200)


async def test_progress_of_a_workflow_reaches_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_run, "RENEW_S", 0.05)
    comfy = ComfyUi()
    async with serving(tmp_path, comfy, job_store=job_store(tmp_path / "jobs")) as agent:
        await shows_progress(agent, comfy)


async def test_progress_of_a_workflow_reaches_its_job_in_another_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_run, "RENEW_S", 0.05)
    comfy, store = ComfyUi(), job_store(tmp_path / "jobs")
    away: RegionPlan = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with serving(tmp_path / "there", comfy, region="eu-es") as server:
        peers = {"eu-es": server.peer}
        async with running_agent(tmp_path / "here", [], plan=away, peers=peers, job_store=store) as agent:
            agent.config.policy = replace(agent.config.policy, routes=ROUTES)
            agent.peers.batch_credits["eu-es"] = 1
            await shows_progress(agent, comfy)


async def test_a_workflow_runs_in_another_region_and_later(tmp_path: Path) -> None:
    comfy = ComfyUi()
    away: RegionPlan = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with serving(tmp_path / "there", comfy, region="eu-es") as server:
        peers = {"eu-es": server.peer}
        store = job_store(tmp_path / "jobs")
        async with running_agent(tmp_path / "here", [], plan=away, peers=peers, job_store=store) as agent:
            agent.config.policy = replace(agent.config.policy, routes=ROUTES)
            answer = await run(agent, "SaveImage")
            assert (answer.status, len(json.loads(answer.body)["images"])) == (200, 1)
            assert answer.headers["x-penstock-region"] == "eu-es"
            agent.peers.batch_credits["eu-es"] = 1
            async with JobClient(agent.traffic) as client:
                accepted = await client.http.post(WAIT, json=workflow("SaveImage"), headers={"prefer": "respond-async"})
                assert accepted.status_code == 202
                done = await ended(client, accepted.json()["id"])
                result = (await client.http.get(done["result"]["url"])).json()
                assert b64decode(result["images"][0]["b64_json"]) == PNG
