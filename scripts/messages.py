"""Write src/nbtriton/config/messages.binpb: Triton's message definitions, as tritonclient has them.

usage: scripts/messages.py

nbtriton needs two files of definitions and nothing else of tritonclient, whose wheel brings 27 MB along.
A newer tritonclient may know newer fields: run this after a change of its pin, and say in the changelog
what is new.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf import descriptor_pb2

TARGET = Path(__file__).resolve().parents[1] / "src" / "nbtriton" / "config" / "messages.binpb"


def definitions() -> bytes:
    """Return the definitions of the installed tritonclient as a ``FileDescriptorSet``."""
    from tritonclient.grpc import (  # type: ignore[import-untyped]
        model_config_pb2,
        service_pb2,
    )

    found = descriptor_pb2.FileDescriptorSet()
    for module in (model_config_pb2, service_pb2):
        module.DESCRIPTOR.CopyToProto(found.file.add())
    data: bytes = found.SerializeToString(deterministic=True)
    return data


if __name__ == "__main__":
    TARGET.write_bytes(definitions())
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")
