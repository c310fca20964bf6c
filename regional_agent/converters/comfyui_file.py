"""Permits requests for a file at a ComfyUI: only for files that the history of the named prompt has as outputs.

The prompt is an object of the tenant; the name of a file is not, and ComfyUI serves every file to every client.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from penstock.converters.comfyui import BadWorkflow, file_request, finished
from regional_agent.converters.comfyui_engine import Engine
from regional_agent.converters.comfyui_run import ConvertedResponse, failure
from regional_agent.upstream.upstream_sink import UpstreamError

MAX_QUERY_FIELDS: Final = 32
"""Maximum number of parameters of a request for a file."""


async def refusal_of_file(engine: Engine, target: bytes) -> ConvertedResponse | None:
    """Return the response to a request that is not sent to the ComfyUI; None if it is permitted.

    Args:
        target: path and query of the request.
    """
    asked = file_request(_parameters(target.partition(b"?")[2].decode("latin-1")))
    if asked is None:
        return failure(404, "not_found", "a request for a file needs the query parameters prompt_id and filename, once")
    try:
        history = await engine.get(f"/history/{asked.prompt_id}")
        if history.status != 200:
            return failure(502, "engine_failed", f"the ComfyUI answered {history.status} for the history")
        end = finished(history.body, asked.prompt_id)
    except BadWorkflow as error:
        return failure(502, "bad_response", str(error))
    except UpstreamError as error:
        return failure(502, "engine_failed", str(error))
    if end is not None and any(file.stored == asked.file for file in end.files):
        return None
    return failure(404, "not_found", "the history of the prompt names no file with this filename, subfolder and type")


def _parameters(query: str) -> dict[str, list[str]]:
    """Return the parameters of a query; none unless ComfyUI certainly reads the same."""
    # Libraries differ in the handling of both characters; a client that encodes them is not concerned.
    if ";" in query or "#" in query:
        return {}
    try:
        return parse_qs(query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        return {}
