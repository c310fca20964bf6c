"""`penstock` as an operator runs it: its real executable against a real control plane on a real etcd."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from typer.testing import CliRunner

from adapters.access.callers import Caller, Role
from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.signed_store import SignedStore
from control_plane.audit.audit_log import AuditedAction, AuditLog
from control_plane.cli.main import app
from control_plane.status.query_responses import WhatIfResponse
from control_plane.status.status import Status
from lab.geoip import write_geoip
from penstock.planning.plan import RegionPlan
from penstock.planning.plan_history import PlanDiff, PlanSummary
from penstock.routing.explain import Explanation, RegionVerdict
from penstock.routing.steering import SteeringAdvice
from tests.support.control_planes import PLANET, TOKEN, Agents, ControlPlaneServer, Operator, control_planes
from tests.support.identities import control_plane_keyring
from tests.support.reports import MODEL, endpoint, offered
from tests.support.stores import put
from tests.support.tiers import planet_with_tiers
from tests.support.wait import PATIENCE_S

HAMBURG = "198.18.1.7"
EU = ("eu-de", "eu-es")


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Shell:
    """Runs `penstock` with a separate contexts file and an otherwise empty environment."""

    def __init__(self, directory: Path, server: ControlPlaneServer | None) -> None:
        self.server = server
        self.token_file = directory / "operator.token"
        self.token_file.write_text(TOKEN)
        self.environment: dict[str, str | None] = {name: None for name in os.environ if name.startswith("PENSTOCK_")}
        self.environment |= {"PENSTOCK_CONTEXTS_FILE": str(directory / "contexts.yaml"), "COLUMNS": "220"}

    async def __call__(self, *arguments: str) -> Done:
        """Run a command in this process, which is many times faster than the executable."""
        done = await asyncio.to_thread(CliRunner(env=self.environment).invoke, app, arguments, catch_exceptions=False)
        return Done(done.exit_code, done.stdout, done.stderr)

    async def executable(self, *arguments: str) -> Done:
        """Run the executable."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from control_plane.cli.main import main; main()",
            *arguments,
            env={name: value for name, value in (os.environ | self.environment).items() if value is not None},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def penstock(own_etcd: EtcdServer, tmp_path: Path) -> AsyncIterator[Shell]:
    """A fleet with reports and plans, and a context for it."""
    geoip = tmp_path / "geo.mmdb"
    write_geoip(geoip)
    settings = {"POLICY_DIR": str(planet_with_tiers(tmp_path / "policies")), "GEOIP_FILE": str(geoip)}
    with control_planes("a", tmp_path, own_etcd.endpoint, policy_settings=settings) as (server,):
        async with Agents([server.url]) as agents, Operator() as operator:
            agents.demand = {"eu-de": (offered(10.0, *EU),)}
            agents.endpoints = {"eu-de": (endpoint(),)}
            await operator.until(server, lambda status: any(arc.origin == "eu-de" for arc in status.arcs))
            shell = Shell(tmp_path, server)
            added = await shell("context", "add", "tests", "--url", server.url, "--token-file", str(shell.token_file))
            assert added.code == 0, added.err
            yield shell


