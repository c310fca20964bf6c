"""A ComfyUI without models: prompts in a queue that runs one at a time, history, files, interruption, as documented."""

from __future__ import annotations

import asyncio
import json
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

from tests.support.sockets import ReceivedRequest, ScriptedEngine

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4


def workflow(*class_types: str) -> dict[str, Any]:
    """A prompt with a node of each class: `SaveImage`, `PreviewImage`, `Wait` (until released), `Fail`."""
    return {"prompt": {str(number): {"class_type": name, "inputs": {}} for number, name in enumerate(class_types)}}


class ComfyUi:
    """The server; `script` answers requests, and `run` executes the queue."""

    def __init__(self, *, targets_interrupts: bool = True) -> None:
        self.targets_interrupts = targets_interrupts
        """Whether `/interrupt` applies to the prompt that it names, as since 2025, or to whatever runs."""
        self.failing_queues = 0
        """Number of requests for the queue that fail."""
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
            outputs, error = await self._execute(self.running[2])
            names = ["execution_start", error or "execution_success"]
            status = {
                "status_str": "error" if error else "success",
                "completed": not error,
                "messages": [[name, {"prompt_id": self.running[1]}] for name in names],
            }
            self.history[self.running[1]] = {"prompt": list(self.running), "outputs": outputs, "status": status}
            self.running = None

    async def _execute(self, prompt: dict[str, Any]) -> tuple[dict[str, Any], str]:
        outputs: dict[str, Any] = {}
        for node, fields in prompt.items():
            match fields["class_type"]:
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
                    file = {"filename": f"out {node}.png", "subfolder": "a/b"}
                    outputs[node] = {"images": [file | {"type": "output" if kind == "SaveImage" else "temp"}]}
        return outputs, ""

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
            case "GET", ["history", prompt_id]:
                found = self.history.get(prompt_id)
                body = json.dumps({} if found is None else {prompt_id: found}).encode()
            case "GET" | "HEAD", ["view"]:
                self.viewed.append(target.decode())
                asked = {name: values[0] for name, values in parse_qs(query).items()}
                known = asked["filename"].startswith("out ") and asked["subfolder"] == "a/b"
                kind, body, status = "image/png", PNG if known else b"", 200 if known else 404
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
