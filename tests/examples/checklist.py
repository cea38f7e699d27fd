"""Every example program: the checklist's rows of Triton's clients, then the python backend's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tests.examples.clients import (
    control,
    decoupled,
    growth,
    images,
    infer,
    python_backend,
    sequences,
    shared_memory,
    strings,
)
from tests.examples.repository import EIGHT, SEVEN
from tests.examples.site import Site

__all__ = ["BACKEND_PROGRAMS", "BUILT_PROGRAMS", "CLIENT_PROGRAMS", "Program"]


@dataclass(frozen=True, slots=True)
class Program:
    """One example.

    Attributes
    ----------
    name : str
        As Triton's own example is named.
    run : callable
        Our own program; raises if the server is wrong, `Skipped` if it cannot run here.
    row : str
        Its number in the checklist.
    upstream : tuple of str
        Triton's own program: its command lines from its folder, ``{images}`` and ``{http}`` and the
        like filled in. None where only ours asks.
    models : tuple of str
        The models that upstream's must find in the repository, if it counts them.
    package : str
        What upstream's needs beyond Triton's clients.
    real : str
        Why the real server of the reference, 2.51, cannot pass it; empty if it can.
    """

    name: str
    run: Callable[[Site], None]
    row: str = ""
    upstream: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    package: str = ""
    real: str = ""


_STRING_IDS = "2.51 only takes string correlation ids of 128 characters"
_LONG_PATH = "2.51 aborts when it is asked this"
_COMPRESSED = "--request-compression-algorithm {0} --response-compression-algorithm {0}"
_DENSENET, _INCEPTION, _BATCHED = "densenet_onnx", "inception_onnx", "inception_batched"


def _client(
    row: str, name: str, run: Callable[[Site], None], *variants: str, **options: object
) -> Program:
    """Return a client program whose upstream is of the same name, with arguments to run it with."""
    commands = tuple(f"{name}.py {variant}".rstrip() for variant in variants or ("",))
    return Program(name, run, row, commands, **options)  # type: ignore[arg-type]


def _sequences(row: str, name: str, run: Callable[..., None]) -> tuple[Program, Program]:
    return (
        _client(row, name, functools.partial(run, sequences=sequences.direct)),
        Program(
            f"{name} -d",
            functools.partial(run, sequences=sequences.oldest),
            row,
            (f"{name}.py -d",),
            real=_STRING_IDS,
        ),
    )


def _images(model: str) -> tuple[Program, ...]:
    batch = "-b 2 " if model == _BATCHED else ""
    grpc = f"image_client.py -m {model} {batch}-i grpc -u {{grpc}}"
    return (
        Program(
            f"image_client {model} HTTP",
            functools.partial(images.http_image_client, model=model),
            "28",
            (
                *(
                    f"image_client.py -m {model} {batch}-s {scaling} -c 3 {{images}}"
                    for scaling in images.SCALINGS
                ),
                f"image_client.py -m {model} {batch}-a {{images}}",
            ),
            package="attrdict",
        ),
        Program(
            f"image_client {model} gRPC",
            functools.partial(images.grpc_image_client, model=model),
            "28",
            tuple(f"{grpc} {how}{{images}}" for how in ("-c 2 ", "-a ", "--streaming ")),
        ),
        Program(
            f"grpc_image_client {model}",
            functools.partial(images.raw_image_client, model=model),
            "29",
            tuple(
                f"grpc_image_client.py -m {model} {batch}{how}{{images}}"
                for how in ("", "-a -c 3 ", "--streaming ")
            ),
        ),
    )


CLIENT_PROGRAMS: tuple[Program, ...] = (
    _client(
        "1", "simple_http_infer_client", infer.http_infer,
        "", *(f"{_COMPRESSED.format(a)} -H test:1" for a in ("gzip", "deflate")),
    ),
    _client(
        "2", "simple_grpc_infer_client", infer.grpc_infer, "", "-C gzip -t 30", "-C deflate"
    ),
    _client("3", "simple_http_async_infer_client", infer.http_async_infer),
    _client("4", "simple_grpc_async_infer_client", infer.grpc_async_infer, "", "-t 30"),
    _client(
        "5", "simple_http_aio_infer_client", infer.http_aio_infer,
        "", *(_COMPRESSED.format(a) for a in ("gzip", "deflate")),
    ),
    _client("6", "simple_grpc_aio_infer_client", infer.grpc_aio_infer, "", "-C gzip -t 30"),
    *_sequences("7", "simple_grpc_aio_sequence_stream_infer_client", sequences.grpc_aio_stream),
    *_sequences("8", "simple_grpc_sequence_stream_infer_client", sequences.grpc_stream),
    *_sequences("9", "simple_grpc_sequence_sync_infer_client", sequences.grpc_sync),
    *_sequences("10", "simple_http_sequence_sync_infer_client", sequences.http_sync),
    _client("11", "simple_http_string_infer_client", strings.http_string_infer),
    _client("12", "simple_grpc_string_infer_client", strings.grpc_string_infer),
    _client("13", "simple_http_shm_client", shared_memory.http_shm),
    _client("13", "simple_grpc_shm_client", shared_memory.grpc_shm),
    _client("14", "simple_http_shm_string_client", shared_memory.http_shm_string),
    _client("14", "simple_grpc_shm_string_client", shared_memory.grpc_shm_string),
    _client("15", "simple_http_cudashm_client", shared_memory.http_cudashm),
    _client("15", "simple_grpc_cudashm_client", shared_memory.grpc_cudashm),
    Program("cudashm over HTTP without a GPU", shared_memory.http_cudashm_without_gpu, "15"),
    Program("cudashm over gRPC without a GPU", shared_memory.grpc_cudashm_without_gpu, "15"),
    Program(
        "reuse_infer_objects_client HTTP", shared_memory.reuse_infer_objects_http, "16",
        ("reuse_infer_objects_client.py",),
    ),
    Program(
        "reuse_infer_objects_client gRPC", shared_memory.reuse_infer_objects_grpc, "16",
        ("reuse_infer_objects_client.py -i grpc -u {grpc}",),
    ),
    _client("17", "simple_http_health_metadata", control.http_health_metadata),
    _client("18", "simple_grpc_health_metadata", control.grpc_health_metadata),
    _client("19", "simple_http_model_control", control.http_model_control, models=SEVEN),
    _client("20", "simple_grpc_model_control", control.grpc_model_control, models=EIGHT),
    Program("model control, long path, HTTP", control.http_long_file_path, "19", real=_LONG_PATH),
    Program("model control, long path, gRPC", control.grpc_long_file_path, "20", real=_LONG_PATH),
    _client("21", "simple_grpc_keepalive_client", infer.grpc_keepalive),
    _client("22", "simple_grpc_custom_args_client", infer.grpc_custom_args),
    _client("23", "simple_grpc_custom_repeat", decoupled.custom_repeat),
    _client("24", "grpc_client", images.raw_client),
    _client("25", "grpc_explicit_int_content_client", infer.explicit_int_content),
    _client("26", "grpc_explicit_int8_content_client", infer.explicit_int8_content),
    _client("27", "grpc_explicit_byte_content_client", infer.explicit_byte_content),
    *_images(_DENSENET),
    *_images(_INCEPTION),
    *_images(_BATCHED),
    Program(
        "ensemble_image_client HTTP", images.http_ensemble, "30",
        ("ensemble_image_client.py -c 3 {images}",),
    ),
    Program(
        "ensemble_image_client gRPC", images.grpc_ensemble, "30",
        ("ensemble_image_client.py -i grpc -u {grpc} -c 3 {images}",),
    ),
    Program(
        "memory_growth_test HTTP", growth.http_memory_growth, "31", ("memory_growth_test.py -r 1000",)
    ),
    Program(
        "memory_growth_test gRPC", growth.grpc_memory_growth, "31",
        ("memory_growth_test.py -i grpc -r 1000",),
    ),
)  # fmt: skip


def _backend(
    name: str, run: Callable[..., None], client: str = "", package: str = "", **arguments: object
) -> Program:
    return Program(
        name, functools.partial(run, **arguments) if arguments else run,
        upstream=(client or f"{name}/client.py",), package=package,
    )  # fmt: skip


BACKEND_PROGRAMS: tuple[Program, ...] = (
    _backend("add_sub", python_backend.add_sub, model="add_sub"),
    _backend("auto_complete", python_backend.auto_complete),
    _backend("bls sync", python_backend.bls_sync, "bls/sync_client.py"),
    _backend("bls async", python_backend.add_sub, "bls/async_client.py", model="bls_async"),
    _backend(
        "bls_decoupled sync", python_backend.bls_decoupled, "bls_decoupled/sync_client.py",
        model="bls_decoupled_sync", times=1,
    ),
    _backend(
        "bls_decoupled async", python_backend.bls_decoupled, "bls_decoupled/async_client.py",
        model="bls_decoupled_async", times=2,
    ),
    _backend("custom_metrics", python_backend.custom_metrics),
    _backend("decoupled repeat", decoupled.repeat, "decoupled/repeat_client.py"),
    _backend("decoupled square", decoupled.square, "decoupled/square_client.py"),
    _backend("instance_kind", python_backend.instance_kind, "instance_kind/client.py -v"),
    _backend("jax", python_backend.jax, package="jax"),
    _backend(
        "preprocessing", python_backend.preprocessing,
        "preprocessing/client.py --image {images}/red.jpg",
    ),
    _backend("pytorch", python_backend.add_sub, model="pytorch"),
)  # fmt: skip


def _built(row: str, url: str, name: str, *variants: str) -> list[tuple[str, str]]:
    return [(row, f"{name} -u {{{url}}} {variant}".rstrip()) for variant in variants or ("",)]


# Triton's C++ programs, where the user has built them: rows and command lines.
BUILT_PROGRAMS: tuple[tuple[str, str], ...] = (
    *_built("40", "http", "simple_http_infer_client", "", "-i gzip -o gzip", "-i deflate -o deflate"),
    *_built("40", "grpc", "simple_grpc_infer_client", "", "-C gzip", "-C deflate"),
    *_built("41", "http", "simple_http_async_infer_client"),
    *_built("41", "grpc", "simple_grpc_async_infer_client"),
    *_built("42", "http", "simple_http_string_infer_client"),
    *_built("42", "grpc", "simple_grpc_string_infer_client"),
    *_built("43", "http", "simple_http_shm_client"),
    *_built("43", "grpc", "simple_grpc_shm_client"),
    *_built("44", "http", "simple_http_cudashm_client"),
    *_built("44", "grpc", "simple_grpc_cudashm_client"),
    *_built("45", "http", "simple_http_health_metadata"),
    *_built("45", "grpc", "simple_grpc_health_metadata"),
    *_built("46", "http", "simple_http_model_control"),
    *_built("46", "grpc", "simple_grpc_model_control"),
    *_built("47", "http", "simple_http_sequence_sync_infer_client", "", "-d"),
    *_built("47", "grpc", "simple_grpc_sequence_sync_infer_client", "", "-d"),
    *_built("48", "grpc", "simple_grpc_sequence_stream_infer_client", "", "-d", "-t 10000000"),
    *_built("49", "grpc", "simple_grpc_custom_repeat", "-r 5 -w 100 -d 10"),
    *_built("50", "grpc", "simple_grpc_keepalive_client"),
    *_built("50", "grpc", "simple_grpc_custom_args_client"),
    *_built("51", "http", "reuse_infer_objects_client"),
    *_built("51", "grpc", "reuse_infer_objects_client", "-i grpc"),
    *_built("52", "http", f"image_client -m {_DENSENET}", "-s INCEPTION -c 3 {images}"),
    *_built("52", "grpc", f"image_client -m {_INCEPTION}", "-i grpc --streaming {images}"),
    *_built("52", "http", "ensemble_image_client", "-c 3 {images}"),
)  # fmt: skip
# What they count, by the beginning of the command line.
COUNTED = {"simple_http_model_control": SEVEN, "simple_grpc_model_control": EIGHT}
