"""``examples/ci``: the step that checks, run as its system runs it."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.system.examples.conftest import EXAMPLES, WITHIN_S

WORKFLOW = yaml.safe_load((EXAMPLES / "ci" / "tuner-check.yml").read_text())
(STEP,) = (one for one in WORKFLOW["jobs"]["fits"]["steps"] if one.get("name") == "Check")
TUNER = f"""\
#!/bin/sh
exec {sys.executable} -P -c 'import sys; from tuner.cli import main; sys.exit(main())' "$@"
"""
CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: {checkpointing}
  fsdp_reshard_after_forward: true
  fsdp_version: 2
mixed_precision: 'no'
num_machines: 1
num_processes: 8
"""


@pytest.fixture
def check(tmp_path):
    """Runs the step in a repository with a configuration."""
    tuner = tmp_path / "bin" / "tuner"
    tuner.parent.mkdir()
    tuner.write_text(TUNER)
    tuner.chmod(0o755)
    (tmp_path / "configs").mkdir()

    def run(content, script=STEP["run"]):
        (tmp_path / "configs" / "accelerate.yaml").write_text(content)
        root = Path(__file__).resolve().parents[3]
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script], cwd=tmp_path, text=True, timeout=WITHIN_S,
            capture_output=True, check=False, env={
                "PATH": f"{tuner.parent}:/usr/bin:/bin", "PYTHONPATH": str(root),
                "HOME": str(tmp_path), "TUNER_DB": f"sqlite:///{tmp_path}/studies.db",
            },
        )  # fmt: skip

    return run


@pytest.mark.long
def test_the_step_as_it_stands(check):
    found = check(CONFIG.format(checkpointing="true"))
    assert found.returncode == 0, found.stderr
    assert "by dry run" in found.stdout
