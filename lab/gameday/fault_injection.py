"""Injects faults into a running fleet. An injection returns a function that ends the fault; both block."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence

from adapters.files.authority_files import issue_identity, load_authority
from adapters.servers.errors import ServerError
from adapters.servers.free_ports import LOOPBACK
from lab.demo.findings import Measured
from lab.gameday.client_flood import ClientFlood
from lab.gameday.credential_faults import leader_of
from lab.gameday.report_storm import AGENT, ReportStorm
from lab.planet.configs import AUTHORITY_DIR, agent_identity_dir, control_plane_urls, url
from lab.planet.planet import ASK_TIMEOUT_S, Planet, agent_process, control_plane_process
from lab.planet.secret_files import FLEET
from lab.planet.topology import Engine, agent_port, engine_port
from penstock.wire.identity import ProcessRole, SpiffeId

SLOW_FACTOR = 10

POISON = "apiVersion: penstock/v1\nkind: Tenant\nname: newcomer\ndata_class: undefined\n"
"""A policy document with an undefined data class."""


def freeze(process: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault that stops a process with SIGSTOP."""

    def inject(planet: Planet) -> Callable[[], None]:
        server = planet.processes()[process]
        server.pause()
        return server.resume

    return inject


def freeze_all(planet: Planet, processes: Sequence[str]) -> Callable[[], None]:
    """Stop several processes with SIGSTOP."""
    resumes = [freeze(process)(planet) for process in processes]

    def lift() -> None:
        for resume in resumes:
            resume()

    return lift


def freeze_etcd(planet: Planet) -> Callable[[], None]:
    """Stop every member of etcd with SIGSTOP."""
    return freeze_all(planet, planet.topology.etcd_members)


def freeze_leader(planet: Planet) -> Callable[[], None]:
    """Stop the leading control plane with SIGSTOP."""
    return freeze(control_plane_process(leader_of(planet)))(planet)


def halve_agents(region: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault that kills the second half of a region's agents; its end restarts them."""

    return lambda planet: _kill_agents(planet, region, len(planet.topology.region(region).agents) // 2)


def kill_agents(region: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault that kills all agents of a region and none of its engines; its end restarts them."""
    return lambda planet: _kill_agents(planet, region, 0)


def _kill_agents(planet: Planet, region: str, first: int) -> Callable[[], None]:
    """Kill the agents of a region from number `first`; return the end of the fault, which restarts them."""
    killed = [agent_process(region, agent) for agent in planet.topology.region(region).agents[first:]]
    planet.kill(killed)
    return lambda: planet.restart(killed)


def storm(region: str, model: str) -> Callable[[Planet], Callable[[], Measured]]:
    """Return a fault in which an additional agent of a region sends reports to the leader without a pause."""

    def inject(planet: Planet) -> Callable[[], Measured]:
        authority = load_authority(planet.directory / AUTHORITY_DIR)
        directory = agent_identity_dir(planet.directory, region, AGENT)
        issue_identity(authority, SpiffeId(FLEET, ProcessRole.AGENT, AGENT, region), (LOOPBACK,), directory)
        where = control_plane_urls(planet.topology, planet.ports)[leader_of(planet)]
        return ReportStorm(directory, region, planet.topology.region_names, model, where).stop

    return inject


def kill_region(region: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault that kills every agent and engine of a region; its end restarts the region."""

    def inject(planet: Planet) -> Callable[[], None]:
        planet.kill_region(region)
        return lambda: planet.start_region(region)

    return inject


def kill_engines(region: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault that kills all engines of a region and none of its agents; its end restarts them."""
    engines = [f"engines {region}"]

    def inject(planet: Planet) -> Callable[[], None]:
        planet.kill(engines)
        return lambda: planet.restart(engines)

    return inject


def slow_down(endpoint: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault that slows an engine by SLOW_FACTOR."""
    return _faulty({"slow": SLOW_FACTOR}, lambda engine: engine.name == endpoint)


def fail_model(model: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault in which every engine of a model refuses requests and fails health checks."""
    fault = {"refuse_health": True, "error_rate": 1.0, "error_status": 503}
    return _faulty(fault, lambda engine: engine.model == model)


def stop_model(model: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault in which every engine of a model fails health checks, and serves what it still receives."""
    return _faulty({"refuse_health": True}, lambda engine: engine.model == model)


def fail_fast(endpoint: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault in which an engine refuses every request immediately."""
    return _faulty({"error_rate": 1.0, "error_status": 503}, lambda engine: engine.name == endpoint)


def _faulty(fault: Mapping[str, object], affects: Callable[[Engine], bool]) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault that sets the `lab.engine.faults.Faults` of engines, and removes them at its end."""

    def inject(planet: Planet) -> Callable[[], None]:
        places = [
            url(planet.ports[engine_port(region.name, engine.name)])
            for region in planet.topology.regions
            for engine in region.engines
            if affects(engine)
        ]

        def put(faults: Mapping[str, object]) -> None:
            for place in places:
                put_faults(place, faults)

        put(fault)
        return lambda: put({})

    return inject


def put_faults(engine: str, faults: Mapping[str, object]) -> None:
    """Set the `lab.engine.faults.Faults` of the engine at a URL."""
    _send("POST", engine + "/lab/faults", faults)


def partition(pairs: Collection[tuple[str, str]]) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault that drops all traffic from the first region of each pair to the second."""

    def inject(planet: Planet) -> Callable[[], None]:
        put_wan_fault(planet, pairs, "blackhole")
        return lambda: put_wan_fault(planet, pairs, "none")

    return inject


def put_wan_fault(planet: Planet, pairs: Collection[tuple[str, str]], mode: str) -> None:
    """Set the `lab.wan.wan_config.FaultMode` of the WAN links from the first region of each pair to the second."""
    where = url(planet.ports["wan control"]) + "/faults"
    for origin, region in pairs:
        _send("PUT", where, {"select": {"from": origin, "to": region}, "fault": {"mode": mode}})


def flush_redis(planet: Planet) -> Callable[[], None]:
    """Delete all data in Redis.

    Raises:
        ServerError: Redis rejects the command.
    """
    with socket.create_connection((LOOPBACK, planet.ports["redis"]), ASK_TIMEOUT_S) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        if not connection.recv(64).startswith(b"+OK"):
            raise ServerError("Redis did not accept FLUSHALL")
    return lambda: None


def poison_policy(planet: Planet) -> Callable[[], None]:
    """Add an invalid document to the policy source; return the end of the fault, which removes the document."""
    poison = planet.policy_dir / "poison.yaml"
    poison.write_text(POISON)
    return poison.unlink


def flood(region: str) -> Callable[[Planet], Callable[[], Measured]]:
    """Return a fault that floods an agent with slow connections and with requests without a valid key."""

    def inject(planet: Planet) -> Callable[[], Measured]:
        agent = planet.topology.region(region).agents[0]
        return ClientFlood(LOOPBACK, planet.ports[agent_port(region, agent, "traffic")]).stop

    return inject


def _send(method: str, where: str, body: Mapping[str, object]) -> None:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(where, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=ASK_TIMEOUT_S):
        pass