async def test_tenants_and_keys_are_created_and_withdrawn(penstock: Shell) -> None:
    budgets = ("--budget", "requests_per_minute=60@region", "--budget", "money_per_month=100")
    for _ in range(2):
        made = await penstock("tenant", "create", "acme", "--tier", "gold", *budgets, "--note", "a team")
        assert made.code == 0, made.err
    assert "requests_per_minute=60@region" in made.out
    assert "tokens_per_minute=1000" in made.out
    quiet = await penstock("tenant", "key", "create", "acme", "-q")
    (key,) = quiet.out.split()
    id = key[:16]
    rotated = await penstock("tenant", "key", "rotate", "acme", id, "--overlap", "2h", "-o", "json")
    second = json.loads(rotated.out)
    assert second["replaced"]["id"] == id
    revoked = await penstock("tenant", "key", "revoke", "acme", second["view"]["id"], "--reason", "leaked")
    assert "revoked" in revoked.out
    by_digest = await penstock(
        "tenant", "revoke-key", "--digest", sha256(key.encode()).hexdigest(), "--reason", "leaked", "-o", "json"
    )
    assert json.loads(by_digest.out)["tenant"] == "acme"
    states = json.loads((await penstock("tenant", "key", "list", "acme", "-o", "json")).out)
    assert {each["state"] for each in states} == {"revoked"}
    for verb in ("suspend", "resume"):
        assert (await penstock("tenant", verb, "acme", "--reason", "unpaid")).code == 0
    shown = await penstock("tenant", "show", "acme")
    changed = await penstock("tenant", "change", "acme", "--tier", "free", "--no-budgets", "-o", "json")
    assert json.loads(changed.out)["tier"] == "free", changed.err
    assert key not in shown.out + changed.out + made.out
    assert "a team" in shown.out
    assert "tokens_per_minute │ tenant │ fleet │ 1000 │ 0 │ 1000 │ not in use" in " ".join(shown.out.split())
    listed = await penstock("tenant", "list", "--source", "api", "-o", "json")
    assert [tenant["name"] for tenant in json.loads(listed.out)] == ["acme"]
    assert (await penstock("tenant", "delete", "acme", "--reason", "left")).out == "deleted acme\n"
    assert "there is no tenant" in (await penstock("tenant", "show", "acme")).err


async def test_a_tenant_of_an_identity_provider_is_shown_by_its_requests_alone(penstock: Shell) -> None:
    shown = await penstock("tenant", "show", "corp:team-a")
    assert (shown.out, shown.err) == ("no budget is in use, and no request of the last hour was refused\n", "")
    found = json.loads((await penstock("tenant", "show", "corp:team-a", "-o", "json")).out)
    assert found == {"tenant": None, "keys": [], "budgets": None, "refusals": [], "other_refusals": []}


BAD_TENANT_COMMANDS = [
    (("create", "a/b", "--tier", "gold"), "use 1 to 63 lower-case letters, digits and hyphens"),
    (("create", "acme", "--tier", "glod"), "did you mean gold?"),
    (("create", "acme", "--tier", "gold", "--budget", "token_per_minute=1"), "did you mean tokens_per_minute?"),
    (("create", "acme", "--tier", "gold", "--budget", "tokens_per_minute"), "write UNIT=LIMIT"),
    (("create", "acme", "--tier", "gold", "--budget", "tokens_per_minute=x"), "is no number"),
    (("create", "acme", "--tier", "gold", "--budget", "tokens_per_minute=-1"), "greater than 0"),
    (("create", "acme", "--tier", "gold", "--budget", "tokens_per_minute=1@eu-de"), "write region or fleet"),
    (("change", "acme", "--budget", "tokens_per_minute=1", "--no-budgets"), "cannot be used together"),
    (("key", "create", "unknown"), "created no tenant unknown"),
]


async def test_bad_commands_for_tenants_are_refused(penstock: Shell) -> None:
    for arguments, message in BAD_TENANT_COMMANDS:
        done = await penstock("tenant", *arguments)
        assert (done.code, message in done.err) == (2, True), done.err


