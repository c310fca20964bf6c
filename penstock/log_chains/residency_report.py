"""Reports where requests were processed, by the access logs of all agents, and whether residency permits it. Pure.

The origin and the serving region each write a line of a forwarded request, with the same request id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf

import msgspec

from penstock.log_chains.access_log_chain import ChainHead, chained_line
from penstock.log_chains.chain_check import ChainCheck, Epoch
from penstock.log_chains.log_ends import LogFault, SignedHeads, UnprovedSpan
from penstock.policy.residency import SHORTENED, residency_class

FORWARDED = "forwarded"
"""Kind of the lines that a serving region writes for requests from other regions."""

NO_REGION = ("", "none")
"""Values of the server in lines of requests that no region served."""


class ProcessedRequests(msgspec.Struct, frozen=True, order=True):
    """Requests that one region served, as their origins recorded them."""

    tenant: str
    residency_class: str
    region: str
    governed: bool
    """Whether residency forbids some region for these requests."""
    requests: int


class RequestFinding(msgspec.Struct, frozen=True, order=True):
    """A request that breaks residency, or whose record is incomplete."""

    file: str
    line: int
    request_id: str
    tenant: str
    problem: str


class ResidencyReport(msgspec.Struct, frozen=True):
    """The result of a check of the access logs of a period."""

    proven: bool
    """Whether the report is `consistent`, and signatures of the agents cover the whole period."""
    consistent: bool
    """Whether the records have no visible gap, and no request left its residency class."""
    requests: int
    governed: int
    processed: tuple[ProcessedRequests, ...]
    violations: tuple[RequestFinding, ...]
    """Requests that were in a region which their recorded residency class does not permit."""
    incomplete: tuple[RequestFinding, ...]
    """Requests whose class, or whose line in the serving region, is missing."""
    faults: tuple[LogFault, ...]
    """Lines that are missing, changed, moved or unreadable, and sampled logs."""
    unproved: tuple[UnprovedSpan, ...]
    """Periods of agents that no signature covers; empty if signatures were not verified."""
    epochs: tuple[Epoch, ...]


class _Rejected(msgspec.Struct, frozen=True):
    what: str


class _Line(msgspec.Struct, frozen=True):
    """The part of a line of the access log that the proof needs."""

    at: float
    request_id: str
    tenant: str
    kind: str
    server: str
    outcome: str
    origin: str = ""
    residency_class: str = ""
    permitted: frozenset[str] | None = None
    rejected: tuple[_Rejected, ...] = ()
    tried: Mapping[str, str] = {}
    ttft_ms: float | None = None
    share: float = 1.0


_decoder = msgspec.json.Decoder(_Line)


class _Awaited(msgspec.Struct, frozen=True):
    """A forwarded request for which the serving region must have a line as well."""

    finding: RequestFinding
    key: tuple[str, str, str]


class ReportBuilder:
    """Collects the lines of all files; `report` returns the result."""

    def __init__(
        self,
        since: float = -inf,
        until: float = inf,
        tenant: str | None = None,
        kept: Iterable[ChainHead] = (),
        signed: SignedHeads | None = None,
    ) -> None:
        """Report requests that ended between `since` and `until` (Unix time, s).

        Args:
            tenant: the only tenant to report; None for all.
            kept: heads of earlier reports, which the logs must contain; they show whether an end was cut off.
            signed: the verified heads of all agents; None to verify no signatures, so that the report is not `proven`.
        """
        self._since = since
        self._until = until
        self._tenant = tenant
        self._signed = signed is not None
        self._chain = ChainCheck(since, until, kept, signed)
        self._processed: Counter[tuple[str, str, str, bool]] = Counter()
        self._served: Counter[tuple[str, str, str]] = Counter()
        """Lines of serving regions by request id, origin and server. Clients may use a request id repeatedly."""
        self._awaited: list[_Awaited] = []
        self._violations: list[RequestFinding] = []
        self._incomplete: list[RequestFinding] = []
        self._faults: list[LogFault] = []

    def add_file(self, file: str, lines: Iterable[bytes]) -> None:
        """Add the lines of a file, which may be a rotated one. Files may be added in any order."""
        sampled = False
        for number, text in enumerate(lines, 1):
            chained = chained_line(text.rstrip(b"\n"))
            if chained is None:
                self._faults.append(LogFault(file, number, "no line of an access log with a chain"))
                continue
            try:
                line = _decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._faults.append(LogFault(file, number, f"no line of an access log: {error}"))
                continue
            self._chain.add(file, number, chained, line.at)
            if line.share < 1.0 and not sampled:
                sampled = True
                problem = f"sampled: access_log_share is {line.share:g}; a sampled log is no proof"
                self._faults.append(LogFault(file, number, problem))
            self._add(file, number, line)

    def report(self) -> ResidencyReport:
        """Return the report over all lines. Must be called only once."""
        epochs = self._chain.finish()
        served = self._served.copy()
        incomplete = list(self._incomplete)
        for awaited in self._awaited:
            if served[awaited.key] > 0:
                served[awaited.key] -= 1
            else:
                incomplete.append(awaited.finding)
        if not epochs:
            self._faults.append(LogFault("", 0, "there is no line of an access log with a chain"))
        faults = sorted([*self._faults, *self._chain.faults])
        groups = sorted(ProcessedRequests(*key, requests=count) for key, count in self._processed.items())
        consistent = not (faults or incomplete or self._violations)
        unproved = tuple(self._chain.unproved)
        return ResidencyReport(
            proven=consistent and self._signed and not unproved,
            consistent=consistent,
            requests=sum(group.requests for group in groups),
            governed=sum(group.requests for group in groups if group.governed),
            processed=tuple(groups),
            violations=tuple(sorted(self._violations)),
            incomplete=tuple(sorted(incomplete)),
            faults=tuple(faults),
            unproved=unproved,
            epochs=tuple(epochs),
        )

    def _add(self, file: str, number: int, line: _Line) -> None:
        if line.kind == FORWARDED:
            # Counted regardless of the period, since the clocks of two regions differ.
            self._served[line.request_id, line.origin, line.server] += 1
        if not self._since <= line.at <= self._until or self._tenant not in (None, line.tenant):
            return
        if line.server in NO_REGION and not line.tried:
            return

        def finding(problem: str) -> RequestFinding:
            return RequestFinding(file, number, line.request_id, line.tenant, problem)

        permitted = _permitted(line)
        if permitted is None:
            self._incomplete.append(finding("its residency class is not recorded, or not with its regions"))
            return
        visited = {line.origin, line.server, *line.tried} - {*NO_REGION}
        for region in sorted(visited - permitted):
            self._violations.append(finding(f"was in {region}, which residency class {line.residency_class} forbids"))
        if line.kind == FORWARDED or line.server in NO_REGION:
            return
        self._processed[line.tenant, line.residency_class, line.server, bool(line.rejected)] += 1
        if line.server != line.origin and line.ttft_ms is not None:
            problem = f"was forwarded to {line.server}, and no log has a line of it there"
            self._awaited.append(_Awaited(finding(problem), (line.request_id, line.origin, line.server)))


def _permitted(line: _Line) -> frozenset[str] | None:
    """The regions of the recorded class; None if they are not recorded or do not match the name of the class."""
    name = line.residency_class
    if line.permitted is not None:
        return line.permitted if residency_class(line.permitted).name == name else None
    return None if not name or name.startswith(SHORTENED) else frozenset(name.split("+"))
