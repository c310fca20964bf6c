"""Asks one etcd member for its state."""

from __future__ import annotations

import grpc
import msgspec

from adapters.etcd.etcd_connection import Connections, Endpoint, Tls
from adapters.etcd.etcd_stubs import etcdrpc
from adapters.store.config_store import StoreUnavailable


class MemberState(msgspec.Struct, frozen=True):
    """The state of a member, as it reports it."""

    version: str
    database_bytes: int
    has_leader: bool


def member_state(endpoint: str, tls: Tls | None, timeout_s: float) -> MemberState:
    """Return the state of the member at `host:port`. Blocks.

    Args:
        tls: the TLS files; None connects without TLS.
        timeout_s: time limit of the connection and the answer.

    Raises:
        StoreUnavailable: the member does not answer, or rejects the client.
    """
    connections = Connections([Endpoint.parse(endpoint)], tls.watched() if tls is not None else None)
    try:
        with connections.use() as connection:
            answer = connection.client.maintenancestub.Status(
                etcdrpc.StatusRequest(), timeout=timeout_s, wait_for_ready=True
            )
    except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
        late = code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
        why = f"no answer within {timeout_s:g} s" if late else str(code.name)
        raise StoreUnavailable(why) from None
    finally:
        connections.close()
    return MemberState(answer.version, answer.dbSize, answer.leader != 0)
