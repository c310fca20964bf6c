"""Attacks through realtime WebSockets: keys that engines could learn, and models that messages name."""

from __future__ import annotations

import asyncio
import json

from regional_agent.websocket.websocket_frames import BINARY, CONTINUATION
from tests.attacks.fleet import SMALL, Fleet, within
from tests.attacks.suite import attack, expect
from tests.support.sockets import RawClient
from tests.support.websockets import frame

HOSTILE = json.dumps({"type": "session.update", "session": {"model": "hostile"}}).encode()
PLAIN = b"\0\0\0\0"
"""A masking key that leaves the payload as it is, so that it could be read at the engine."""

FRAMES = (
    frame(HOSTILE, mask=PLAIN),
    frame(HOSTILE, BINARY, mask=PLAIN),
    frame(HOSTILE.replace(b"model", b"mod\\u0065l"), mask=PLAIN),
    frame(HOSTILE.replace(b'session"', b'Session"'), mask=PLAIN),
    frame(b'{"session": {"model": "' + SMALL.encode() + b'", "model": "hostile"}}', mask=PLAIN),
    frame(HOSTILE[:20], final=False, mask=PLAIN) + frame(HOSTILE[20:], CONTINUATION, mask=PLAIN),
    frame(HOSTILE.decode().encode("utf-16"), BINARY, mask=PLAIN),
    frame(HOSTILE, mask=b""),
    frame(HOSTILE, mask=PLAIN, reserved=0x40),
    frame(b'{"a": "' + b"x" * 70_000 + b'", "model": "hostile"}', mask=PLAIN),
)


@attack("31")
async def models_in_messages(fleet: Fleet) -> None:
    """A tenant names a model that does not exist in messages of a WebSocket, in ten ways.

    The engine never receives the name, nor the tenant's key, which a browser sends as a subprotocol.
    """
    engine = fleet.engines["eu-de"]
    engine.reset()
    clients = []
    try:
        for number, data in enumerate(FRAMES):
            client = await RawClient.connect(fleet.address("eu-de/a"))
            clients.append(client)
            client.send(
                f"GET /v1/realtime?model={SMALL} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.key-attacker\r\n\r\n".encode()
            )
            status, headers = await client.head()
            expect(status == 101, f"the tunnel began with {status}")
            expect(headers.get("sec-websocket-protocol") == "realtime", "the subprotocol was not selected")
            done = f"done-{number}".encode()
            client.send(data + frame(b'{"type": "%b"}' % done, mask=PLAIN))

            # Ends with the tunnel, whether the agent closes or resets the connection.
            ending = asyncio.create_task(client.reader.read())

            async def processed(done: bytes = done, ending: asyncio.Task[bytes] = ending) -> bool:
                return done in engine.tunnelled or ending.done()

            expect(await within(10.0, processed), f"the message {number} was not processed")
            expect(b"hostile" not in engine.tunnelled, f"the engine received the message {number}")
            client.close()
            await asyncio.gather(ending, return_exceptions=True)
        wide = "hostile".encode("utf-16-le")
        expect(wide not in engine.tunnelled, "the engine received the name in UTF-16")
        expect(b"key-attacker" not in engine.tunnelled, "the engine received the key")
        expect(engine.tunnelled.count(b"/v1/realtime") == len(FRAMES), "tunnels reached another engine")
    finally:
        for client in clients:
            client.close()
