"""``examples/kubernetes/trainjob.yaml``: its containers' commands, run with their volumes here."""

import shutil
import subprocess

import pytest
import yaml

from tests.system.examples.conftest import EXAMPLES, WITHIN_S

PARTS = list(yaml.safe_load_all((EXAMPLES / "kubernetes" / "trainjob.yaml").read_text()))
RUNTIME, JOB = PARTS
POD = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"][
    "spec"
]


@pytest.fixture
def volumes(question, environment, tmp_path):
    """The pod's volumes, by name."""
    made = {name: tmp_path / f"volume-{name}" for name in ("tuned", "question", "key")}
    for path in made.values():
        path.mkdir()
    shutil.copy(EXAMPLES / "ask-tuner.sh", made["question"])
    shutil.copy(question, made["question"])
    shutil.copy(environment["TUNER_KEY_FILE"], made["key"] / "key")
    return made


@pytest.fixture
def start(volumes, environment, tmp_path):
    """Runs a container's command, with the places of its mounts in the place of their paths."""
    (tmp_path / "bin").mkdir()
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.write_text('#!/bin/sh\necho "trained $TUNED_SHARDING $TUNED_MICRO_BATCH_SIZE"\n')
    torchrun.chmod(0o755)

    def start(container, **more):
        def placed(text):
            for name, path in volumes.items():
                text = text.replace(f"/{name}/", f"{path}/")
            return text

        said = {one["name"]: placed(one["value"]) for one in container["env"]}
        argv = [placed(word) for word in (*container["command"], *container["args"])]
        path = {"PATH": f"{tmp_path}/bin:{environment['PATH']}", "TMPDIR": environment["TMPDIR"]}
        return subprocess.run(
            argv, env={**said, **path, **more}, capture_output=True, text=True, timeout=WITHIN_S,
            check=False, cwd=tmp_path,
        )  # fmt: skip

    return start


@pytest.fixture
def pod(start, service):
    """Runs the pod: what it says on stdout and stderr."""

    def run(**more):
        (asking,) = POD["initContainers"]
        asked = start(asking, **{"TUNER_URL": service.url, **more})
        assert asked.returncode == 0, asked.stderr  # or the pod would not go on
        trained = start(JOB["spec"]["trainer"])
        assert trained.returncode == 0, trained.stderr
        return trained.stdout, asked.stderr

    return run


def test_a_pod_trains_with_its_own_settings_otherwise(pod):
    out, err = pod(TUNER_WAIT_S="3", TUNER_URL="http://127.0.0.1:9")
    assert "does not answer" in err
    assert "the job's own settings are used" in err
    assert out.splitlines() == [
        "settings of study none, micro-batches of 1",
        "trained full_shard 1",
    ]
