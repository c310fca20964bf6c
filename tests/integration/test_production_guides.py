"""Runs the guides to the first production region and to upgrades: mutual TLS, three etcd members and a control plane.

The addresses of the examples are replaced by addresses of the loopback interface.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.guides import Terminal, blocks
from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("git") is None, reason="no git on PATH"),
]

ETCD_TLS = "etcd_ca_file: $PWD/{0}/ca.crt\n"
API_TLS = "tls_certificate_file: $PWD/{0}/tls.crt\ntls_key_file: $PWD/{0}/tls.key\n"
ADMIN_TLS = "admin_certificate_file: $PWD/{0}/tls.crt\nadmin_key_file: $PWD/{0}/tls.key\n"
SYSTEMCTL = """
systemctl() {
  case "$*" in
    "restart penstock-control-plane")
      kill $control_plane && wait $control_plane || true
      penstock serve --config cp-1.yaml >> cp-1.log 2>&1 & control_plane=$! ;;
    "restart penstock-agent")
      kill $agent && wait $agent || true
      penstock-agent --config agent.yaml >> agent.log 2>&1 & agent=$! ;;
  esac
}
"""


@pytest.mark.long
def test_the_first_region_and_an_upgrade(tmp_path: Path) -> None:
    (tmp_path / "policies").symlink_to(ROOT / "policies")
    person = {
        f"GIT_{role}_{field}": "ada@example.com" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")
    }

    def here(commands: str) -> str:
        local = re.sub(r"\b10\.(\d+\.\d+\.\d+)\b", r"127.\1", commands)
        return local.replace("https://git.example.com/policy-repository.git", f"{tmp_path}/policy-repository")

    with Terminal(tmp_path, person | {"HOME": str(tmp_path)}) as terminal:
        page = [here(commands) for commands in blocks("first-production-region.md")]
        certificates, member, health, policy, credentials, control_plane, reached, agent, serves, monitoring = page
        # etcd accepts a member only from an address in its certificate, which here is 127.0.0.1 for each member.
        terminal.run(re.sub(r"(server \S+ )", r"\1--host 127.0.0.1 ", certificates))
        for number in (1, 2, 3):
            own = f"name=etcd-{number} address=127.0.{number - 1}.11 identity=$PWD/etcd-{number}"
            terminal.run(re.sub(r"^name=.*", own, member))
        terminal.until(health.strip())
        terminal.run(policy + credentials)
        tls = (ETCD_TLS + API_TLS).format("cp-1")
        terminal.run(control_plane.replace("\nEND\n", f"\n{tls}END\n", 1) + "control_plane=$!\n")
        terminal.run(reached)
        terminal.run(blocks("running.md")[2])
        tls = (ETCD_TLS + ADMIN_TLS).format("eu-de-1")
        terminal.run(agent.replace("state_dir: state\n", f"state_dir: state\n{tls}", 1) + "agent=$!\n")
        assert "HTTP/1.1 200 OK" in terminal.run(serves)
        measured = terminal.run(monitoring)
        assert "penstock_leader " in measured
        assert "penstock_agent_endpoint_ready{" in measured

        page = [here(commands) for commands in blocks("upgrading.md")]
        before, check, planes, plane_is_ready, agents, takeover = page
        terminal.run(SYSTEMCTL)
        shown = terminal.run(before)
        assert "penstock 0." in shown
        assert (tmp_path / "before-upgrade.backup").stat().st_size > 0
        terminal.run(check)
        terminal.run(planes)
        assert "Regions" in terminal.run(plane_is_ready)
        terminal.run(agents)
        terminal.run(serves.splitlines()[0])
        terminal.run(f"old=$agent\n{takeover}agent=$!\n")
        terminal.until("grep -q serving new-agent.log")
        terminal.run("kill $old; wait $old")
        assert "HTTP/1.1 200 OK" in terminal.run(serves)
