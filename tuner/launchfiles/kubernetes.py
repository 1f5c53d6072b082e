"""A TrainJob of Kubeflow Trainer v2, as YAML for ``kubectl apply -f``.

Fields are those of ``TrainJobSpec`` in Kubeflow Trainer 2.3.0
(``pkg/apis/trainer/v1alpha1/trainjob_types.go``); 2.0.0 has the same. Its torch plugin
(``pkg/runtime/framework/plugins/torch/torch.go``) tells torchrun nodes, ranks and where they meet,
through ``PET_`` variables. Values here are of this program's making: Kubernetes would expand
``$(NAME)`` in others.
"""

from typing import Any

import yaml

from tuner.catalog.gpus import gpu_kinds
from tuner.core.cluster import Device
from tuner.core.configuration import Settings
from tuner.core.study import Question
from tuner.launchfiles.contract import About, Format, Stack, job_name, surroundings, variables
from tuner.launchfiles.header import comments, header, provenance
from tuner.launchfiles.shell import in_force

FILE_NAME = "trainjob.yaml"


def _render(question: Question, settings: Settings, about: About) -> str:
    cluster, gpu = question.cluster, question.cluster.gpu
    values = {**variables(question, settings), **surroundings(question)}
    trainer: dict[str, Any] = {
        "numNodes": cluster.nodes,
        "numProcPerNode": cluster.gpus_per_node,
        "command": ["torchrun", "SCRIPT.py"],
        "env": [{"name": name, "value": value} for name, value in values.items()],
    }
    needed = {"cpu": gpu.cores} if gpu.cores else {}
    if gpu.device is Device.CUDA:
        kind = gpu_kinds().get(gpu.name)
        # names that the vendors' device plugins give
        vendor = "amd" if kind and kind.title.startswith("AMD ") else "nvidia"
        needed = {f"{vendor}.com/gpu": cluster.gpus_per_node}
    if needed:
        trainer["resourcesPerNode"] = {"requests": needed, "limits": needed.copy()}
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job_name(about.study_id)},
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": "torch-distributed",
            },
            "trainer": trainer,
        },
    }
    use = comments(
        f"kubectl apply -f {FILE_NAME}, with Kubeflow Trainer 2.0 or newer and its runtime"
        " torch-distributed. Put your script, its arguments and, as spec.trainer.image, an image"
        " that holds them in the place of SCRIPT.py.",
        in_force(question),
    )
    text = yaml.safe_dump(job, sort_keys=False)
    return f"{header(provenance(question, settings, about), use)}\n{text}"


FORMAT = Format(
    name="kubernetes",
    file_name=FILE_NAME,
    stack=Stack.ANY,
    render=_render,
    argv=lambda question, path: ("kubectl", "apply", "-f", path),
)
