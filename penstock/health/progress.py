"""Decides by the progress of requests whether an endpoint is suspect, that is, accepts requests and completes none.

Health probes and failed requests do not reveal such a grey failure (Huang et al., "Gray failure: the Achilles' heel of
cloud-scale systems", HotOS 2017): the server responds, and nothing fails before a timeout. The evidence is that a
request waits for longer than its estimated work explains while no byte arrives from any request of the endpoint, and
its siblings make progress; or for longer than the endpoint's own recent responses explain, whatever its siblings do; or
that the engine reports no request although requests wait for a response.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from penstock.health.recent_waits import LongestWaits

DUE_FACTOR: Final = 4.0
"""A first byte is overdue after this multiple of its expected time. Speed learning limits an observation to the same
multiple of its expectation. A long prefill alone must not make an endpoint suspect."""

IDLE_READINGS: Final = 3
"""Number of consecutive readings of an engine's metrics without a request that show an idle engine. One reading is not
enough, since some engines update their metrics only occasionally."""

SIBLING_SHARE: Final = 0.5
"""A sibling makes progress if it has been silent for less than this share (0-1) of the time that makes an endpoint
suspect."""


HISTORY_FACTOR: Final = 2.0
"""A first byte or the next chunk is unusual after this multiple of the longest recent wait for one."""

HISTORY_SHARE: Final = 0.5
"""Part (0-1) of the time that makes an endpoint suspect, after which its silence suffices if its own history is the
evidence: a comparison with its own responses is more certain than one with an estimate."""

MIN_RESPONSES: Final = 3
"""Number of responses from which an endpoint has a history."""

LONG_ANSWER_S: Final = 60.0
"""Time (s) for which a response that is not streamed, and whose length is not limited to less, may take, whatever the
recent ones took, while it is the only one that is overdue. Answers differ in length by a hundred to one. So may a tool
call that an engine holds back until it is complete. Later it is evidence as several of them are."""

UNLEARNED_S: Final = 120.0
"""Time (s) for which an image, a transcription or another response that costs no tokens may take at an endpoint that
completed fewer than MIN_RESPONSES of them: its estimate is a guess, and what chats took explains nothing."""

WITNESSES: Final = 2
"""Number of such responses that may be evidence before LONG_ANSWER_S (`stall_of`). All streams with a tool call count
as one: agents that began together call their tools together."""


class StallReason(StrEnum):
    """The evidence that an endpoint makes no progress."""

    SILENT = "silent"
    """A request is overdue, and no byte has arrived from any request of the endpoint for too long."""
    IDLE = "idle"
    """A request is overdue, and the engine reports that no request runs or waits."""
    UNUSUAL = "unusual"
    """A request has waited for much longer than recent responses of the endpoint, and no byte has arrived from any."""
    UNANSWERED = "unanswered"
    """The endpoint is down, since its server answers no probe, and no byte has arrived from any request."""


class Stall(NamedTuple):
    """The evidence by which an endpoint is suspect."""

    reason: StallReason
    detail: str
    """The numbers of the decision, for operators."""

    @property
    def is_certain(self) -> bool:
        """Whether the evidence is the endpoint's own, so that it holds without siblings and beyond the ejection cap."""
        return self.reason is not StallReason.SILENT

    def may_resend(self, *, repeatable: bool) -> bool:
        """Whether a request without a byte of a response may be sent to another endpoint.

        Args:
            repeatable: the request's route permits that a request is started twice. This is not required of an idle
                engine, which has not started the request.
        """
        return repeatable or self.reason is StallReason.IDLE


class ProgressSample(NamedTuple):
    """The progress of one endpoint's requests, all sent by one agent. Times are monotonic, in seconds."""

    progressed_at: float = -inf
    """When output last arrived: a byte of a response, comments and pings excepted."""
    waiting_since: float = inf
    """Since when a request has waited longest for its first byte or its next chunk; inf if none waits."""
    overdue_since: float = inf
    """Since when a request whose first byte or next chunk is overdue has waited longest; inf if there is none."""
    idle_since: float = inf
    """When the first of the last IDLE_READINGS readings was taken, if none of them shows a request; inf otherwise."""
    unusual_since: float = inf
    """Since when the request has waited that the endpoint's history explains least; inf if the history explains all."""
    may_be_long: bool = False
    """Whether all that is overdue are tool calls, or one response that may be long, for less than LONG_ANSWER_S: their
    time is no evidence."""
    may_all_be_long: bool = False
    """Whether all that is overdue may be long, also several responses: long work that began after short one."""

    def silent_s(self, now: float) -> float:
        """Time (s) without progress on the endpoint while a request waits for a byte; 0 if no request waits."""
        return max(0.0, now - max(self.progressed_at, self.waiting_since))


