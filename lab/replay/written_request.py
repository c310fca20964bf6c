"""An encoded request of a client, without the name of the server."""

from __future__ import annotations

from typing import NamedTuple

from lab.replay.replay_workload import PlannedRequest


class WrittenRequest(NamedTuple):
    """One encoded POST request, for any server."""

    path: bytes
    rest: bytes
    """Everything after the line of the Host header: the other headers and the body."""

    def to(self, authority: str) -> bytes:
        """Return the complete request to the server at `authority` (host:port)."""
        return b"POST %b HTTP/1.1\r\nhost: %b\r\n%b" % (self.path, authority.encode(), self.rest)


def written_request(planned: PlannedRequest, path: bytes, accept: str, body: bytes) -> WrittenRequest:
    """Encode a request with the headers that every request of the replay has.

    Args:
        accept: media type of the response.
        body: JSON.
    """
    lines = [
        f"x-request-id: {planned.id}",
        f"x-forwarded-for: {planned.client_address}",
        f"accept: {accept}",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    if planned.api_key:
        lines.append(f"authorization: Bearer {planned.api_key}")
    if planned.lengths.conversation:
        # Routers with session affinity hash this header; some routers hash the request id if it is absent.
        lines.append(f"x-session-id: {planned.lengths.conversation}")
    if planned.required_regions:
        lines.append(f"x-lab-residency: {','.join(planned.required_regions)}")
    return WrittenRequest(path, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
