"""What runs an exported repository elsewhere: KServe and Triton's Helm chart on Kubernetes, Ray Serve.

A platform is a call with the repository, the names of its models and the value of its option; it returns the
files that are written beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbtriton.common import __version__
from nbtriton.model.config import ModelConfig, enum_name, parse_pbtxt
from nbtriton.model.config.parameters import text_parameter

# By backend: the parameter with the threads of one execution. 0 and -1 leave the number to the backend.
_THREADS = {"onnxruntime": "intra_op_thread_count", "pytorch": "INTRA_OP_THREAD_COUNT"}


@dataclass(frozen=True, slots=True)
class Needs:
    """What one server of a repository takes.

    Parameters
    ----------
    cpus : int
        The threads that can compute at the same time: each instance has one, or as many as its
        configuration gives it.
    gpus : int
        GPUs up to the last one that an instance group names; one for ``KIND_GPU`` without a list.
    stateful : bool
        Whether a model has sequences, all of whose requests must come to one server.
    """

    cpus: int
    gpus: int
    stateful: bool


def needs_of(repository: Path, models: Iterable[str]) -> Needs:
    """Return what the models of a written repository take."""
    configs = [parse_pbtxt((repository / name / "config.pbtxt").read_bytes()) for name in models]
    return Needs(
        cpus=max(1, sum(_threads(config) for config in configs)),
        gpus=max((1 + device for config in configs for device in _devices(config)), default=0),
        stateful=any(config.HasField("sequence_batching") for config in configs),
    )


def _threads(config: ModelConfig) -> int:
    if config.HasField("ensemble_scheduling"):
        return 0
    # A group on GPUs has `count` instances on each; without groups Triton makes one instance.
    instances = sum((group.count or 1) * max(1, len(group.gpus)) for group in config.instance_group)
    given = text_parameter(config, _THREADS.get(config.backend, "")) or ""
    return (instances or 1) * (int(given) if given.isdecimal() and int(given) else 1)


def _devices(config: ModelConfig) -> list[int]:
    return [
        device
        for group in config.instance_group
        for device in group.gpus or ([0] if enum_name(group, "kind") == "KIND_GPU" else [])
    ]


# The image of Triton 2.51. Without it KServe 0.20 runs 23.05, and the chart of that release 24.09.
_RELEASE = "24.10-py3"
# Knative labels a revision with NAME-predictor-00001, and a label has 63 characters.
_LONGEST_NAME = 63 - len("-predictor-00001")

_SERVICE = """\
# Made by nbtriton {version} for KServe. Put the models of this folder where storageUri says, then:
#   kubectl apply -f inference_service.yaml
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: "{name}"
spec:
  predictor:
    minReplicas: 1{most}
    model:
      modelFormat:
        name: triton
      protocolVersion: v2
      runtimeVersion: {release}
      storageUri: {uri}
      # Processors: one for each thread that can compute. Memory was not measured: KServe's own default holds.
      resources:
        requests:
          cpu: "{cpus}"
        limits:
          cpu: "{cpus}"{gpus}
"""
_VALUES = """\
# Made by nbtriton {version} for the chart deploy/k8s-onprem of github.com/triton-inference-server/server.
# Put the models of this folder on an NFS server, then:
#   helm install {name} deploy/k8s-onprem -f values.yaml \\
#     --set image.modelRepositoryServer=HOST --set image.modelRepositoryPath=/FOLDER
# The chart takes no processors and no memory: its pods have what the namespace gives.
image:
  imageName: nvcr.io/nvidia/tritonserver:{release}
  numGpus: {gpus}
autoscaling:
  minReplicas: 1{most}
"""
_STATEFUL = """
{indent}# A model has sequences, whose state is in one server: more would need requests to be routed by sequence.
{indent}maxReplicas: 1"""


def kubernetes(repository: Path, models: Sequence[str], uri: str | bool) -> Mapping[str, str]:
    """Return ``inference_service.yaml`` and ``values.yaml`` for a repository.

    Parameters
    ----------
    repository : Path
    models : sequence of str
    uri : str or True
        Where the cluster finds the models; True writes a place to be filled in.
    """
    needs = needs_of(repository, models)
    name = service_name(repository.name)
    gpus = f'\n          nvidia.com/gpu: "{needs.gpus}"' if needs.gpus else ""
    place = uri if isinstance(uri, str) else "pvc://CLAIM/FOLDER"
    return {
        "inference_service.yaml": _SERVICE.format(
            version=__version__, name=name, release=_RELEASE, most=_most(needs, "    "), gpus=gpus,
            uri=json.dumps(place), cpus=needs.cpus,
        ),
        "values.yaml": _VALUES.format(
            version=__version__, name=name, release=_RELEASE, most=_most(needs, "  "), gpus=needs.gpus,
        ),
    }  # fmt: skip


def service_name(folder: str) -> str:
    """Return a name that KServe takes (small letters, digits and dashes, a letter first) like that of a folder."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).lstrip("-0123456789")
    return name[:_LONGEST_NAME].rstrip("-") or "models"


def _most(needs: Needs, indent: str) -> str:
    return _STATEFUL.format(indent=indent) if needs.stateful else ""


_TEMPLATE = Path(__file__).parent / "ray_serve.py.txt"


def ray_serve(repository: Path, models: Sequence[str], _on: bool) -> Mapping[str, str]:
    """Return ``ray_serve.py`` for a repository."""
    needs = needs_of(repository, models)
    replicas = ""
    if needs.stateful:
        replicas = "    num_replicas=1,  # a model has sequences, whose state is in one replica\n"
    text = _TEMPLATE.read_text(encoding="utf-8")
    given = {"VERSION": __version__, "CPUS": str(needs.cpus), "GPUS": str(needs.gpus)}
    for name, value in given.items():
        text = text.replace(f"<{name}>", value)
    return {"ray_serve.py": text.replace("    <REPLICAS>\n", replicas)}
