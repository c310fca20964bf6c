"""What policy says of senders and their places, as clients meet it on the wire."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import msgspec
import pytest

from penstock.geography import Location
from penstock.policy import EntryMap, ResidencyRule
from regional_agent.carry.access_log import AccessLog
from tests.agents import Agent, agent
from tests.planet import MODEL
from tests.sockets import Heard, RawClient, ScriptedEngine, engine, post

BODY = json.dumps({"model": MODEL, "messages": []}).encode()
JSON_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"ok": 1}'


async def answers(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.write(JSON_ANSWER)


async def ask(one: Agent, *headers: str, body: bytes = BODY) -> tuple[int, dict[str, str], bytes]:
    client = await RawClient.connect(one.traffic)
    client.say(post(body, *headers))
    answer = await client.answer()
    client.close()
    return answer


async def test_what_is_logged_of_a_client_is_its_country_and_where_it_came_in(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    log = AccessLog(file, 1.0, Random(1))
    async with (
        engine(answers) as gpu,
        agent(tmp_path / "serving", [gpu.address], access_log=log) as serving,
        agent(tmp_path / "origin", [], region="eu-es", peers={"eu-de": serving.peer}, access_log=log) as origin,
    ):
        origin.knowing.location = Location("US", "CA", 34.0, -118.2)
        assert (await ask(origin))[0] == 200
    log.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(line["kind"] for line in lines) == ["failover", "forwarded"]
    assert {(line["origin"], line["country"], line["subdivision"]) for line in lines} == {("eu-es", "US", "CA")}


@pytest.mark.parametrize(
    ("location", "status", "code"),
    [
        (Location("US", "CA"), 421, "misdirected"),
        (Location("US", "NY"), 200, None),
        (Location("FR"), 200, None),
        (Location("US"), 451, "location_unknown"),
        (Location(), 451, "location_unknown"),
    ],
)
async def test_a_rule_by_subdivision(tmp_path: Path, location: Location, status: int, code: str | None) -> None:
    californians = ResidencyRule("californians", client_subdivisions=frozenset({"US-CA"}), allow=frozenset({"us-east"}))
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address]) as one:
        directives = one.knowing.directives
        directives.policy = msgspec.structs.replace(directives.policy, residency=(californians,))
        one.knowing.location = location
        answer = await ask(one)
    assert answer[0] == status
    if code is not None:
        assert json.loads(answer[2])["error"]["code"] == code


async def test_a_client_at_the_wrong_door_is_sent_by_its_map(tmp_path: Path) -> None:
    away = ResidencyRule("away", client_countries=frozenset({"DE"}), deny=frozenset({"eu-de"}))
    by_sea = EntryMap("by-sea", frozenset({"DE"}), frozenset(), ("us-east",))
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address]) as one:
        directives = one.knowing.directives
        directives.policy = msgspec.structs.replace(directives.policy, residency=(away,), entry_maps=(by_sea,))
        one.knowing.location = Location("DE")
        status, headers, _ = await ask(one)
    assert (status, headers["x-penstock-regions"]) == (421, "us-east,eu-es")
