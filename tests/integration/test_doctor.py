"""`penstock doctor` on a host: valid settings, a real etcd and Redis, and both out of reach."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import pytest

from adapters.files.authority_files import issue_identity, load_authority
from adapters.servers.etcd import EtcdServer
from adapters.servers.free_ports import free_ports
from adapters.servers.redis import RedisServer
from control_plane.doctor.findings import Finding
from control_plane.doctor.host_checks import of_clock
from control_plane.quickstart.places import Place
from control_plane.quickstart.region_dir import FLEET, Engine, RegionDir, write_region_dir
from penstock.wire.identity import ProcessRole, SpiffeId
from tests.support.cli import run


def findings(region_dir: RegionDir) -> dict[str, str]:
    result = run("doctor", "--agent-config", str(region_dir.agent_settings), "-o", "json")
    found = msgspec.json.decode(result.stdout, type=list[Finding])
    assert result.exit_code == (1 if any(each.severity == "problem" for each in found) else 0)
    return {each.subject: f"{each.severity}: {each.found}" for each in found}


def test_a_host_is_checked_by_the_settings_of_its_agent(
    tmp_path: Path, etcd_server: EtcdServer, redis_server: RedisServer
) -> None:
    written = write_region_dir(tmp_path / "r", "local", Place("DE", 50.0, 8.0), [Engine("http://127.0.0.1:1", ("m",))])
    (closed,) = free_ports(1)
    agent = written.agent_settings.read_text()
    agent = agent.replace(f"127.0.0.1:{written.ports['etcd']}", etcd_server.endpoint)
    agent = agent.replace(f"redis://127.0.0.1:{written.ports['redis']}", f"redis://127.0.0.1:{redis_server.port}")
    agent = agent.replace(written.api_url, f"http://127.0.0.1:{closed}")
    written.agent_settings.write_text(agent)
    # With TLS to etcd, files are loaded, which is logged: standard output has JSON only.
    changed = agent.replace("redis://", "redis://nobody:wrong@") + f"etcd_ca_file: {written.path}/agent/ca.crt\n"
    written.agent_settings.write_text(changed)
    found = findings(written)
    assert found[f"redis redis://127.0.0.1:{redis_server.port}"].startswith("problem: refuses this agent: ")
    assert found["engine http://127.0.0.1:1"] == "problem: cannot be reached: Connection refused"
    assert not any(subject.startswith("certificate") for subject in found)
    written.agent_settings.write_text(agent)
    written.endpoints.write_text("- {name: gpu}\n")
    id_ = SpiffeId(FLEET, ProcessRole.AGENT, "local-1", "local")
    issue_identity(load_authority(written.authority), id_, ("127.0.0.1",), written.path / "agent", lifetime_s=1e5)
    found = findings(written)
    assert found[f"certificate {written.path}/agent/tls.crt"] == "warning: its certificate expires in 1 days"
    assert found[f"penstock-agent {written.agent_settings}"].startswith("problem: ")
    assert "endpoints.yaml" in found[f"penstock-agent {written.agent_settings}"]
    assert found[f"etcd {etcd_server.endpoint}"].startswith("warning: runs version 3.5.1")
    assert found[f"redis redis://127.0.0.1:{redis_server.port}"] == "ok: answers"
    assert found[f"control plane http://127.0.0.1:{closed}"] == "problem: cannot be reached: Connection refused"


def test_the_clock_of_a_control_plane_is_compared_with_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(url: str, **_: object) -> httpx.Response:
        return httpx.Response(401, headers={"date": "Thu, 01 Jan 1970 00:01:00 GMT"})

    monkeypatch.setattr(httpx, "get", get)
    (finding,) = of_clock("https://cp-1", 90.0)
    assert (finding.severity, finding.subject) == ("problem", "clocks")
    assert finding.found == "https://cp-1 and this machine differ by 30 s"
    assert list(of_clock("https://cp-1", 63.0)) == []
