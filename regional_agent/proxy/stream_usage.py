"""What the agent asks engines to report about a stream, beyond what the client asks for.

The usage of each chunk, if another target could continue the stream; else the usage at the end, for the account.
"""

from __future__ import annotations

from penstock.answers.stream_usage_flag import UsageFlag, ask_for_usage
from penstock.continuation.continuable_request import ContinuableRequest, body_with_usage, continuable_request
from penstock.policy.policy import Policy
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.upstream_request import ask_for_identity
from regional_agent.requests.request_context import RequestContext


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

    def ask(self, proxy: Proxy, context: RequestContext, now: float, *, may_continue: bool = True) -> None:
        """Change the body of the request, unless it is changed. Called before each selection, at `now` (s).

        Args:
            may_continue: whether the caller could send the rest of the stream to another target.
        """
        # A body with the flag of the agent, which a fallback model receives too, does not state what the client wants.
        if self.continuable is not None or self.flag is not None:
            return
        request = context.request
        if not request.whole or request.body_dropped or request.http_1_0:
            return
        may_ask = not self.was_refused and proxy.usage_requests.may_ask(context.model, now)
        if may_ask and may_continue and opted_in(context.policy, context.model) and context.route_context is None:
            continuable = continuable_request(request.path, request.body)
            if not isinstance(continuable, str):
                self.continuable, self.is_unwanted = continuable, not continuable.wants_usage
                if not continuable.wants_continuous_usage:
                    self.flag = UsageFlag.of_member("stream_options", request.body)
                request.body = body_with_usage(continuable, request.body)
                request.length = len(request.body)
                ask_for_identity(request)
                return
        flag = proxy.answer_formats.of(request.route).request_flag
        if not flag or request.upgrade or not may_ask:
            return
        asked = ask_for_usage(request.body, flag)
        if asked is not None:
            request.body, self.flag = asked
            self.is_hidden = True
            request.length = len(request.body)
            ask_for_identity(request)

    def withdraw(self, context: RequestContext) -> None:
        """Restore the client's own request, for an engine that refuses the flag of the agent."""
        assert self.flag is not None
        request = context.request
        if not request.body_dropped:
            request.body = self.flag.removed_from(request.body)
            request.length = len(request.body)
        self.flag, self.continuable, self.was_refused = None, None, True
        self.is_hidden = self.is_unwanted = False


def opted_in(policy: Policy | None, model: str) -> bool:
    """Whether the policy permits that another target continues a stream of `model`."""
    known = policy.models.get(model) if policy is not None else None
    return known is not None and known.continue_streams
