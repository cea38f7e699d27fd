"""A KServe InferenceService, and the values of Triton's Helm chart."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from nbtriton.common import __version__
from nbtriton.extensions.platforms.needs import Needs, needs_of

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


def files(repository: Path, models: Sequence[str], uri: str | bool) -> Mapping[str, str]:
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
