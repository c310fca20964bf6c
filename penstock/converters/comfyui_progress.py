"""The progress and the end of a workflow, by the messages that ComfyUI sends to the WebSocket of its client.

A message that is none of the known ones, or is about another prompt, changes nothing.

Source: https://docs.comfy.org/development/comfyui-server/comms_messages, and main.py, execution.py and
comfy_execution/progress.py of ComfyUI.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

_ENDS: Final = frozenset({"execution_success", "execution_error", "execution_interrupted"})
"""Messages at the end of a prompt, shortly before its history is written. `executing` without a node follows it."""


class _Workflow(msgspec.Struct):
    prompt: dict[str, msgspec.Raw] = {}


class _Node(msgspec.Struct):
    state: Any = None
    value: Any = None
    max: Any = None


class _Data(msgspec.Struct):
    prompt_id: Any = None
    node: Any = None
    value: Any = None
    max: Any = None
    nodes: msgspec.Raw = msgspec.Raw(b"null")


class _Message(msgspec.Struct):
    type: str
    data: _Data


_workflows: Final = msgspec.json.Decoder(_Workflow)
_messages: Final = msgspec.json.Decoder(_Message)
_states: Final = msgspec.json.Decoder(dict[str, _Node])
_names: Final = msgspec.json.Decoder(list[str])


class WorkflowProgress:
    """The nodes of one workflow, each with its part that is done."""

    def __init__(self, prompt: bytes) -> None:
        """Start before the workflow `prompt`, the body of a request that ComfyUI may refuse."""
        try:
            nodes = _workflows.decode(prompt).prompt
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            nodes = {}
        self._parts = dict.fromkeys(nodes, 0.0)
        self._sum = 0.0
        self._node = ""
        """The node that runs."""
        self.prompt_id = ""
        """The identifier of the prompt; empty before it is known."""
        self.value = 0.0
        """Part (0-1) of the nodes that is done; it never falls. Nodes that need not run are not done at the end."""
        self.has_started = self.has_ended = False

    def read(self, message: bytes) -> None:
        """Process a text message of ComfyUI, whatever it has."""
        try:
            found = _messages.decode(message)
            data = found.data
            if found.type == "execution_start" and not self.prompt_id and isinstance(data.prompt_id, str):
                # No other client receives this message: it may arrive before the response to the prompt.
                self.prompt_id = data.prompt_id
            if not self.prompt_id or data.prompt_id != self.prompt_id:
                return
            self.has_started = True
            if found.type == "execution_cached":
                for node in _names.decode(data.nodes):
                    self._done(node, 1.0)
            elif found.type == "executing":
                self._executes(data.node)
            elif found.type == "progress":
                self._done(data.node, _part(data.value, data.max))
            elif found.type == "progress_state":
                for node, state in _states.decode(data.nodes).items():
                    self._done(node, 1.0 if state.state == "finished" else _part(state.value, state.max))
            elif found.type in _ENDS:
                self.has_ended = True
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if self._parts:
            self.value = max(self.value, min(1.0, self._sum / len(self._parts)))

    def _executes(self, node: object) -> None:
        self._done(self._node, 1.0)
        self._node = node if isinstance(node, str) else ""
        self.has_ended = self.has_ended or node is None

    def _done(self, node: object, part: float) -> None:
        # Nodes that others have expanded into are not among those of the request.
        before = self._parts.get(node) if isinstance(node, str) else None
        if isinstance(node, str) and before is not None:
            self._parts[node] = part
            self._sum += part - before


def _part(value: object, maximum: object) -> float:
    """Return the part (0-1) of a node that is done; 0 unless both are numbers that make sense."""
    if not isinstance(value, int | float) or not isinstance(maximum, int | float) or maximum <= 0:
        return 0.0
    try:
        # In this order, the result for no number (infinity by infinity) is 0.
        return min(1.0, max(0.0, value / maximum))
    except OverflowError:
        return 0.0
