from pathlib import Path

from tests.integration.test_picker import (
    BODY,
    NOBODY,
    RawClient,
    engine,
    post,
    running_agent,
    running_envoy,
    running_picker,
    streams,
)


async def ask(front):
    client = await RawClient.connect(front)
    client.send(post(BODY))
    status, headers = await client.head()
    return status, headers.get("x-penstock-endpoint")


async def test_expA(tmp_path: Path, monkeypatch):
    async with (
        engine(streams) as other,
        running_agent(tmp_path / "agent", [NOBODY]) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [NOBODY, other.address]) as front,
    ):
        for _ in range(8):
            print("SINGLE DEAD", await ask(front), "other got", len(other.requests))


async def test_expB(tmp_path: Path, monkeypatch):
    async with (
        engine(streams) as other,
        engine(streams) as third,
        running_agent(tmp_path / "agent", [third.address]) as agent,
        running_picker(agent) as picker,
        running_envoy(tmp_path, picker, [other.address]) as front,
    ):
        print("NOT IN CLUSTER", await ask(front), "other got", len(other.requests))