async def test_status_and_lists_of_a_fleet(penstock: Shell, tmp_path: Path) -> None:
    status = await penstock.executable("status", "-o", "json")
    assert msgspec.json.decode(status.out, type=Status).leading
    table = await penstock("status")
    assert "leader a (epoch" in table.out
    assert "eu-de 100% (home)" in table.out

    explained = await penstock(
        "explain", "--origin", "eu-de", "--model", MODEL, "--tenant", "personal", "--ip", HAMBURG, "-o", "json"
    )
    explanation = msgspec.json.decode(explained.out, type=Explanation)
    assert explanation.chosen is not None
    assert explanation.chosen.region == "eu-de"
    verdicts = {considered.region: considered.verdict for considered in explanation.regions}
    assert {name for name, verdict in verdicts.items() if verdict is RegionVerdict.FORBIDDEN} == {
        "eu-gb",
        "jp-tok",
        "us-east",
    }
    shown = await penstock("explain", "--origin", "us-east", "--model", MODEL, "--tenant", "personal", "--ip", HAMBURG)
    assert "eea-clients-stay-in-eu (residency.yaml:" in shown.out
    assert "→ refused, misdirected" in shown.out
    assert "as seen by a" in shown.out

    steered = await penstock("steer", HAMBURG, "--tenant", "personal", "--model", MODEL, "-o", "json")
    assert [entry.region for entry in msgspec.json.decode(steered.out, type=SteeringAdvice).entries] == [
        "eu-de",
        "eu-es",
    ]
    nowhere = await penstock("steer", "192.0.2.1", "--tenant", "personal")
    assert "refused, location_unknown" in nowhere.out

    lost = await penstock("what-if", "--lost", "eu-de")
    assert "load of eu-de" in lost.out
    assert "fleet as reported" in lost.out
    proposed = await penstock("what-if", "--policy", str(tmp_path / "policies"), "-o", "json")
    assert msgspec.json.decode(proposed.out, type=WhatIfResponse).moves == ()
    assert (await penstock("what-if")).code == 2
    grown = await penstock("what-if", "--demand", f"x1.5,model={MODEL}", "-o", "json")
    growth = msgspec.json.decode(grown.out, type=WhatIfResponse)
    assert growth.after.requests_per_s > growth.before.requests_per_s
    assert "write xFACTOR[,model=MODEL][,origin=REGION]" in (await penstock("what-if", "--demand", "x2,nodel=m")).err

    fleet, demand = tmp_path / "fleet.csv", tmp_path / "demand.csv"
    shutil.copytree(tmp_path / "policies", tmp_path / "priced")
    regions = tmp_path / "priced" / "regions.yaml"
    price = f"name: eu-de\nburst: [{{models: [{MODEL}], cost_per_second: 0.001}}]\n"
    regions.write_text(regions.read_text().replace("name: eu-de\n", price, 1))
    fleet.write_text(f"region,model,slots,service_s,burst_slots\neu-de,{MODEL},1,1,50\n")
    demand.write_text(f"origin,tenant,country,model,requests_per_s\neu-de,open,DE,{MODEL},10\n")
    given = ("--policy", str(regions.parent), "--fleet", str(fleet), "--demand", str(demand), "-o", "json")
    burst = msgspec.json.decode((await penstock("what-if", *given)).out, type=WhatIfResponse)
    assert (burst.before.burst_per_s, burst.after.burst_per_s > 0.0) == (0.0, True)

    mistyped = await penstock("explain", "--origin", "us-est", "--model", MODEL, "--tenant", "personal")
    assert mistyped.code == 2
    assert "did you mean us-east?" in mistyped.err
    penstock.token_file.write_text("f" * 16)
    refused = await penstock("steer", HAMBURG)
    assert refused.code == 2
    assert "the token was rejected" in refused.err
    assert penstock.server is not None
    penstock.server.stop()
    nobody = await penstock.executable("explain", "--origin", "us-east", "--model", MODEL)
    assert nobody.code == 1
    assert "no control plane answers" in nobody.err


async def test_top_shows_endpoints_in_trouble_first(penstock: Shell) -> None:
    found = json.loads((await penstock("top", "--once", "-o", "json")).out)
    assert {region["name"] for region in found["regions"]} >= {"eu-de", "eu-es"}
    assert [each["name"] for each in found["endpoints"]] == ["gpu-0"]
    assert "Pools" in (await penstock("top", "--once", "--region", "eu-de")).out


