"""The progress of a workflow by ComfyUI's messages, whatever else arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.converters.comfyui_progress import WorkflowProgress

PROMPT = json.dumps({"prompt": {str(node): {"class_type": "X"} for node in range(4)}}).encode()


def message(kind: str, **data: Any) -> bytes:
    return json.dumps({"type": kind, "data": {"prompt_id": "p", **data}}).encode()


def started() -> WorkflowProgress:
    progress = WorkflowProgress(PROMPT)
    progress.read(message("execution_start"))
    assert (progress.prompt_id, progress.value, progress.has_started, progress.has_ended) == ("p", 0.0, True, False)
    return progress


def test_nodes_count_by_what_is_done_of_each() -> None:
    progress = started()
    progress.read(message("execution_cached", nodes=["0", "of another"]))
    assert progress.value == 0.25
    progress.read(message("executing", node="1", display_node="1"))
    progress.read(message("progress", value=5, max=20, node="1"))
    assert progress.value == 0.25 + 0.25 / 4
    # As releases without `progress_state` report the end of a node.
    progress.read(message("executing", node="2", display_node="2"))
    assert progress.value == 0.5
    states = {"2": {"state": "running", "value": 1, "max": 2}, "2.0.0.1": {"state": "finished", "value": 1, "max": 1}}
    progress.read(message("progress_state", nodes=states))
    assert progress.value == 0.625
    progress.read(message("progress_state", nodes={"2": {"state": "running", "value": 0, "max": 2}}))
    assert progress.value == 0.625, "it never falls"
    progress.read(message("progress_state", nodes={node: {"state": "finished"} for node in "0123"}))
    assert (progress.value, progress.has_ended) == (1.0, False)


@pytest.mark.parametrize(
    "end",
    [
        message("execution_success"),
        message("execution_error", exception_message="x"),
        message("execution_interrupted"),
        message("executing", node=None),
    ],
)
def test_each_end_is_one_of_this_prompt_alone(end: bytes) -> None:
    progress = started()
    progress.read(end.replace(b'"p"', b'"another"'))
    assert not progress.has_ended
    progress.read(end)
    assert progress.has_ended
    unknown = WorkflowProgress(PROMPT)
    unknown.read(end)
    assert not unknown.has_ended, "only the start may come before the identifier of the prompt"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"type":"progress","data":[]}',
        b'{"type":7,"data":{"prompt_id":"p"}}',
        message("progress", value="5", max=20, node="1"),
        message("progress", value=5, max=0, node="1"),
        message("progress", value=5, max=-1, node="1"),
        message("progress", value=-5, max=20, node="1"),
        message("progress", value=5, max=20, node=["1"]),
        message("progress", value=5, max=20, node="another"),
        message("progress", value=10**400, max=3, node="another"),
        b'{"type":"progress","data":{"prompt_id":"p","node":"1","value":1%b,"max":2}}' % (b"0" * 400),
        b'{"type":"progress","data":{"prompt_id":"p","node":"1","value":1,"max":1%b}}' % (b"0" * 400),
        message("progress_state", nodes=7),
        message("progress_state", nodes={"1": {"state": [], "value": {}, "max": None}}),
        message("progress_state"),
        message("execution_cached", nodes={"0": 1}),
        message("unknown", node=None),
        b'{"type":"executing","data":{"node":null}}',
    ],
)
def test_other_messages_change_nothing(sent: bytes) -> None:
    progress = started()
    progress.read(sent)
    assert progress.value < 1e-6
    assert not progress.has_ended


def test_a_prompt_that_comfyui_refuses_has_no_progress() -> None:
    for prompt in (b"", b"[]", b'{"prompt": 7}', b'{"prompt": {}}', b"[" * 100_000):
        progress = WorkflowProgress(prompt)
        progress.read(message("execution_start"))
        progress.read(message("executing", node="0"))
        assert progress.value == 0.0
