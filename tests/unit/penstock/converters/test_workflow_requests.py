"""Requests for workflows that are too large to be decoded, and those that are not."""

from __future__ import annotations

import json

import pytest

from penstock.converters.comfyui import BadWorkflow, prompt_with_client


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":{%b}}' % b",".join(b'"%d":{}' % node for node in range(40_000)),
        b'{"prompt":{"1":{"inputs":{"a":[%b1]}}}}' % (b"1," * 100_000),
        b'{"prompt":{"1":%b' % (b"[" * 100_001),
        b'{"prompt":{"1":{}}%b}' % b"".join(b',"%d":""' % member for member in range(60_000)),
    ],
    ids=["nodes", "numbers", "depth", "members"],
)
def test_a_request_of_very_many_values_is_refused_before_it_is_decoded(body: bytes) -> None:
    with pytest.raises(BadWorkflow, match="the request has more than 100000 of the characters"):
        prompt_with_client(body, "c", "f")


def test_large_images_and_workflows_of_thousands_of_nodes_are_accepted() -> None:
    nodes = b",".join(b'"%d":{"class_type":"X","inputs":{"a":["1",0]}}' % node for node in range(5_000))
    body = b'{"prompt":{%b},"input_images":{"in.png":{"b64_json":"%b"}}}' % (nodes, b"A" * 5_000_000)
    assert prompt_with_client(body, "c", "f").endswith(b'"client_id":"c"}')


def test_files_are_saved_in_a_folder_of_the_prompt() -> None:
    inputs = ({"filename_prefix": "a/b"}, {"filename_prefix": ""}, {"filename_prefix": ["1", 0]}, {"images": "x"}, None)
    nodes = {str(number): {"inputs": each} for number, each in enumerate(inputs)} | {"n": 1}
    sent = json.loads(prompt_with_client(json.dumps({"prompt": nodes}).encode(), "c", "f"))["prompt"]
    assert [sent[number]["inputs"] for number in "01"] == [
        {"filename_prefix": "penstock/f/a/b"},
        {"filename_prefix": "penstock/f/"},
    ]
    assert {number: node for number, node in sent.items() if number not in "01"} == {
        number: node for number, node in nodes.items() if number not in "01"
    }