async def test_an_endpoint_is_drained_and_returned(penstock: Shell) -> None:
    where = ("eu-de", "gpu-0")
    tried = await penstock("endpoint", "drain", *where, "--reason", "heat", "--dry-run")
    assert tried.code == 0, tried.err
    assert (await penstock("endpoint", "undrain", *where, "--reason", "cold")).code == 1, "a dry run sets nothing"
    drained = await penstock("endpoint", "drain", *where, "--reason", "heat", "--for", "2h", "-o", "json")
    assert drained.code == 0, drained.err
    (status,) = json.loads(drained.out)
    wanted = {"kind": "drain_endpoint", "region": "eu-de", "endpoint": "gpu-0", "last_of": [MODEL]}
    assert status["override"].items() >= wanted.items()
    again = await penstock("endpoint", "drain", *where, "--reason", "heat", "--for", "1h")
    assert (again.code, "does this already" in again.err) == (1, True)
    unknown = await penstock("endpoint", "drain", "eu-de", "gpu-9", "--reason", "heat")
    assert (unknown.code, "report no endpoint 'gpu-9'" in unknown.err) == (2, True), unknown.err
    assert "eu-de/gpu-0" in (await penstock("overrides", "list")).out
    assert "drain endpoint of eu-de/gpu-0" in (await penstock("status")).out
    assert (await penstock("endpoint", "undrain", *where, "--reason", "cold")).code == 0
    shown = (await penstock("audit", "list")).out
    assert shown.index("override.lift") < shown.index("override.drain_endpoint")


async def test_plans_and_their_history(penstock: Shell) -> None:
    shown = await penstock("plan", "show", "--origin", "eu-de")
    assert "eu-de 100%" in shown.out
    assert "home" in shown.out
    slices = msgspec.json.decode((await penstock("plan", "show", "-o", "json")).out, type=dict[str, RegionPlan])
    assert slices.keys() == {"eu-de", "eu-es", "eu-gb", "jp-tok", "us-east"}
    listed: list[PlanSummary] = []
    async with asyncio.timeout(PATIENCE_S):
        while not listed:  # the leader lists its publications periodically
            listed = msgspec.json.decode((await penstock("plan", "list", "-o", "json")).out, type=list[PlanSummary])
    newest, oldest = listed[0].generation, listed[-1].generation
    assert newest >= oldest
    past = await penstock("plan", "show", str(newest))
    assert f"plan {newest} (epoch" in past.out
    same = await penstock("plan", "diff", str(newest), str(newest))
    assert "no share differs" in same.out
    if oldest != newest:
        changed = await penstock("plan", "diff", "-o", "json")
        assert msgspec.json.decode(changed.out, type=PlanDiff).after.generation >= newest
    gone = await penstock("plan", "show", "999999999")
    assert (gone.code, "is not stored" in gone.err) == (2, True)
    nowhere = await penstock("plan", "show", "--origin", "eu-d")
    assert (nowhere.code, "did you mean eu-de?" in nowhere.err) == (2, True)


