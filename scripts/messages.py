"""Write src/nbtriton/model/config/messages.binpb: Triton's message definitions from tritonclient.

usage: scripts/messages.py

nbtriton needs only two files of definitions of tritonclient, whose wheel has 27 MB. A newer tritonclient may
have new fields: run this after a change of its pin, and list them in the changelog.
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
