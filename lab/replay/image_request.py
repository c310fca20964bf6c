"""The bytes of a request for an image, by the API of Automatic1111's web UI."""

from __future__ import annotations

import msgspec

from lab.replay.replay_workload import ImageSize, PlannedRequest
from lab.replay.written_request import WrittenRequest, written_request

IMAGE_PATH = b"/sdapi/v1/txt2img"


def image_request(planned: PlannedRequest, size: ImageSize) -> WrittenRequest:
    """The request for an image of that size."""
    body = {
        "prompt": f"a lake above a gate, {planned.id}",
        "width": size.width,
        "height": size.height,
        "steps": size.steps,
        "override_settings": {"sd_model_checkpoint": planned.model},
    }
    return written_request(planned, IMAGE_PATH, "application/json", msgspec.json.encode(body))
