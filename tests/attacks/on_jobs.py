"""Attacks by a tenant on the files, batches, jobs and webhooks of others."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import httpx

from tests.attacks.fleet import SMALL, Fleet, key_of, within
from tests.attacks.suite import attack, expect
from tests.support.admin_keys import ADMIN_HEADERS
from tests.support.sockets import RawClient

AGENT = "eu-es/a"
CHAT = "/v1/chat/completions"
SECRET = "a secret of the victim"
BODY = {"model": SMALL, "messages": [{"role": "user", "content": SECRET}], "user": "victim"}
ENDED = ("completed", "failed", "expired", "cancelled")


async def call(fleet: Fleet, tenant: str, method: str, path: str, **options: object) -> httpx.Response:
    """Send a request with the key of a tenant."""
    headers = {**key_of(tenant), **options.pop("headers", {})}  # type: ignore[dict-item]
    url = f"http://{fleet.address(AGENT)}{path}"
    return await fleet.http.request(method, url, headers=headers, **options)  # type: ignore[arg-type]


async def upload(fleet: Fleet, tenant: str) -> str:
    """Upload a file with one request; returns its identifier."""
    line = json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": BODY}).encode()
    files = {"file": ("input.jsonl", line)}
    uploaded = await call(fleet, tenant, "POST", "/v1/files", data={"purpose": "batch"}, files=files)
    expect(uploaded.status_code == 200, f"the upload got {uploaded.status_code}: {uploaded.text}")
    return str(uploaded.json()["id"])


async def ended(fleet: Fleet, path: str) -> dict[str, object]:
    """Wait for the end of a job of the victim, and return it."""
    found: dict[str, object] = {}

    async def is_ended() -> bool:
        found.update((await call(fleet, "victim", "GET", path)).json())
        return found.get("status") in ENDED or found.get("processing_status") == "ended"

    expect(await within(40.0, is_ended), f"{path} has not ended: {found}")
    return found


@attack("49.1")
async def jobs_of_another_tenant(fleet: Fleet) -> None:
    """A tenant tries to read, cancel and delete another tenant's files, batches, jobs and results.

    Each attempt is answered as if they did not exist, by identifier, by path, by list, by the same Idempotency-Key and
    as the input of a batch; the other tenant still has all of it.
    """
    file = await upload(fleet, "victim")
    new = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    batch = str((await call(fleet, "victim", "POST", "/v1/batches", json=new)).json()["id"])
    key = {"prefer": "respond-async", "idempotency-key": "night-1"}
    job = str((await call(fleet, "victim", "POST", CHAT, json=BODY, headers=key)).json()["id"])
    done, _ = await ended(fleet, f"/v1/batches/{batch}"), await ended(fleet, f"/v1/jobs/{job}")
    output = str(done["output_file_id"])
    text = (await call(fleet, "victim", "GET", f"/v1/files/{output}/content")).text
    expect('"custom_id":"a"' in text, f"the victim has no result: {text[:200]}")
    new_upload = {"filename": "f", "purpose": "batch", "bytes": 5, "mime_type": "text/jsonl"}
    upload_id = str((await call(fleet, "victim", "POST", "/v1/uploads", json=new_upload)).json()["id"])
    attempts = [
        *((method, f"/v1/files/{each}") for each in (file, output) for method in ("GET", "DELETE")),
        *(("GET", f"/v1/files/{each}/{end}") for each in (file, output) for end in ("content", "urls")),
        ("GET", f"/v1/jobs/{job}/urls"),
        ("GET", f"/v1/batches/{batch}"),
        ("POST", f"/v1/batches/{batch}/cancel"),
        ("GET", f"/v1/messages/batches/{batch}/results"),
        ("GET", f"/v1/messages/batches/{batch.replace('batch_', 'msgbatch_')}/results"),
        ("GET", f"/v1/uploads/{upload_id}"),
        ("POST", f"/v1/uploads/{upload_id}/cancel"),
        ("POST", f"/v1/uploads/{upload_id}/complete"),
        ("POST", f"/v1/uploads/{upload_id}/urls"),
        *((method, f"/v1/jobs/{each}") for each in (job, batch) for method in ("GET", "DELETE")),
        *(("GET", f"/v1/jobs/{each}/{part}") for each in (job, batch) for part in ("result", "events")),
        *(
            ("GET", f"/v1/{kind}/{quote(f'../../victim/{kind}/{each}', safe='')}{end}")
            for kind, each, end in (("files", file, "/content"), ("jobs", job, "/result"), ("batches", batch, ""))
        ),
        ("GET", f"/v1/files/{file}%00/content"),
        ("GET", f"/v1/files/{file.upper()}/content"),
    ]
    for method, path in attempts:
        body = {"json": {"part_ids": ["x"], "parts": 1}} if "/uploads/" in path else {}
        answer = await call(fleet, "attacker", method, path, **body)
        expect(answer.status_code == 404, f"{method} {path} got {answer.status_code}: {answer.text[:200]}")
        expect(SECRET not in answer.text, f"{method} {path} has the victim's text")
    for path in ("/v1/files", "/v1/batches", "/v1/jobs", f"/v1/files?after={file[:-1]}z", "/v1/jobs?after=job_g"):
        listed = await call(fleet, "attacker", "GET", path)
        expect(not any(each in listed.text for each in (file, output, batch, job)), f"{path} lists {listed.text}")
    taken = await call(fleet, "attacker", "POST", "/v1/batches", json=new)
    expect(taken.status_code == 404, f"a batch of another tenant's file got {taken.status_code}: {taken.text}")
    again = await call(fleet, "attacker", "POST", CHAT, json=BODY, headers=key)
    expect(again.status_code == 202 and again.json()["id"] != job, f"the same key got {again.text}")
    expect((await call(fleet, "victim", "GET", f"/v1/files/{file}/content")).status_code == 200, "the file is gone")
    expect((await call(fleet, "victim", "GET", f"/v1/jobs/{job}/result")).status_code == 200, "the result is gone")


@attack("49.2")
async def webhooks_to_the_inside(fleet: Fleet) -> None:
    """A tenant names loopback, private and metadata addresses as the receiver of webhooks, also by a name.

    Addresses are refused at once, and a name that resolves to one is not connected to. The secrets of two tenants
    differ.
    """
    connections = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    admin = fleet.address(AGENT, "admin")
    async with server:
        for host in (f"127.0.0.1:{port}", str(admin), "169.254.169.254", "10.0.0.1", "[::1]", "[::ffff:a9fe:a9fe]"):
            for scheme in ("http", "https"):
                headers = {"prefer": "respond-async", "x-webhook-url": f"{scheme}://{host}/x"}
                answer = await call(fleet, "attacker", "POST", CHAT, json=BODY, headers=headers)
                expect(answer.status_code == 400, f"{scheme}://{host} got {answer.status_code}: {answer.text[:200]}")
        jobs = []
        for host in ("localhost", "127.1", "2130706433", "0x7f000001"):
            headers = {"prefer": "respond-async", "x-webhook-url": f"https://{host}:{port}/x"}
            answer = await call(fleet, "attacker", "POST", CHAT, json=BODY, headers=headers)
            if answer.status_code == 202:
                jobs.append(answer.json()["id"])
        expect(jobs, "no webhook by a name was accepted, so that nothing is shown")

        async def are_refused() -> bool:
            metrics = await fleet.http.get(f"http://{admin}/metrics", headers=ADMIN_HEADERS)
            found = [line for line in metrics.text.splitlines() if 'webhooks_total{outcome="failed"}' in line]
            return bool(found) and float(found[0].split()[-1]) >= len(jobs)

        expect(await within(40.0, are_refused), "the agent has not attempted the webhooks")
        expect(connections == 0, f"the agent connected {connections} times to a loopback address")
    secrets = {
        (await call(fleet, name, "GET", "/v1/webhooks/secret")).json()["secret"] for name in ("victim", "attacker")
    }
    expect(len(secrets) == 2, "two tenants have one secret")


@attack("49.3")
async def slow_uploads_of_files(fleet: Fleet) -> None:
    """A tenant begins more uploads of files than an agent receives at a time, and ends none.

    Another tenant's file is received meanwhile.
    """
    clients = []
    try:
        for _ in range(20):
            client = await RawClient.connect(fleet.address(AGENT))
            client.send(
                b"POST /v1/files HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer key-attacker\r\n"
                b"Content-Type: multipart/form-data; boundary=B\r\nContent-Length: 900000\r\n\r\n"
                b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + b" " * 300_000
            )
            clients.append(client)
        await asyncio.sleep(1.0)
        await upload(fleet, "victim")
    finally:
        for client in clients:
            client.close()
