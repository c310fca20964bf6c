"""How the answers of one route are read: the places of its usage, and the byte strings that announce them."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.answers.json_reducer import JsonReducer, Wanted, wanted_members
from penstock.answers.usage_reader import Fields, UsagePlaces, members_of
from penstock.answers.values import has_one_of
from penstock.routes.json_pointer import parse_pointer
from penstock.routes.route import ErrorFormat, Route, UsageFields

ERROR_MARK: Final = b'"error"'
"""Occurs in every error (`answer_errors`). In a string that a model generates, the quotes would be escaped."""

_END_MARKS: Final = (b"[DONE]",)
_ANTHROPIC_END_MARKS: Final = (b'"message_stop"',)
_RESPONSES_END_MARKS: Final = (
    *_END_MARKS,
    b'"response.completed"',
    b'"response.incomplete"',
    b'"response.failed"',
)

_ERRORS: Final = ("/error", "/object", "/type", "/status", "/response/error", "/response/status")
_OUTPUT: Final = "/output"
_ITEMS: Final = ("/output/id", "/response/output/id")
"""In place of the output, of which only the identifiers of its items are read."""
_RESPONSE_USAGE: Final = "/response/usage"
_DELTA_MARKS: Final = {"/message/usage": b'"content_block_delta"', _RESPONSE_USAGE: b'.delta"'}
"""The byte string that each event with output contains, in streams that have events without output, by a place of the
usage that only such a stream has."""

_MEMBERS: Final = {
    **dict.fromkeys(("openai-chat-completions", "openai-completions"), ("choices",)),
    # A background response that is queued has a status.
    "openai-responses": ("output", "status"),
    **dict.fromkeys(
        ("openai-embeddings", "openai-images-generations", "openai-images-edits", "openai-images-variations"), ("data",)
    ),
    **dict.fromkeys(("openai-audio-transcriptions", "openai-audio-translations"), ("text", "segments")),
    "anthropic-messages": ("content",),
    "anthropic-count-tokens": ("input_tokens",),
    # A request that only loads the model is done without a text.
    **dict.fromkeys(("ollama-chat", "ollama-generate"), ("message", "response", "done")),
    "ollama-embed": ("embeddings",),
    "ollama-embeddings": ("embedding",),
    **dict.fromkeys(("tgi-generate", "tgi-root"), ("generated_text",)),
    "tgi-generate-stream": ("token", "generated_text"),
    "tgi-tokenize": ("id", "text"),
    "tgi-chat-tokenize": ("tokenize_response", "templated_text"),
    "sglang-generate": ("text", "output_ids", "meta_info"),
    **dict.fromkeys(("sglang-encode", "sglang-classify"), ("embedding", "meta_info")),
    # SGLang responds with the list alone, as does llama.cpp to requests in the form of TEI.
    **dict.fromkeys(("vllm-rerank", "vllm-rerank-v1", "vllm-rerank-v2"), ("results", "data", "score", "index")),
    # `scores`: of SGLang
    **dict.fromkeys(("vllm-score", "vllm-score-v1"), ("data", "scores")),
    # `embedding`: of SGLang
    "vllm-classify": ("data", "embedding"),
    "vllm-pooling": ("data",),
    "vllm-tokenize": ("tokens", "count"),
    # `text`: of SGLang, `content`: of llama.cpp
    "vllm-detokenize": ("prompt", "text", "content"),
    **dict.fromkeys(("kserve-infer", "kserve-version-infer"), ("outputs",)),
    # Other outputs than a text have names of the model.
    **dict.fromkeys(("kserve-generate", "kserve-version-generate"), ("model_name", "text_output")),
    **dict.fromkeys(("kserve-generate-stream", "kserve-version-generate-stream"), ("model_name", "text_output")),
    **dict.fromkeys(("automatic1111-txt2img", "automatic1111-img2img"), ("images", "info")),
    "comfyui-prompt": ("prompt_id",),
}
"""The members of which each whole answer has one, by the name of a preset's route, where its format is certain.

Sources: those of the presets (`penstock/routes/presets`)."""

_LISTS: Final = frozenset(
    {
        "openai-audio-transcriptions",
        "openai-audio-translations",
        "tgi-generate",
        "tgi-root",
        "tgi-tokenize",
        "sglang-generate",
        "sglang-encode",
        "sglang-classify",
        "vllm-rerank",
        "vllm-rerank-v1",
        "vllm-rerank-v2",
        "vllm-classify",
    }
)
"""The routes of presets whose answers may be a list: to several prompts, or of parts."""

_NOT_JSON_ALONE: Final = frozenset(
    {
        "openai-embeddings",
        "openai-images-generations",
        "openai-images-edits",
        "openai-images-variations",
        "vllm-pooling",
        "kserve-infer",
        "kserve-version-infer",
    }
)
"""The routes with members whose answers may be bytes: embeddings of vLLM, images, and tensors of KServe's extension."""

_TEXTS: Final = frozenset({"openai-audio-transcriptions", "openai-audio-translations"})
"""The routes with members whose answers may be any text: `text`, `srt` and `vtt`."""

_MEDIA: Final = frozenset({"openai-audio-speech"})
"""The routes of presets whose whole answers are media, and never a text."""

_NO_MEMBERS: Final[frozenset[str]] = frozenset()

