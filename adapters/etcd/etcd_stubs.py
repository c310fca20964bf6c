"""etcd3, usable on today's protobuf: import `Etcd3Client` and `etcdrpc` from here, never from etcd3.

etcd3 0.12.0 ships code generated for protobuf 3, which builds descriptors by hand; protobuf >= 4 refuses
that. Each generated file still carries its whole descriptor in serialized form, so the same classes are built
from there, in a pool of our own (the files are called `kv.proto` and `rpc.proto`: names that others may claim
in the common one), and put where etcd3 looks for them. Nothing else in the process is changed.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "etcd3.etcdrpc"
FILES_IN_IMPORT_ORDER = ("kv_pb2", "auth_pb2", "rpc_pb2")

_SERIALIZED = re.compile(r"^ +serialized_pb=_b\(('.*')\)$", re.MULTILINE)
"""The literal of a generated file that holds its descriptor. To parse the whole file takes 50 ms of every start."""


def register() -> None:
    """Build the three generated modules and register them; a second call does nothing.

    Raises:
        ImportError: etcd3 is not installed, or is not the version whose generated files we know.
    """
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("etcd3 is not installed: run `pip install etcd3==0.12.0`")
    sources = Path(spec.submodule_search_locations[0]) / "etcdrpc"
    pool = DescriptorPool()
    for name in FILES_IN_IMPORT_ORDER:
        if f"{PACKAGE}.{name}" in sys.modules:
            continue
        file = FileDescriptorProto.FromString(serialized_descriptor(sources / f"{name}.py"))
        if name == "rpc_pb2":
            add_newer_fields(file)
        pool.Add(file)
        sys.modules[f"{PACKAGE}.{name}"] = build_module(f"{PACKAGE}.{name}", pool.FindFileByName(file.name))


def serialized_descriptor(source: Path) -> bytes:
    """The bytes of `serialized_pb` in a file that protoc generated; read, not run, for running it is what fails."""
    literal = _SERIALIZED.search(source.read_text(encoding="utf-8"))
    if literal is None:
        raise ImportError(f"{source} has no serialized descriptor: is this etcd3 0.12.0?")
    return str(ast.literal_eval(literal[1])).encode("latin-1")


def add_newer_fields(rpc: FileDescriptorProto) -> None:
    """Add what etcd 3.4 added to watches and etcd3's older copy of rpc.proto lacks: progress requests, fragments.

    Source: https://github.com/etcd-io/etcd/blob/v3.5.1/api/etcdserverpb/rpc.proto
    """
    rpc.message_type.append(DescriptorProto(name="WatchProgressRequest"))
    messages = {message.name: message for message in rpc.message_type}
    messages["WatchRequest"].field.add(
        name="progress_request",
        number=3,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type_name=f".{rpc.package}.WatchProgressRequest",
        oneof_index=0,
    )
    for message, number in (("WatchCreateRequest", 8), ("WatchResponse", 7)):
        messages[message].field.add(
            name="fragment",
            number=number,
            type=FieldDescriptorProto.TYPE_BOOL,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )


def build_module(name: str, file: FileDescriptor) -> ModuleType:
    """What the generated module would have held: its messages, enums and enum values."""
    module = ModuleType(name, f"Rebuilt from the serialized descriptor of {file.name}.")
    for message, descriptor in file.message_types_by_name.items():
        setattr(module, message, GetMessageClass(descriptor))
    for enum, descriptor in file.enum_types_by_name.items():
        setattr(module, enum, EnumTypeWrapper(descriptor))
        for value in descriptor.values:
            setattr(module, value.name, value.number)
    return module


register()

from etcd3 import Etcd3Client, etcdrpc  # noqa: E402  (only now can it be imported)

__all__ = ["Etcd3Client", "etcdrpc"]
