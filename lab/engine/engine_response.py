"""The response to one completion request: sends tokens as they are generated, or all tokens at the end."""

from __future__ import annotations

from lab.engine.batching import Sequence
from lab.engine.completion_request import CompletionRequest
from lab.engine.engine_http import HttpConnection
from lab.engine.openai_format import usage
from lab.engine.other_formats import AnswerFormat

REQUEST_ID_HEADER = "x-request-id"
RESIDENCY_HEADER = "x-lab-residency"


class Answer:
    """Sends the tokens of one sequence. Tokens for a slow client are counted, not buffered, and are written when the
    client has read the earlier tokens."""

    __slots__ = (
        "_connection",
        "_cut_at",
        "_echo",
        "_format",
        "_opened",
        "_stream_interval",
        "_written",
        "arrived_at",
        "first_token_at",
        "request",
        "request_id",
        "required",
        "sequence",
    )

    def __init__(
        self,
        connection: HttpConnection,
        request: CompletionRequest,
        answer_format: AnswerFormat,
        arrived_at: float,
        stream_interval: int = 1,
    ) -> None:
        """Create a response to `request` on `connection`.

        Args:
            arrived_at: arrival time (s) on the event loop's clock.
            stream_interval: tokens per event, if the format supports several tokens per event.
        """
        self._stream_interval = stream_interval
        self._connection = connection
        self._format = answer_format
        request_id = connection.headers.get(REQUEST_ID_HEADER)
        self._echo = () if request_id is None else (f"x-request-id: {request_id}",)
        self._opened = False
        self._written = 0
        self._cut_at: int | None = None
        self.request = request
        self.sequence = Sequence(request.prompt_tokens, request.output_tokens, request.spans)
        self.arrived_at = arrived_at
        self.first_token_at: float | None = None
        self.request_id = request_id
        self.required = connection.headers.get(RESIDENCY_HEADER)
        """Regions that the client's residency permits, for the witness."""

    @property
    def finish_reason(self) -> str:
        """Finish reason of a response that no fault interrupts."""
        return "length" if self.request.stopped_by_length else "stop"

    @property
    def dying(self) -> bool:
        """Whether the connection is about to be reset."""
        return self._cut_at is not None

    def accept(self) -> None:
        """Send the head of a streamed response before the first token, as vLLM does."""
        if self.request.stream:
            self._connection.on_resume = self.deliver
            self._connection.begin_stream(self._format.content_type, self._echo)

    def deliver(self) -> None:
        """Write the tokens generated since the last call, and the end of the response if the sequence is finished."""
        sequence = self.sequence
        finished = sequence.finished and not self.dying
        if not self.request.stream:
            if finished:
                body = self._format.whole(sequence.generated, self.finish_reason, self._usage())
                self._connection.respond(200, body, more=self._echo)
            return
        ready = sequence.generated if self._cut_at is None else min(sequence.generated, self._cut_at)
        if self._connection.paused or self._written >= ready:
            return
        is_last = finished or self.dying
        if self._opened and not is_last and ready - self._written < self._stream_interval:
            return
        opening = b"" if self._opened else self._format.role_event()
        events = self._format.token_events(
            self._written,
            ready - self._written,
            self.finish_reason if finished else None,
            self._stream_interval,
        )
        self._opened, self._written = True, ready
        if finished:
            include_usage = self.request.include_usage
            tail = self._format.closing(self.finish_reason, self._usage(), include_usage=include_usage)
            self._connection.end_stream(opening + events + tail)
        else:
            self._connection.send(opening + events)

    def die_after(self, tokens: int) -> None:
        """Deliver at most `tokens` and not the end of the response; the caller must call `break_off` afterwards."""
        self._cut_at = tokens
        self.deliver()

    def break_off(self) -> None:
        """Reset the connection."""
        self._connection.reset()

    def _usage(self) -> dict[str, object]:
        sequence = self.sequence
        return usage(sequence.prompt_tokens, sequence.generated, sequence.cached_tokens)
