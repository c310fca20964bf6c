from pathlib import Path

import pytest

from regional_agent.carry.upstream import Address
from regional_agent.endpoint_file import (
    LARGEST_FILE_BYTES,
    MOST_PROBLEMS,
    BadEndpointFile,
    EndpointSpec,
    parse_endpoints,
    read_endpoint_file,
)

PATH = Path("endpoints.yaml")
GOOD = """\
- name: gpu-1
  url: http://127.0.0.1:8001
  models: [llama-3-8b, "7"]
  zone: a
  accelerator: h100
  slots: 16
  queue: 4
- {name: gpu-2, url: "http://[::1]:8002", models: [llama-3-8b], slots: 8}
"""


def parse(text: str) -> tuple[EndpointSpec, ...]:
    return parse_endpoints(text.encode(), PATH)


def test_reads_every_field_and_its_default() -> None:
    assert parse(GOOD) == (
        EndpointSpec("gpu-1", Address("127.0.0.1", 8001), ("llama-3-8b", "7"), 16, 4, "a", "h100"),
        EndpointSpec("gpu-2", Address("::1", 8002), ("llama-3-8b",), 8),
    )
    assert parse("[]") == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("name: gpu-1", "name: ../x"), ":1: name: '../x' is not a name"),
        (("name: gpu-1", "name: 17"), ":1: name: not a text"),
        (("name: gpu-1\n  ", ""), ":1: name: missing"),
        (("http://127.0.0.1:8001", "127.0.0.1:8001"), ":2: url: '127.0.0.1:8001' is not an address"),
        (("http://127.0.0.1:8001", "http://127.0.0.1:99999"), ":2: url: 'http://127.0.0.1:99999' is not an address"),
        (('[llama-3-8b, "7"]', "llama-3-8b"), ":3: models: not a list"),
        (('[llama-3-8b, "7"]', "[]"), ":3: models: not a list of 1-64"),
        (('[llama-3-8b, "7"]', "[a, a]"), ":3: models: a model is named twice"),
        (("slots: 16", "slots: 0"), ":6: slots: not a whole number from 1"),
        (("slots: 16", "slots: 1.5"), ":6: slots: not a whole number"),
        (("slots: 16", "slots: '16'"), ":6: slots: not a whole number"),
        (("queue: 4", "queue: -1"), ":7: queue: not a whole number from 0"),
        (("queue: 4", "queued: 4"), ":7: queued: no such field; there are name, url"),
        (("queue: 4", "slots: 4"), ":7: slots: given twice"),
        (("gpu-2", "gpu-1"), ":8: name: gpu-1 is that of gpu-1 (line 1) too"),
        (("[::1]:8002", "127.0.0.1:8001"), ":8: url: 127.0.0.1:8001 is that of gpu-1 (line 1) too"),
        (("queue: 4\n", "queue: 4\n - x\n"), ":8: not YAML"),
    ],
)
def test_a_mistake_names_its_line_and_field(change: tuple[str, str], says: str) -> None:
    with pytest.raises(BadEndpointFile) as caught:
        parse(GOOD.replace(*change))
    (line,) = str(caught.value).splitlines()
    assert line.startswith("endpoints.yaml" + says)
    assert ";" in line


@pytest.mark.parametrize("text", ["", "name: gpu-1", "just words"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(BadEndpointFile, match=r"endpoints\.yaml:1: not a list"):
        parse(text)


def test_all_mistakes_are_told_together_up_to_a_bound() -> None:
    with pytest.raises(BadEndpointFile) as caught:
        parse("- name: x\n" * 100)
    assert len(str(caught.value).splitlines()) == MOST_PROBLEMS


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (LARGEST_FILE_BYTES + 1), b"[" * 100_000, b"- !!python/x {}"])
def test_hostile_content_is_refused(content: bytes) -> None:
    with pytest.raises(BadEndpointFile, match=r"endpoints\.yaml"):
        parse_endpoints(content, PATH)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadEndpointFile, match="cannot read the endpoints"):
        read_endpoint_file(tmp_path / "none.yaml")