class AwaitedResponse(NamedTuple):
    """A request that waits for the first byte of its response."""

    since: float
    """When the request was sent (s)."""
    expected_s: float
    """Expected time (s) from then to the first byte."""
    streaming: bool = True
    """Whether the response is sent as it is generated."""
    prefill_s: float = 0.0
    """Prefill (s, reference) of the request; 0 if unknown."""
    longest_s: float = 0.0
    """Longest time (s) to the first byte that the limit of the answer's length permits; inf without a limit; 0 for a
    stream that begins as soon as output is generated."""
    streams: int = 1
    """Requests that the agents ran at the endpoint when the request was sent, itself included."""
    is_text: bool = True
    """Whether its cost is counted in tokens."""


class ProgressTracker:
    """Collects the samples of one endpoint. Between two samples, `waits` is called for each request that waits for its
    first byte, and `waits_for_chunk` for each silent stream."""

    def __init__(self) -> None:
        self.progressed_at = -inf
        """When output last arrived (s)."""
        self._answers = LongestWaits()
        """Waits for responses that are not streamed, and cost tokens."""
        self._others = LongestWaits()
        """Waits for other responses that are not streamed."""
        self._streams = LongestWaits()
        """Durations of complete streams."""
        self._first_chunks = LongestWaits()
        """Waits for the first bytes of streams."""
        self._gaps = LongestWaits()
        """Waits for later chunks of streams, as far as they were noticed."""
        self._waiting_since = inf
        self._overdue_since = inf
        self._unusual_since = inf
        self._maybe_long: set[float] = set()
        """The times (s) since which overdue responses wait that may be long."""
        self._has_pause = False
        """Whether a chunk is overdue in a stream that may pause."""
        self._is_long = False
        """Whether one of these waits has lasted for LONG_ANSWER_S."""
        self._has_witness = False
        """Whether another response or chunk is overdue."""
        self._idle_readings: tuple[float, ...] = ()
        """Times (s) of the latest consecutive readings without a request."""
        self._has_run = False
        """Whether a reading has ever shown a request; a gauge that is always zero is not evidence of an idle engine."""

    @property
    def longest_s(self) -> float:
        """The longest recent wait (s) for a response or a chunk; 0 before the first."""
        return max(self._answers.longest_s, self._others.longest_s, self._first_chunks.longest_s, self._gaps.longest_s)

    def waits(self, request: AwaitedResponse, now: float) -> None:
        """Record that a request waits for its first byte at `now` (s), by the clock of its times."""
        since, streaming = request.since, request.streaming
        if since < self._waiting_since:
            self._waiting_since = since
        waited_s = now - since
        is_other = not (streaming or request.is_text)
        history = self._first_chunks if streaming else (self._others if is_other else self._answers)
        if is_other and history.count < MIN_RESPONSES and waited_s < UNLEARNED_S:
            return
        explained_s = HISTORY_FACTOR * history.explained_s(request.prefill_s)
        if history.count < MIN_RESPONSES and not is_other:
            # A first chunk takes no longer than a whole response, and that no longer than a stream of the same answer.
            history = self._answers if streaming else self._streams
        crowding = history.crowding(request.streams)
        if waited_s < request.expected_s * DUE_FACTOR * crowding:
            return
        if waited_s < explained_s:
            return
        self._overdue_since = min(self._overdue_since, since)
        if waited_s < request.longest_s:
            self._maybe_long.add(since)
            self._is_long = self._is_long or waited_s >= LONG_ANSWER_S
        else:
            self._has_witness = True
        if history.count >= MIN_RESPONSES and waited_s >= HISTORY_FACTOR * crowding * history.longest_s:
            self._unusual_since = min(self._unusual_since, since)

    def waits_for_chunk(self, since: float, expected_s: float, now: float, *, may_pause: bool = False) -> None:
        """Record that a stream has sent no output since `since` (s).

        Args:
            since: when output last arrived (s).
            expected_s: expected time (s) of the first chunk; some engines send a chunk before they begin.
            now: the present time (s), by the same clock.
            may_pause: whether the engine may hold back output that it generates.
        """
        if since < self._waiting_since:
            self._waiting_since = since
        if now - since < expected_s * DUE_FACTOR:
            return
        if may_pause:
            self._has_pause = True
            self._is_long = self._is_long or now - since >= LONG_ANSWER_S
        else:
            self._has_witness = True
        if since < self._overdue_since:
            self._overdue_since = since
        history = self._first_chunks if self._first_chunks.count >= MIN_RESPONSES else self._answers
        usual_s = max(history.longest_s, self._gaps.longest_s)
        if history.count >= MIN_RESPONSES and now - since >= HISTORY_FACTOR * usual_s:
            self._unusual_since = min(self._unusual_since, since)

    def began(self, waited_s: float, prefill_s: float = 0.0, streams: int = 1) -> None:
        """Record a stream without an error. See `LongestWaits.add`."""
        self._first_chunks.add(waited_s, prefill_s, streams)

    def completed(
        self, duration_s: float, *, streaming: bool, is_text: bool = True, prefill_s: float = 0.0, streams: int = 1
    ) -> None:
        """Record a complete response that took `duration_s` (s). See `LongestWaits.add` and `AwaitedResponse`."""
        history = self._streams if streaming else (self._answers if is_text else self._others)
        history.add(duration_s, prefill_s, streams)

    def resumed(self, silent_s: float) -> None:
        """Record a chunk of a stream after a noticeable silence (s)."""
        self._gaps.add(silent_s)

    def read_load(self, requests: float, now: float) -> None:
        """Record a reading of the engine's metrics: the number of requests that the engine runs and queues at `now`
        (s)."""
        if requests > 0:
            self._has_run, self._idle_readings = True, ()
        elif self._has_run:
            self._idle_readings = (*self._idle_readings, now)[-IDLE_READINGS:]

    def take_sample(self) -> ProgressSample:
        """Return the sample, and start the next one."""
        long = 0 if self._has_witness else len(self._maybe_long) + self._has_pause
        readings = self._idle_readings
        idle_since = readings[0] if len(readings) == IDLE_READINGS else inf
        sample = ProgressSample(
            self.progressed_at,
            self._waiting_since,
            self._overdue_since,
            idle_since,
            self._unusual_since,
            0 < long < WITNESSES and not self._is_long,
            long > 0,
        )
        self._waiting_since = self._overdue_since = self._unusual_since = inf
        self._maybe_long.clear()
        self._has_pause = self._is_long = self._has_witness = False
        return sample


