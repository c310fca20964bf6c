"""What engines are asked to report about a stream, beyond what the client asks for.

The usage of each chunk, if another target could continue the stream; else the usage at the end, for the account.
"""

from __future__ import annotations

from penstock.answers.stream_usage_flag import UsageFlag, ask_for_usage
from penstock.continuation.continuable_request import ContinuableRequest, body_with_usage, continuable_request
from penstock.policy.policy import Policy


class StreamUsage:
    """The changes to the body of one request for a stream."""

    def __init__(self) -> None:
        self.flag: UsageFlag | None = None
        """Set if the agent asks for more than the client, which an engine may refuse."""
        self.is_hidden = False
        """Whether the client receives no report of the usage, since it did not ask for one."""
        self.was_refused = False
        """Whether the request is not sent with that flag again."""
        self.refused_by: str | None = None
        """The endpoint that refused the request with that flag, which may be because of the flag; empty for one of
        another region, None for none."""
        self.continuable: ContinuableRequest | None = None
        """Set if the response may be a stream that another target could continue."""
        self.is_unwanted = False
        """Whether the client of a continuable stream asked for no usage."""

    def ask(
        self, path: bytes, body: bytes | bytearray, flag: tuple[str, ...], *, may_continue: bool
    ) -> bytes | bytearray | None:
        """The body that asks for the usage; None if `body` stays as it is. Called once per body of the client.

        Args:
            flag: path of the flag that asks for the usage at the end; empty if it may not be set.
            may_continue: whether the rest of the stream could be sent to another target.
        """
        if may_continue:
            continuable = continuable_request(path, body)
            if not isinstance(continuable, str):
                self.continuable, self.is_unwanted = continuable, not continuable.wants_usage
                if not continuable.wants_continuous_usage:
                    self.flag = UsageFlag.of_member("stream_options", body)
                return body_with_usage(continuable, body)
        asked = ask_for_usage(body, flag) if flag else None
        if asked is None:
            return None
        changed, self.flag = asked
        self.is_hidden = True
        return changed

    def withdraw(self) -> None:
        """Ask no more, since an engine refuses the flag."""
        self.flag, self.continuable, self.was_refused = None, None, True
        self.is_hidden = self.is_unwanted = False


def opted_in(policy: Policy | None, model: str) -> bool:
    """Whether the policy permits that another target continues a stream of `model`."""
    known = policy.models.get(model) if policy is not None else None
    return known is not None and known.continue_streams
