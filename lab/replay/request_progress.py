"""Progress of one request: all attempts so far, and the resulting outcome."""

from __future__ import annotations

from lab.replay.entry import Entry
from lab.replay.outcome import Outcome, OutcomeKind, Try, TryResult, judge
from lab.replay.replay_workload import PlannedRequest
from lab.replay.response_exchange import ResponseExchange

REGION_HEADER = b"x-penstock-region"
ENDPOINT_HEADER = b"x-penstock-endpoint"
REGIONS_HEADER = b"x-penstock-regions"
RETRY_AFTER_HEADER = b"retry-after"


class RequestProgress:
    """Progress of one request. The client records events, and `outcome` summarises the events."""

    __slots__ = (
        "_answer",
        "_entry",
        "_lost",
        "_problem",
        "_sent_s",
        "_started_s",
        "_tries",
        "_try_began_s",
        "named_regions",
        "planned",
        "tried",
        "waited",
    )

    def __init__(self, planned: PlannedRequest, started_s: float) -> None:
        """Args: `started_s` is the time at which the replayer started the request."""
        self.planned = planned
        self.tried: frozenset[str] = frozenset()
        """URLs that must not be tried again."""
        self.named_regions: list[str] | None = None
        """The regions that the response to a misdirected request named; None before such a response."""
        self.waited = False
        """Whether the request has waited for a Retry-After, which it does at most once."""
        self._started_s = started_s
        self._sent_s: float | None = None
        self._tries: list[Try] = []
        self._entry: Entry | None = None
        self._try_began_s = 0.0
        self._answer: ResponseExchange | None = None
        self._problem = "no_entry"
        self._lost = False

    def start_attempt(self, entry: Entry, at_s: float) -> None:
        """Record the start of an attempt."""
        self.tried |= {entry.url}
        self._entry = entry
        self._try_began_s = at_s
        self._answer = None

    def record_send(self, exchange: ResponseExchange, at_s: float) -> None:
        """Record that the request was written to the connection of `exchange`."""
        self._sent_s = at_s
        self._answer = exchange

    def end_attempt(self, result: TryResult, problem: str, at_s: float) -> None:
        """Record the end of an attempt; `problem` is empty if it succeeded."""
        if self._entry is not None:
            status = self._answer.status if self._answer is not None else 0
            self._tries.append(Try(self._entry.region, self._entry.url, self._try_began_s, at_s, result, status))
            self._entry = None
        self._problem = problem

    def record_loss(self, problem: str, at_s: float) -> None:
        """Record that the client abandoned the request, in any state."""
        has_first_byte = self._answer is not None and self._answer.first_byte_s is not None
        self.end_attempt(TryResult.ANSWERED if has_first_byte else TryResult.SILENT, problem, at_s)
        self._lost = True

    def outcome(self, end_s: float) -> Outcome:
        """Return the outcome of the request, which ended at `end_s`."""
        planned, answer = self.planned, self._answer
        kind, status, code = self._verdict()
        return Outcome(
            id=planned.id,
            site=planned.site,
            tenant=planned.tenant,
            model=planned.model,
            scheduled_s=planned.at_s,
            started_s=self._started_s,
            sent_s=self._sent_s,
            first_token_s=answer.first_token_s if answer is not None else None,
            end_s=end_s,
            kind=kind,
            status=status,
            code=code,
            tries=tuple(self._tries),
            region=header_text(answer, REGION_HEADER),
            endpoint=header_text(answer, ENDPOINT_HEADER),
            tokens=answer.tokens if answer is not None else 0,
        )

    def _verdict(self) -> tuple[OutcomeKind, int, str]:
        answer = self._answer
        if answer is None or self._lost or answer.first_byte_s is None:
            return OutcomeKind.FAILED, answer.status if answer is not None else 0, self._problem
        if answer.cancelled:
            return OutcomeKind.CANCELLED, answer.status, ""
        kind = judge(answer.status, answer.code, answer.whole)
        if kind is OutcomeKind.OK:
            return kind, answer.status, ""
        return kind, answer.status, answer.code or self._problem or f"http_{answer.status}"


def header_text(answer: ResponseExchange | None, name: bytes) -> str:
    """Return a response header as text; empty if it is absent."""
    return answer.headers.get(name, b"").decode("latin-1").strip() if answer is not None else ""
