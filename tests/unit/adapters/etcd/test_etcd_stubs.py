"""etcd3's messages work with the current protobuf, without a setting that affects the whole process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adapters.etcd.etcd_stubs import Etcd3Client, etcdrpc, register, serialized_descriptor


def run_fresh(code: str) -> str:
    """Run code in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_messages_are_decoded_as_they_were_encoded() -> None:
    request = etcdrpc.TxnRequest(
        compare=[etcdrpc.Compare(key=b"k", target=etcdrpc.Compare.MOD, mod_revision=7)],
        success=[etcdrpc.RequestOp(request_put=etcdrpc.PutRequest(key=b"k", value=b"v", lease=5))],
    )
    assert etcdrpc.TxnRequest.FromString(request.SerializeToString()) == request
    assert request.compare[0].WhichOneof("target_union") == "mod_revision"
    assert etcdrpc.NOSPACE == 1
    assert Etcd3Client.__module__ == "etcd3.client"


def test_newer_fields_have_their_published_numbers() -> None:
    progress = etcdrpc.WatchRequest(progress_request=etcdrpc.WatchProgressRequest())
    assert progress.SerializeToString() == b"\x1a\x00"
    assert progress.WhichOneof("request_union") == "progress_request"
    assert etcdrpc.WatchCreateRequest(fragment=True).SerializeToString() == b"\x40\x01"
    assert etcdrpc.WatchResponse.FromString(b"\x38\x01").fragment


def test_protobuf_stays_compiled_and_the_default_pool_unchanged() -> None:
    code = (
        "import os, sys\n"
        "import adapters.etcd.etcd_stubs\n"
        "from google.protobuf import descriptor_pool\n"
        "from google.protobuf.internal import api_implementation\n"
        "assert 'PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION' not in os.environ\n"
        "try: descriptor_pool.Default().FindFileByName('rpc.proto')\n"
        "except KeyError: print(api_implementation.Type())\n"
    )
    assert run_fresh(code) == "upb"


def test_another_file_of_the_same_name_is_accepted() -> None:
    code = (
        "from google.protobuf import descriptor_pool, descriptor_pb2\n"
        "descriptor_pool.Default().Add(descriptor_pb2.FileDescriptorProto(name='rpc.proto', package='another'))\n"
        "from adapters.etcd.etcd_stubs import etcdrpc\n"
        "print(etcdrpc.RangeRequest(key=b'x').key)\n"
    )
    assert run_fresh(code) == "b'x'"


def test_registering_twice_changes_nothing() -> None:
    before = sys.modules["etcd3.etcdrpc.rpc_pb2"]
    register()
    assert sys.modules["etcd3.etcdrpc.rpc_pb2"] is before


def test_unknown_generated_file_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "rpc_pb2.py"
    source.write_text("DESCRIPTOR = AddSerializedFile(b'')\n")
    with pytest.raises(ImportError, match=r"etcd3 0\.12\.0"):
        serialized_descriptor(source)