MAX_FORMATS: Final = 4096


class AnswerFormat:
    """The format of the answers of one route."""

    def __init__(self, route: Route | None) -> None:
        """Prepare to read the answers of `route`; None for the fields of OpenAI's API.

        Raises:
            ValueError: a JSON pointer of the route is malformed.
        """
        usage = route.usage if route is not None else UsageFields()
        self.route = route
        self.places = UsagePlaces(usage, generates=route is None or route.cost.generates)
        self.is_openai = msgspec.structs.replace(usage, request="") == UsageFields()
        """Whether the usage is where OpenAI's chats and completions have it (`openai_answer`)."""
        self.has_indexes = "/meta_info" in usage.objects
        """Whether a stream may contain several answers, whose index its events state (`answer_usage`)."""
        self.usage_marks = _usage_marks(self.places)
        """Byte strings, one of which occurs in every record that reports usage."""
        self.end_marks: tuple[bytes, ...] = _END_MARKS
        """Byte strings, one of which occurs in the record that ends a stream, unless the record reports usage."""
        if route is not None and route.errors is ErrorFormat.ANTHROPIC:
            self.end_marks = _ANTHROPIC_END_MARKS
        elif _RESPONSE_USAGE in usage.objects:
            self.end_marks = _RESPONSES_END_MARKS
        self.delta_mark = next((mark for place, mark in _DELTA_MARKS.items() if place in usage.objects), b"")
        """Byte string that occurs in every event with output; empty if every event has output."""
        self.request_flag = parse_pointer(usage.request) if usage.request else ()
        """Path of the flag by which a request asks for the usage of a stream; empty if there is none."""
        pointers = [*usage.objects, *_ERRORS]
        self.is_stored = route is not None and route.object_id != "" and not route.creates_objects
        """Whether an answer may be an object of an earlier request, whose failure was that request's."""
        if self.is_stored:
            pointers.append("/id")
        self.id_paths: tuple[tuple[str, ...], ...] = ()
        """Paths of the identifier of the object that an answer creates; empty if it creates none."""
        if route is not None and route.creates_objects:
            path = parse_pointer(route.object_id)
            self.id_paths = (path, ("response", *path))
            pointers += [route.object_id, f"/response{route.object_id}"]
        self.has_items = bool(self.id_paths) and route is not None and route.previous_object != ""
        """Whether requests may refer to the items of an answer."""
        pointers += _ITEMS if self.has_items else (_OUTPUT,)
        if self.has_indexes:
            pointers.append("/index")
        if () in self.places.objects:
            pointers += list(self.places.numbers)
        is_preset = route is not None and not route.source
        self.members = frozenset(_MEMBERS.get(route.name, ())) if is_preset and route is not None else _NO_MEMBERS
        """The members of which each whole answer has one; empty if the route has answers of any form."""
        self.may_be_text = bool(self.members) and route is not None and route.name in _TEXTS
        """Whether a whole answer may be a text that is neither a JSON object nor an array, also an empty one."""
        self.is_json = bool(self.members) and route is not None and route.name not in _NOT_JSON_ALONE | _TEXTS
        """Whether a whole answer is a JSON text, whatever its Content-Type."""
        self.is_media = is_preset and route is not None and route.name in _MEDIA
        """Whether a whole answer is no text."""
        self.has_form = bool(self.members) or self.is_media
        """Whether a whole response may be of another form than the answers of the route."""
        self._has_lists = route is not None and route.name in _LISTS
        self.wanted: Wanted = wanted_members(pointers)
        """The members of a long answer that are read."""

    def is_answer(self, fields: Fields) -> bool:
        """Whether an object has the form of the route's answers."""
        return not self.is_media and has_one_of(fields, self.members)

    def is_reduced_answer(self, reducer: JsonReducer) -> bool:
        """Whether a long text that has been reduced, and has ended, has the form of the route's answers."""
        if self.is_media or (reducer.is_array and self.members and not self._has_lists):
            return False
        if self.may_be_text and not (reducer.is_array or reducer.is_object):
            return True
        return reducer.has_expected or not self.members

    def is_list(self, answers: list[bytes]) -> bool:
        """Whether the elements of a list are answers of the route, by the first of them."""
        if not self.members:
            return not self.is_media
        first = members_of(answers[0]) if answers and self._has_lists else None
        return first is not None and not self.members.isdisjoint(first)


class AnswerFormats:
    """The formats of the routes of a policy, created when first used."""

    def __init__(self) -> None:
        self._by_name: dict[str, AnswerFormat] = {}
        self._default = AnswerFormat(None)

    def of(self, route: Route | None) -> AnswerFormat:
        """The format of the answers of `route`."""
        if route is None:
            return self._default
        known = self._by_name.get(route.name)
        if known is None or known.route is not route:
            if len(self._by_name) >= MAX_FORMATS:
                self._by_name.clear()
            known = self._by_name[route.name] = AnswerFormat(route)
        return known


def _usage_marks(places: UsagePlaces) -> tuple[bytes, ...]:
    marks = {b'"%b"' % tokens[-1].encode(): None for tokens in places.objects if tokens}
    if () in places.objects:
        marks |= {b'"%b"' % path[0].encode(): None for path in places.numbers.values()}
    return tuple(marks)
