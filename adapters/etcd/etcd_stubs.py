"""Makes etcd3 usable with protobuf >= 4: import `Etcd3Client` and `etcdrpc` from this module, never from etcd3.

etcd3 0.12.0 ships code that was generated for protobuf 3 and builds descriptors by hand, which protobuf >= 4 rejects.
Each generated file also contains its whole descriptor in serialized form. This module builds the same classes from the
serialized descriptors, and registers them under the module names that etcd3 imports. A separate descriptor pool is
used, because the file names, such as `kv.proto` and `rpc.proto`, may conflict with files of other libraries in the
default pool. Nothing else in the process is changed.
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
"""Literal with the descriptor in a generated file; an AST of the whole file would add 50 ms to every start."""


def register() -> None:
    """Build the three generated modules and register them; a second call does nothing.

    Raises:
        ImportError: etcd3 is not installed, or its generated files are not those of version 0.12.0.
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
    """Return the bytes of `serialized_pb` in a file that protoc generated; running the file would fail."""
    literal = _SERIALIZED.search(source.read_text(encoding="utf-8"))
    if literal is None:
        raise ImportError(f"{source} has no serialized descriptor: is this etcd3 0.12.0?")
    return str(ast.literal_eval(literal[1])).encode("latin-1")


def add_newer_fields(rpc: FileDescriptorProto) -> None:
    """Add the watch features of etcd 3.4 that etcd3's older copy of rpc.proto lacks: progress requests, fragments.

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
    """Return a module with the messages, enums and enum values of the generated module."""
    module = ModuleType(name, f"Rebuilt from the serialized descriptor of {file.name}.")
    for message, descriptor in file.message_types_by_name.items():
        setattr(module, message, GetMessageClass(descriptor))
    for enum, descriptor in file.enum_types_by_name.items():
        setattr(module, enum, EnumTypeWrapper(descriptor))
        for value in descriptor.values:
            setattr(module, value.name, value.number)
    return module


register()

from etcd3 import Etcd3Client, etcdrpc  # noqa: E402  (requires the registered modules)

__all__ = ["Etcd3Client", "etcdrpc"]
