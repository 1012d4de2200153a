"""Compile one schema's text in a separate process, so that a crash or a limit ends only that process.

    python -P protobuf_compiler.py CPU-SECONDS BYTES < schema > descriptors

The text is protoc input, or a file descriptor in Base64, which Confluent's serializers for Python and .NET
register. The output is a file descriptor set; the schema's own file is last. Only imports that come with
Protobuf (google/protobuf/...) are found. The program runs in an empty directory.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import resource
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_tools import protoc  # type: ignore[import-untyped]

_NAME, _SET = "schema.proto", "set"
_OWN = re.compile(r"google/protobuf/[a-z_/]+\.proto")


def main(cpu_s: int, most_bytes: int) -> None:
    """Compile the schema on standard input within limits. Exits with a message if the schema is invalid."""
    # Exceeding the soft limit sends SIGXCPU, which names the cause; the hard limit would send SIGKILL.
    limits = {resource.RLIMIT_CPU: (cpu_s, cpu_s + 1), resource.RLIMIT_AS: (most_bytes, most_bytes)}
    for limit, most in limits.items():
        with contextlib.suppress(OSError, ValueError):  # the system's limits may be lower
            resource.setrlimit(limit, most)
    text = sys.stdin.buffer.read()
    described = _described(text)
    files = _compiled(text) if described is None else _with_imports(described)
    pool = DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
    except TypeError as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(files.SerializeToString())


def _described(text: bytes) -> FileDescriptorProto | None:
    """Decode a Base64 file descriptor. Return None for schema text, which is never valid Base64."""
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(b"".join(text.split()), validate=True))
    except (binascii.Error, DecodeError):
        return None
    return file if file.message_type else None


def _with_imports(described: FileDescriptorProto) -> FileDescriptorSet:
    """Return a descriptor's file, preceded by its imports."""
    for name in described.dependency:
        if not _OWN.fullmatch(name):
            sys.exit(f"it imports {name!r}, which it does not contain")
    described.name = _NAME
    imports = "".join(f'import "{name}";\n' for name in described.dependency)
    files = _compiled(f'syntax = "proto3";\n{imports}'.encode())
    files.file[-1].CopyFrom(described)
    return files


def _compiled(text: bytes) -> FileDescriptorSet:
    Path(_NAME).write_bytes(text)
    sys.argv = ["protoc", "-I.", "--include_imports", f"--descriptor_set_out={_SET}", _NAME]
    try:
        protoc.entrypoint()  # protoc's command line finds the imports that come with Protobuf
    except SystemExit as ended:
        if ended.code:
            raise
    return FileDescriptorSet.FromString(Path(_SET).read_bytes())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