async def test_the_audit_log_is_exported_and_verified(penstock: Shell, own_etcd: EtcdServer, tmp_path: Path) -> None:
    store = SignedStore(EtcdStore([own_etcd.endpoint]), control_plane_keyring())
    log = AuditLog(store)
    caller = Caller("duty", Role.OPERATOR)
    for number in range(3):
        last = await log.record(
            AuditedAction(caller, "override.drain", f"region-{number}", "maintenance", after={"n": number})
        )
    shown = await penstock("audit", "list")
    assert "duty (operator)" in shown.out
    assert "region-2" in shown.out
    whole = await penstock("audit", "verify")
    assert (whole.code, whole.out) == (0, f"whole: 3 entries, the last is 3:{last.hash}\n")

    export = tmp_path / "audit.jsonl"
    kept = f"3:{last.hash}"
    exported = await penstock("audit", "export", str(export))
    assert (exported.code, exported.out, exported.err) == (
        0,
        "",
        f"penstock audit export: 3 entries, the last is {kept}\n",
    )
    assert (await penstock("audit", "export")).out == export.read_text()
    assert (await penstock("audit", "verify", str(export), "--kept", kept)).code == 0
    verdict = await penstock("audit", "verify", str(export), "-o", "json")
    assert msgspec.json.decode(verdict.out) == {"whole": True, "entries": 3, "head": kept, "removed_up_to": 0}

    lines = export.read_text().splitlines(keepends=True)
    export.write_text("".join([lines[0], lines[1].replace("region-1", "region-9"), lines[2]]))
    changed = await penstock("audit", "verify", str(export))
    assert (changed.code, "entry 2: changed" in changed.err) == (1, True)
    # The hash does not cover these fields, which other readers of the file would show.
    for addition in ('"reason":"nobody said so",', '"approved":"by everybody",'):
        export.write_text("".join([lines[0], "{" + addition + lines[1].removeprefix("{"), lines[2]]))
        changed = await penstock("audit", "verify", str(export))
        assert (changed.code, "entry 2: changed" in changed.err) == (1, True)
    for wrong in (lines[1:], [lines[0], lines[2]], [lines[1], lines[0], lines[2]], [lines[0], *lines]):
        export.write_text("".join(wrong))
        assert (await penstock("audit", "verify", str(export))).code == 1
    export.write_text("".join(lines[:2]))
    cut = await penstock("audit", "verify", str(export), "--kept", kept)
    assert (cut.code, "truncated or replaced" in cut.err) == (1, True)
    export.write_text("nonsense")
    assert (await penstock("audit", "verify", str(export))).code == 2
    assert (await penstock("audit", "verify", str(export), "--kept", "3")).code == 2

    stored = await store.get(keys.audit_entry(2))
    assert stored is not None
    await put(store, keys.audit_entry(2), stored.value.replace(b"region-1", b"region-9"))
    await store.close()
    tampered = await penstock("audit", "verify")
    assert (tampered.code, "entry 2: changed" in tampered.err) == (1, True)


async def test_explaining_a_bundle_without_a_fleet(tmp_path: Path) -> None:
    shell = Shell(tmp_path, None)
    key = tmp_path / "key"
    key.write_text("demo-personal\n")
    bundle = ("--policy", str(PLANET))
    request = ("--origin", "eu-de", "--model", MODEL)
    explained = await shell("explain", *bundle, *request, "--key-file", str(key), "--country", "DE", "-o", "json")
    assert msgspec.json.decode(explained.out, type=Explanation).query.tenant == "personal"
    shown = await shell("explain", *bundle, *request, "--tenant", "personal", "--country", "DE")
    assert "offline: residency and distance only" in shown.out
    line = json.dumps(
        {
            "at": 1.0, "request_id": "r-1", "tenant": "personal", "model": MODEL, "path": "/v1/x", "kind": "home",
            "server": "eu-de", "endpoint": "gpu-0", "outcome": "ok", "status": 200, "origin": "eu-de", "country": "DE",
        }
    )  # fmt: skip
    recorded = await shell("explain", *bundle, "--record", line)
    assert "request r-1: ok, home at eu-de/gpu-0" in recorded.out
    assert "→ eu-de (home)" in recorded.out
    full = await shell(
        "explain", *bundle, *request, "--tenant", "eu-personal", "--tried", "eu-de=saturated", "--overflow"
    )
    assert "→ refused, saturated" in full.out
    for wrong in (
        (*bundle, "--origin", "eu-de"),
        (*bundle, *request, "--ip", HAMBURG),
        (*bundle, *request, "--tried", "eu-de=tired"),
        (*bundle, *request, "--tried", "eu-d"),
        (*bundle, *request, "--tenant", "open", "--key-file", str(key)),
        (*bundle, *request, "--key-file", str(shell.token_file)),
        (*bundle, *request, "--key-file", "/nowhere"),
        (*bundle, "--record", "{}"),
        ("--policy", str(tmp_path / "nothing"), *request),
    ):
        assert (await shell("explain", *wrong)).code == 2
    (tmp_path / "bad").mkdir()
    assert (await shell("explain", "--policy", str(tmp_path / "bad"), *request)).code == 2
