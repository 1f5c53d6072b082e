"""TrainJobs: nodes, ranks, devices and names as Kubernetes takes them."""

import re
from typing import Any

import pytest
import yaml

from tuner.core.cluster import parse_cluster
from tuner.core.quantity import Provenance
from tuner.launchfiles import About, export
from tuner.launchfiles.contract import job_name


def _spec(case: Any, about: About, cluster: str) -> Any:
    parts = case(model="gpt2", cluster=cluster, sequence_length=64, settings="sharding=ddp").parts()
    return yaml.safe_load(export("kubernetes", *parts, about))["spec"]["trainer"]


@pytest.mark.parametrize(
    ("cluster", "resource", "count"),
    [("2x8xh100-80gb", "nvidia.com/gpu", 8), ("4xmi300x", "amd.com/gpu", 4)],
)
def test_devices_are_named_as_their_plugins_do(
    case: Any, about: About, cluster: str, resource: str, count: int
) -> None:
    spec, asked = _spec(case, about, cluster), parse_cluster(cluster)
    assert spec["numNodes"] == asked.nodes
    assert spec["numProcPerNode"] == count
    assert spec["resourcesPerNode"] == {"requests": {resource: count}, "limits": {resource: count}}


def test_cpu_ranks_are_given_the_machines_cores(case: Any, about: About) -> None:
    spec, asked = _spec(case, about, "cpu:2"), parse_cluster("cpu:2")
    assert spec["numProcPerNode"] == 2
    assert spec["resourcesPerNode"]["requests"] == {"cpu": asked.gpu.cores}
    env = {one["name"]: one["value"] for one in spec["env"]}
    assert env["OMP_NUM_THREADS"] == str(max(1, asked.gpu.cores // 2))
    assert all(isinstance(value, str) for value in env.values())


@pytest.mark.parametrize("study", ["st-0123456789ab", "X" * 99, "-a..b-", "ä ö", ""])
def test_names_are_dns_labels(study: str) -> None:
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", job_name(study))


def test_the_resource_is_of_the_api_group_that_the_operator_has(case: Any) -> None:
    about = About(study_id="st-1", date="2026-01-15", provenance=Provenance.MEASURED)
    parts = case(model="gpt2", cluster="2xl4", sequence_length=64, settings="sharding=ddp").parts()
    job = yaml.safe_load(export("kubernetes", *parts, about))
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert job["metadata"] == {"name": "tuned-st-1"}
