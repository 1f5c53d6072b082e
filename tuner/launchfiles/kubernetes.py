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


def trainjob(question: Question, settings: Settings, about: About) -> dict[str, Any]:
    """The TrainJob's fields."""
    values = {**variables(question, settings), **surroundings(question)}
    trainer: dict[str, Any] = {
        "numNodes": question.cluster.nodes,
        "numProcPerNode": question.cluster.gpus_per_node,
        "command": ["torchrun", "SCRIPT.py"],
        "env": [{"name": name, "value": value} for name, value in values.items()],
    }
    if needed := _resources(question):
        trainer["resourcesPerNode"] = {"requests": needed, "limits": needed.copy()}
    return {
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


def _resources(question: Question) -> dict[str, int]:
    gpu = question.cluster.gpu
    if gpu.device is Device.CUDA:
        kind = gpu_kinds().get(gpu.name)
        # names that the vendors' device plugins give
        vendor = "amd" if kind and kind.title.startswith("AMD ") else "nvidia"
        return {f"{vendor}.com/gpu": question.cluster.gpus_per_node}
    return {"cpu": gpu.cores} if gpu.cores else {}


def _why_not(question: Question, settings: Settings) -> str | None:
    return None


def _render(question: Question, settings: Settings, about: About) -> str:
    use = comments(
        f"kubectl apply -f {FILE_NAME}, with Kubeflow Trainer 2.0 or newer and its runtime"
        " torch-distributed. Put your script, its arguments and, as spec.trainer.image, an image"
        " that holds them in the place of SCRIPT.py.",
        in_force(question),
    )
    text = yaml.safe_dump(trainjob(question, settings, about), sort_keys=False)
    return f"{header(provenance(question, settings, about), use)}\n{text}"


def _argv(question: Question, path: str) -> tuple[str, ...]:
    return ("kubectl", "apply", "-f", path)


FORMAT = Format(
    name="kubernetes",
    file_name=FILE_NAME,
    stack=Stack.ANY,
    why_not=_why_not,
    render=_render,
    argv=_argv,
)
