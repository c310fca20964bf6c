"""Request handler of one listening socket: routes requests to status pages, faults, or the engine."""

from __future__ import annotations

import asyncio
import hmac
import time
from itertools import count
from random import Random

from lab.engine.completion_request import BadRequest, parse_completion
from lab.engine.engine_config import EndpointConfig
from lab.engine.engine_http import HttpConnection
from lab.engine.engine_response import REQUEST_ID_HEADER, RESIDENCY_HEADER, Answer
from lab.engine.fake_engine import Engine
from lab.engine.faults import parse_faults
from lab.engine.openai_format import CompletionFormat, error_body, models_body
from lab.engine.other_formats import OTHER_FORMATS, AnswerFormat, instant_answer
from lab.engine.tool_calls import ToolCallFormat
from lab.engine.witness_log import WitnessEvent, WitnessLog

MAX_CONNECTIONS = 4096
"""Maximum number of connections. Each has at most one request, so this also bounds the engine's queue."""

COMPLETION_PATHS = {"/v1/chat/completions": True, "/v1/completions": False}
"""Completion paths, and whether the path is that of chat completions."""

GENERATION_PATHS = COMPLETION_PATHS.keys() | OTHER_FORMATS.keys()

FAULTS_PATH = "/lab/faults"

NOT_FOUND = b'{"detail":"Not Found"}'
METHOD_NOT_ALLOWED = b'{"detail":"Method Not Allowed"}'
"""Error bodies of vLLM's web framework, which are not in OpenAI's format."""

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Endpoint:
    """The handler of one listening socket, and its engine."""

    def __init__(self, config: EndpointConfig, witness: WitnessLog, loop: asyncio.AbstractEventLoop) -> None:
        """Create an endpoint; its engine starts to load the model immediately.

        Args:
            config: validated configuration of the endpoint.
            witness: log of the requests that arrive.
            loop: event loop of the endpoint.
        """
        self._config = config
        self._witness = witness
        self._loop = loop
        self._engine = Engine(config, witness, loop)
        self._rng = Random(config.name)
        self._numbers = count(1)
        self._created = int(time.time())
        self._connections: set[HttpConnection] = set()
        self._answers: dict[HttpConnection, Answer] = {}
        self._held: dict[HttpConnection, None] = {}
        """Connections whose requests a hang holds back, in order of arrival."""

    def close(self) -> None:
        """Stop the engine, record its requests as aborted, and reset every connection."""
        self._engine.close()
        for connection in tuple(self._connections):
            self.connection_lost(connection)
            connection.reset()

    def connection_made(self, connection: HttpConnection) -> bool:
        """Register the connection; False if there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= MAX_CONNECTIONS

    def head_arrived(self, connection: HttpConnection) -> None:
        """Record the arrival of a completion request before any processing: it has now reached this region."""
        connection.path = self._without_base_path(connection.path)
        if connection.method == "POST" and connection.path in GENERATION_PATHS:
            headers = connection.headers
            self._witness.write(
                WitnessEvent.ARRIVED,
                self._config.name,
                headers.get(REQUEST_ID_HEADER),
                headers.get(RESIDENCY_HEADER),
            )

    def request_arrived(self, connection: HttpConnection) -> None:
        """Route a request, or hold it while the engine hangs."""
        if connection.path == FAULTS_PATH:
            self._serve_faults(connection)
        elif self._engine.faults.hang:
            self._held[connection] = None
        elif connection.path.startswith("/v1/") and not self._is_authorized(connection):
            connection.respond(401, b'{"error":"Unauthorized"}')
        elif connection.path in GENERATION_PATHS:
            self._serve_completion(connection)
        elif connection.method != "POST" or not self._serve_at_once(connection):
            self._serve_page(connection)

    def connection_lost(self, connection: HttpConnection) -> None:
        """Remove the connection and cancel its request."""
        self._connections.discard(connection)
        self._held.pop(connection, None)
        answer = self._answers.pop(connection, None)
        if answer is not None:
            self._engine.cancel(answer)

    def _without_base_path(self, path: str) -> str:
        """Return the path below the base path; empty for other paths. The faults have no base path."""
        base_path = self._config.base_path
        return path.removeprefix(base_path) if path == FAULTS_PATH or path.startswith(f"{base_path}/") else ""

    def _is_authorized(self, connection: HttpConnection) -> bool:
        expected = f"Bearer {self._config.api_key}".encode()
        given = connection.headers.get("authorization", "").encode("latin-1")
        return not self._config.api_key or hmac.compare_digest(given, expected)

    def _serve_page(self, connection: HttpConnection) -> None:
        if connection.path not in ("/health", "/v1/models", "/metrics", "/get_load"):
            connection.respond(404, NOT_FOUND)
        elif connection.method != "GET":
            connection.respond(405, METHOD_NOT_ALLOWED, more=("allow: GET",))
        elif connection.path == "/metrics":
            connection.respond(200, self._engine.render_metrics(), PROMETHEUS_TEXT)
        elif not self._engine.loaded:
            _refuse(connection, 503, "ServiceUnavailableError", "the model is still being loaded")
        elif connection.path == "/get_load":
            connection.respond(200, self._engine.render_load())
        elif connection.path == "/health":
            connection.respond(503 if self._engine.faults.refuse_health else 200, b"")
        else:
            connection.respond(
                200,
                models_body(
                    self._config.served_model_name,
                    self._created,
                    self._config.max_model_len,
                    self._engine.faults.revision,
                ),
            )

    def _serve_at_once(self, connection: HttpConnection) -> bool:
        """Serve a request that generates no text; False if the path has no such request."""
        try:
            body = instant_answer(connection.path, connection.body, self._config.served_model_name)
        except (ValueError, TypeError, RecursionError) as error:
            _refuse(connection, 400, "BadRequestError", str(error))
            return True
        if body is not None:
            connection.respond(200, body)
        return body is not None

    def _serve_faults(self, connection: HttpConnection) -> None:
        if connection.method == "POST":
            try:
                self._engine.set_faults(parse_faults(connection.body))
            except ValueError as error:
                _refuse(connection, 400, "BadRequestError", f"faults: {error}")
                return
        elif connection.method != "GET":
            _refuse(connection, 405, "MethodNotAllowedError", f"{FAULTS_PATH} accepts GET and POST")
            return
        connection.respond(200, self._engine.faults.encoded())
        if not self._engine.faults.hang:
            held, self._held = self._held, {}
            for waiting in held:
                self.request_arrived(waiting)

    def _serve_completion(self, connection: HttpConnection) -> None:
        faults = self._engine.faults
        if connection.method != "POST":
            connection.respond(405, METHOD_NOT_ALLOWED, more=("allow: POST",))
        elif not self._engine.loaded:
            _refuse(connection, 503, "ServiceUnavailableError", "the model is still being loaded")
        elif faults.reject:
            _refuse(connection, 429, "TooManyRequestsError", "the engine is full", ("retry-after: 1",))
        elif faults.error_rate and self._rng.random() < faults.error_rate:
            _refuse(connection, faults.error_status, "InternalServerError", "an injected fault")
        else:
            self._complete(connection)

    def _complete(self, connection: HttpConnection) -> None:
        config = self._config
        chat = COMPLETION_PATHS.get(connection.path, True)
        other = OTHER_FORMATS.get(connection.path)
        model = config.served_model_name
        try:
            body = connection.body if other is None else other.as_chat(connection.body)
            request = parse_completion(chat, body, model, config.max_model_len, self._rng)
        except BadRequest as error:
            if other is None:
                refusal = error_body(error.status, error.error_type, str(error), error.param)
            else:
                refusal = other.error(error.status, str(error))
            connection.respond(error.status, refusal)
            return
        answer_id = f"{config.name}-{next(self._numbers)}"
        answer_format: AnswerFormat
        if other is None:
            counted_tokens = request.prompt_tokens if request.continuous_usage else None
            text = CompletionFormat(chat, answer_id, int(time.time()), model, request.first_word, counted_tokens)
            answer_format = text
            if request.tool:
                answer_format = ToolCallFormat(text, request.first_word, request.call_from, request.tool)
        else:
            answer_format = other.answer(answer_id, model, request.prompt_tokens, request.output_tokens)
        answer = Answer(connection, request, answer_format, self._loop.time(), config.stream_interval)
        self._answers[connection] = answer
        self._engine.submit(answer)


def _refuse(connection: HttpConnection, status: int, error_type: str, message: str, more: tuple[str, ...] = ()) -> None:
    connection.respond(status, error_body(status, error_type, message), more=more)
