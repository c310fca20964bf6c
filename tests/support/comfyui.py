"""A ComfyUI without models: prompts in a queue that runs one at a time, history, files, interruption, as documented.

It sends messages to the WebSocket of the client whose prompt runs.

Messages and their order: main.py, execution.py and comfy_execution/progress.py of ComfyUI.
"""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64encode
from email.parser import BytesParser
from email.policy import HTTP
from hashlib import sha1
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

from tests.support.sockets import ReceivedRequest, ScriptedEngine

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4


def workflow(*class_types: str) -> dict[str, Any]:
    """A prompt with a node of each class: `SaveImage`, `PreviewImage`, `Wait` (until released), `Steps` (half of them
    before that), `Fail`."""
    return {"prompt": {str(number): {"class_type": name, "inputs": {}} for number, name in enumerate(class_types)}}


def frame(opcode: int, payload: bytes) -> bytes:
    """A whole message as a server sends it."""
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7f" + size.to_bytes(8, "big")
    return bytes([0x80 | opcode]) + length + payload


class ComfyUi:
    """The server; `script` answers requests, and `run` executes the queue."""

    def __init__(self, *, targets_interrupts: bool = True) -> None:
        self.targets_interrupts = targets_interrupts
        """Whether `/interrupt` applies to the prompt that it names, as since 2025, or to whatever runs."""
        self.failing_queues = 0
        """Number of requests for the queue that fail."""
        self.refuses_sockets = False
        self.sockets: dict[str, asyncio.StreamWriter] = {}
        """The WebSockets by client."""
        self.histories_asked = 0
        self.pending: list[tuple[int, str, dict[str, Any], str]] = []
        self.running: tuple[int, str, dict[str, Any], str] | None = None
        self.history: dict[str, Any] = {}
        self.clients: list[str] = []
        self.viewed: list[str] = []
        """Targets of requests for files."""
        self.inputs: dict[str, bytes] = {}
        """Uploaded images by the name that nodes use."""
        self.loaded: list[bytes] = []
        """Images that nodes have loaded."""
        self.tokens: list[str | None] = []
        self.folders: set[str] = set()
        """Folders of saved files."""
        self.content = PNG
        """Content of all files."""
        self.release = asyncio.Event()
        self._interrupted = asyncio.Event()
        self._more = asyncio.Event()

    async def run(self) -> None:
        """Execute prompts in their order."""
        while True:
            while not self.pending:
                self._more.clear()
                await self._more.wait()
            self.running = self.pending.pop(0)
            self._interrupted.clear()
            self._send_status()
            outputs, error = await self._execute(self.running)
            names = ["execution_start", error or "execution_success"]
            status = {
                "status_str": "error" if error else "success",
                "completed": not error,
                "messages": [[name, {"prompt_id": self.running[1]}] for name in names],
            }
            _, prompt_id, _, client = self.running
            self._send(client, names[1], {"prompt_id": prompt_id})
            self.history[prompt_id] = {"prompt": list(self.running), "outputs": outputs, "status": status}
            self.running = None
            self._send_status()
            self._send(client, "executing", {"node": None, "prompt_id": prompt_id})

    def _send(self, client: str, event: str, data: dict[str, Any]) -> None:
        if client in self.sockets:
            self.sockets[client].write(frame(1, json.dumps({"type": event, "data": data}).encode()))

    def _send_status(self) -> None:
        remaining = len(self.pending) + (self.running is not None)
        for client in self.sockets:
            self._send(client, "status", {"status": {"exec_info": {"queue_remaining": remaining}}})

    def _send_states(self, client: str, prompt_id: str, states: dict[str, tuple[str, float, float]]) -> None:
        nodes = {
            node: {"value": value, "max": maximum, "state": state, "node_id": node, "prompt_id": prompt_id}
            for node, (state, value, maximum) in states.items()
        }
        self._send(client, "progress_state", {"prompt_id": prompt_id, "nodes": nodes})

    async def _execute(self, entry: tuple[int, str, dict[str, Any], str]) -> tuple[dict[str, Any], str]:
        _, prompt_id, prompt, client = entry
        outputs: dict[str, Any] = {}
        states: dict[str, tuple[str, float, float]] = {}
        self._send(client, "execution_start", {"prompt_id": prompt_id})
        self._send(client, "execution_cached", {"nodes": [], "prompt_id": prompt_id})
        for node, fields in prompt.items():
            self._send(client, "executing", {"node": node, "display_node": node, "prompt_id": prompt_id})
            states[node] = ("running", 0.0, 1.0)
            self._send_states(client, prompt_id, states)
            match fields["class_type"]:
                case "Steps":
                    states[node] = ("running", 10, 20)
                    self._send_states(client, prompt_id, states)
                    self._send(client, "progress", {"value": 10, "max": 20, "prompt_id": prompt_id, "node": node})
                    if client in self.sockets:
                        # A preview image, which is larger than any text message that is read.
                        self.sockets[client].write(frame(2, b"\0\0\0\1" + bytes(300_000)))
                    await self.release.wait()
                case "Wait":
                    waits = [asyncio.create_task(event.wait()) for event in (self.release, self._interrupted)]
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    for wait in waits:
                        wait.cancel()
                    if self._interrupted.is_set():
                        return outputs, "execution_interrupted"
                case "LoadImage":
                    content = self.inputs.get(fields["inputs"]["image"])
                    if content is None:
                        return outputs, "execution_error"
                    self.loaded.append(content)
                case "Fail":
                    return outputs, "execution_error"
                case kind:
                    folder = os.path.dirname(fields["inputs"].get("filename_prefix", "a/b/"))
                    file = {"filename": f"out {node}.png", "subfolder": folder}
                    self.folders.add(folder)
                    outputs[node] = {"images": [file | {"type": "output" if kind == "SaveImage" else "temp"}]}
                    executed = {"node": node, "display_node": node, "output": outputs[node], "prompt_id": prompt_id}
                    self._send(client, "executed", executed)
            states[node] = ("finished", 1.0, 1.0)
            self._send_states(client, prompt_id, states)
        return outputs, ""

    async def _serve_socket(self, client: str, key: str, writer: asyncio.StreamWriter) -> None:
        accept = b64encode(sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
        writer.write(
            f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        self.sockets[client] = writer
        try:
            self._send_status()
            await asyncio.Event().wait()
        finally:
            del self.sockets[client]

    async def script(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        method, target = received.head.split(b" ", 2)[:2]
        path, _, query = target.decode().partition("?")
        self.tokens.append(received.header("authorization"))
        kind, body, status = "application/json", b"", 200
        match method.decode(), path.rstrip("/").split("/")[1:]:
            case "POST", ["prompt"]:
                status, answer = self._submit(json.loads(received.body))
                body = json.dumps(answer).encode()
            case "POST", ["upload", "image"]:
                status, answer = self._upload(received)
                body = json.dumps(answer).encode()
            case "GET", ["queue"] if self.failing_queues > 0:
                self.failing_queues -= 1
                body, status = b"{}", 503
            case "GET", ["queue"]:
                running = [] if self.running is None else [list(self.running)]
                entries = {"queue_running": running, "queue_pending": [list(each) for each in self.pending]}
                body = json.dumps(entries).encode()
            case "POST", ["queue"]:
                removed = json.loads(received.body)["delete"]
                self.pending = [each for each in self.pending if each[1] not in removed]
            case "POST", ["interrupt"]:
                named = json.loads(received.body or b"{}").get("prompt_id")
                if not self.targets_interrupts or (self.running is not None and named == self.running[1]):
                    self._interrupted.set()
            case "GET", ["ws"] if not self.refuses_sockets:
                assert received.header("sec-websocket-version") == "13"
                client, key = parse_qs(query)["clientId"][0], received.header("sec-websocket-key")
                assert key is not None
                await self._serve_socket(client, key, writer)
                return
            case "GET", ["ws"]:
                status = 404
            case "GET", ["history", prompt_id]:
                self.histories_asked += 1
                found = self.history.get(prompt_id)
                body = json.dumps({} if found is None else {prompt_id: found}).encode()
            case "GET" | "HEAD", ["view"]:
                self.viewed.append(target.decode())
                asked = {name: values[0] for name, values in parse_qs(query).items()}
                known = asked["filename"].startswith("out ") and asked["subfolder"] in self.folders
                kind, body, status = "image/png", self.content if known else b"", 200 if known else 404
            case _:
                pass
        head = f"HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + (b"" if method == b"HEAD" else body))

    def _upload(self, received: ReceivedRequest) -> tuple[int, dict[str, Any]]:
        kind = received.header("content-type") or ""
        message = BytesParser(policy=HTTP).parsebytes(f"content-type: {kind}\r\n\r\n".encode() + received.body)
        parts = {part.get_param("name", header="content-disposition"): part for part in message.iter_parts()}
        name, folder = parts["image"].get_filename(), parts["subfolder"].get_content().strip()
        assert parts["overwrite"].get_content().strip() == "false"
        self.inputs[f"{folder}/{name}"] = parts["image"].get_payload(decode=True)
        return 200, {"name": name, "subfolder": folder, "type": "input"}

    def _submit(self, prompt: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        unknown = [node for node, fields in prompt["prompt"].items() if "class_type" not in fields]
        if unknown or not prompt["prompt"]:
            error = {"type": "prompt_no_outputs", "message": "Prompt has no outputs", "details": "", "extra_info": {}}
            return 400, {"error": error, "node_errors": {}}
        prompt_id = str(prompt.get("prompt_id", uuid4()))
        self.clients.append(prompt["client_id"])
        self.pending.append((len(self.clients), prompt_id, prompt["prompt"], prompt["client_id"]))
        self._more.set()
        return 200, {"prompt_id": prompt_id, "number": len(self.clients), "node_errors": {}}
