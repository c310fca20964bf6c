"""Runs the scenario: sends the requests, performs the scheduled acts on the fleet, and records the events."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect
from collections.abc import Awaitable, Callable
from functools import partial

import httpx

from adapters.servers.errors import ServerError
from lab.demo.batches.batch_scene import ENDS_WITHIN_S, BatchStage, PlannedBatch, planned_batches
from lab.demo.clients import as_served, entries_of
from lab.demo.images.image_accounting import accounted_work_s
from lab.demo.inputs import DemoInputs
from lab.demo.records import BatchScene, Event, EventKind, ImageJob, Run, Served, TenantScene
from lab.demo.records import Outcome as Ending
from lab.demo.scenario import Act, ActName
from lab.demo.screen import Screen
from lab.demo.tally import Tally
from lab.demo.tenants.tenant_scene import TenantStage
from lab.demo.witness_watch import WitnessWatch
from lab.planet.configs import control_plane_urls, url
from lab.planet.fleet_watch import LOOK_EVERY_S, FleetWatch
from lab.planet.planet import Planet, control_plane_process
from lab.planet.topology import IMAGE_MODEL, agent_port
from lab.replay.outcome import Outcome
from lab.replay.replayer import Replayer

HEAD_START_S = 0.5
"""Time (s) from the start of the replayer to the start of the schedule."""

DRAIN_S = 15.0
"""Time (s) allowed for the last requests after the schedule ends."""

PREPARE_S = 0.5
"""Time (s) before an act at which its preparation begins."""

FAST_POLL_FOR_S = 3.0
"""Time (s) after the kill of a region in which processes are polled at the short interval."""

DRAW_EVERY_S = 0.5
READ_EVERY_S = 0.5
POLL_S = 0.25
"""Interval (s) at which the processes are polled, except while a region is being lost."""

LEADER_WITHIN_S = 15.0
"""Maximum time (s) to wait for a new leader."""

STYLES = {
    EventKind.SURGE_BEGAN: "yellow",
    EventKind.REGION_KILLED: "bold red",
    EventKind.LEADER_KILLED: "bold red",
    EventKind.ETCD_KILLED: "bold red",
    EventKind.REDIS_KILLED: "bold red",
    EventKind.UNEXPECTED_EXIT: "bold red",
    EventKind.FLOOD_BEGAN: "yellow",
    EventKind.KEY_REVOKED: "cyan",
    EventKind.LOSS_DETECTED: "cyan",
    EventKind.BATCH_CREATED: "cyan",
    EventKind.BATCH_ENDED: "green",
    EventKind.REGION_READY: "green",
    EventKind.NEW_LEADER: "green",
}


class Story:
    """One run of the scenario on a running fleet."""

    def __init__(self, planet: Planet, inputs: DemoInputs, screen: Screen) -> None:
        """Create a run; `run` starts it."""
        self._planet = planet
        self._scenario = inputs.scenario
        self._screen = screen
        self._failback_ramp_s = inputs.policy.failover.failback_ramp_s
        self._megapixel_step_s = inputs.policy.models[IMAGE_MODEL].cost.output_unit_s
        asks = inputs.asks
        topology, ports = planet.topology, planet.ports
        self._asks = {ask.planned.id: ask for ask in asks}
        workload = [ask.planned for ask in asks]
        self._replayer = Replayer(workload, entries_of(topology, ports), on_outcome=self._ended)
        self._images_due_s = sorted(ask.planned.at_s for ask in asks if ask.planned.image is not None)
        self._images: list[Served] = []
        self._tally = Tally()
        self._watch = FleetWatch(planet, self._now)
        self._watch.interval_s = POLL_S
        self._zero = 0.0
        self._events: list[Event] = []
        self._served: list[Served] = []
        self._is_region_dead = False
        self._scene: TenantScene | None = None
        self._batches: list[BatchScene] = []

    async def run(self) -> Run:
        """Run the scenario until the last response, and return its records."""
        self._zero = time.monotonic() + HEAD_START_S
        witness = WitnessWatch(self._planet.witness_dir, time.time() + HEAD_START_S)
        watching = [
            asyncio.create_task(job)
            for job in (
                self._watch.run(),
                every(DRAW_EVERY_S, self._draw),
                every(READ_EVERY_S, partial(self._look, witness)),
            )
        ]
        acting = asyncio.create_task(self._act())
        asking = asyncio.create_task(self._replayer.run(DRAIN_S, self._zero))
        jobs = [*watching, acting, asking]
        try:
            # The first error of any task ends the run. The watching tasks end only by an error.
            pending = {acting, asking}
            while pending:
                done, _ = await asyncio.wait(pending | set(watching), return_when=asyncio.FIRST_COMPLETED)
                for job in done:
                    job.result()
                pending -= done
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        await self._look(witness)
        await self._draw()
        return Run(
            scenario=self._scenario,
            served=tuple(sorted(self._served, key=lambda request: request.due_s)),
            sightings=tuple(witness.sightings),
            started=await witness.started(),
            events=tuple(sorted(self._events, key=lambda event: event.at_s)),
            looks=tuple(self._watch.looks),
            failback_ramp_s=self._failback_ramp_s,
            images=await self._image_jobs(),
            tenants=self._scene,
            batches=tuple(self._batches),
            processes=len(self._planet.processes()),
        )

    async def _image_jobs(self) -> tuple[ImageJob, ...]:
        answered = [request.id for request in self._images if request.outcome is Ending.OK]
        work_s = await accounted_work_s(self._planet.logs, answered)
        jobs = []
        for request in sorted(self._images, key=lambda request: request.due_s):
            image = self._asks[request.id].planned.image
            assert image is not None
            accounted_s = work_s.get(request.id)
            accounted = None if accounted_s is None else accounted_s / self._megapixel_step_s
            jobs.append(ImageJob(request, image.megapixel_steps, accounted))
        return tuple(jobs)

    def _now(self) -> float:
        return time.monotonic() - self._zero

    def _note(self, kind: EventKind, text: str, at_s: float | None = None) -> None:
        event = Event(self._now() if at_s is None else at_s, kind, text)
        self._events.append(event)
        self._screen.event(event.at_s, text, STYLES.get(kind, ""))

    def _ended(self, outcome: Outcome) -> None:
        ask = self._asks[outcome.id]
        served = as_served(outcome, ask)
        if ask.planned.image is not None:
            self._images.append(served)
            self._tally.image_ended(served.outcome)
            return
        self._served.append(served)
        self._tally.ended(served, self._now())

    async def _draw(self) -> None:
        now_s = max(0.0, self._now())
        asked = bisect(self._images_due_s, now_s)
        self._screen.show(self._tally.now(now_s, self._scenario.phase_at(now_s).title, asked))

    async def _look(self, witness: WitnessWatch) -> None:
        self._tally.violations = await witness.read()
        for death in await asyncio.to_thread(self._planet.unexpected_exits):
            self._note(EventKind.UNEXPECTED_EXIT, f"{death} exited unexpectedly")

    async def _act(self) -> None:
        async with asyncio.TaskGroup() as group:
            for planned in planned_batches(self._scenario, self._planet.topology):
                group.create_task(self._batch(planned))
            for act in self._scenario.acts:
                await self._until(act.at_s - PREPARE_S)
                # An act may take seconds and must not delay the next act.
                group.create_task(self._do(act))

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._now()))

    async def _do(self, act: Act) -> None:
        scenario, planet = self._scenario, self._planet
        if act.name is ActName.KILL_REGION:
            self._watch.lost_region, self._watch.interval_s = scenario.lost_region, LOOK_EVERY_S
        await self._until(act.at_s)
        match act.name:
            case ActName.SURGE_BEGINS:
                factor = f"{scenario.surge_factor:.2g} times the usual demand"
                self._note(EventKind.SURGE_BEGAN, f"clients near {scenario.surge_region} send {factor}")
            case ActName.SURGE_ENDS:
                self._note(EventKind.SURGE_ENDED, "the surge ended")
            case ActName.KILL_REGION:
                await self._lose_region(scenario.lost_region)
            case ActName.START_REGION:
                await self._return_region(scenario.lost_region)
            case ActName.TENANTS:
                await self._tenants()
            case ActName.KILL_LEADER:
                await self._replace_leader()
            case ActName.KILL_ETCD:
                at = await asyncio.to_thread(planet.kill, planet.topology.etcd_members)
                self._note(EventKind.ETCD_KILLED, "kill -9 of etcd: no new plans, no elections", at - self._zero)
            case ActName.KILL_REDIS:
                at = await asyncio.to_thread(planet.kill, ["redis"])
                self._note(EventKind.REDIS_KILLED, "kill -9 of Redis: no shared in-flight view", at - self._zero)

    async def _lose_region(self, region: str) -> None:
        self._is_region_dead = True
        at_s = await asyncio.to_thread(self._planet.kill_region, region) - self._zero
        self._note(EventKind.REGION_KILLED, f"kill -9 of all processes of {region}", at_s)
        observer = None
        while observer is None and self._is_region_dead:
            await asyncio.sleep(0.01)
            look = self._watch.looks[-1]
            observer = next((name for name, failed in look.failed_peers.items() if region in failed), None)
        if observer is not None:
            text = f"{observer} reports {region} as failed, {look.at_s - at_s:.2f} s after the kill"
            self._note(EventKind.LOSS_DETECTED, text, look.at_s)
        await self._until(at_s + FAST_POLL_FOR_S)
        self._watch.interval_s = POLL_S

    async def _return_region(self, region: str) -> None:
        self._watch.lost_region = ""
        self._is_region_dead = False
        self._note(EventKind.REGION_STARTED, f"{region} is restarted")
        try:
            await asyncio.to_thread(self._planet.start_region, region)
        except ServerError as error:
            # The checks report that the region did not return; the rest of the scenario still runs.
            self._note(EventKind.UNEXPECTED_EXIT, f"{region} did not restart: {str(error).splitlines()[0]}")
            return
        self._note(EventKind.REGION_READY, f"{region} is ready; its traffic returns gradually")

    async def _tenants(self) -> None:
        planet = self._planet
        region = next(each for each in planet.topology.regions if each.name != self._scenario.lost_region)
        entry = url(planet.ports[agent_port(region.name, region.agents[0], "traffic")])
        control_planes = list(control_plane_urls(planet.topology, planet.ports).values())
        self._note(EventKind.FLOOD_BEGAN, f"a tenant with a budget of 60 requests a minute floods {region.name}")
        try:
            scene = await TenantStage(planet, entry, control_planes, self._now).run()
        except (RuntimeError, httpx.HTTPError) as error:
            # The checks report that the scene did not end; the rest of the scenario still runs.
            self._screen.event(self._now(), f"the scene of tenants failed: {error}", "bold red")
            return
        self._scene = scene
        if scene.revoked_at_s is not None:
            self._note(EventKind.KEY_REVOKED, "the key of a stream in progress was revoked", scene.revoked_at_s)

    async def _batch(self, planned: PlannedBatch) -> None:
        await self._until(planned.at_s)
        self._note(EventKind.BATCH_CREATED, f"a batch of {planned.requests} chats begins in {planned.region}")
        until_s = self._scenario.duration_s + ENDS_WITHIN_S
        try:
            scene = await BatchStage(self._planet, planned, self._now).run(until_s)
        except (RuntimeError, httpx.HTTPError) as error:
            # The checks report that the batch has no records; the rest of the scenario still runs.
            self._screen.event(self._now(), f"the batch in {planned.region} failed: {error}", "bold red")
            return
        self._batches.append(scene)
        self._note(EventKind.BATCH_ENDED, f"the batch of {planned.region} is {scene.status}", scene.ended_at_s)

    async def _replace_leader(self) -> None:
        planet = self._planet
        leader = await asyncio.to_thread(planet.wait_for_leader, 0.0)
        if leader is None:
            self._screen.event(self._now(), "no control plane reports that it leads; no leader was killed", "bold red")
            return
        at = await asyncio.to_thread(planet.kill, [control_plane_process(leader)])
        self._note(EventKind.LEADER_KILLED, f"kill -9 of the leading control plane, {leader}", at - self._zero)
        successor = await asyncio.to_thread(planet.wait_for_leader, LEADER_WITHIN_S, leader)
        if successor is not None:
            took_s = time.monotonic() - at
            self._note(EventKind.NEW_LEADER, f"{successor} became leader {took_s:.1f} s after the kill")


async def every(pause_s: float, do: Callable[[], Awaitable[None]]) -> None:
    """Call `do` until cancelled, with a pause of `pause_s` (s) after each call."""
    while True:
        await do()
        await asyncio.sleep(pause_s)