def stall_while_down(sample: ProgressSample, now: float, suspect_after_s: float) -> Stall | None:
    """Return the evidence that an endpoint makes no progress that is down because its server answers no probe.

    Its probes are the evidence, so that silence suffices: nothing need be known of its responses.

    Args:
        sample, now, suspect_after_s: as for `stall_of`.
    """
    silent_s = sample.silent_s(now)
    if suspect_after_s <= 0.0 or silent_s < suspect_after_s * HISTORY_SHARE:
        return None
    detail = f"it is down and answers no probe, and nothing has arrived for {silent_s:.1f} s"
    return Stall(StallReason.UNANSWERED, detail)


def stall_of(
    sample: ProgressSample,
    siblings: Iterable[ProgressSample],
    now: float,
    suspect_after_s: float,
    *,
    serves_elsewhere: bool = True,
) -> Stall | None:
    """Return the evidence that an endpoint makes no progress; None without such evidence.

    Args:
        sample: of the endpoint.
        siblings: of the other endpoints of a pool that may take requests. An estimate alone is evidence only if one of
            them progresses; otherwise the cause is probably shared.
        now: the present time (s), by the clock of the samples.
        suspect_after_s: time (s) without progress that makes an endpoint suspect; 0 disables the check.
        serves_elsewhere: whether another region serves. Responses that may be long are evidence only if a sibling makes
            progress, or if there is none and another region serves.
    """
    if suspect_after_s <= 0.0 or sample.overdue_since == inf:
        return None
    since = max(sample.progressed_at, sample.overdue_since)
    if since <= sample.idle_since < inf:
        detail = f"{IDLE_READINGS} readings show no request; one has waited for {now - sample.overdue_since:.1f} s"
        return Stall(StallReason.IDLE, detail)
    if sample.may_be_long:
        return None
    patience_s, siblings = suspect_after_s * SIBLING_SHARE, list(siblings)
    if sample.may_all_be_long:
        # An idle sibling shows nothing: it has no long work.
        progresses = [now - sibling.progressed_at < patience_s for sibling in siblings]
        if not (any(progresses) if progresses else serves_elsewhere):
            return None
    silent_s = now - max(sample.progressed_at, sample.unusual_since)
    if silent_s >= suspect_after_s * HISTORY_SHARE:
        detail = f"nothing has arrived for {silent_s:.1f} s, which recent responses do not explain"
        return Stall(StallReason.UNUSUAL, detail)
    if now - since < suspect_after_s:
        return None
    if all(sibling.silent_s(now) >= patience_s for sibling in siblings):
        return None
    return Stall(StallReason.SILENT, f"a request is overdue, and nothing has arrived for {now - since:.1f} s")
