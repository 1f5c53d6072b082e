"""What docs/api.md, docs/cli.md and docs/schedulers.md show, run."""

import re
import subprocess
import sys

import pytest

from tests.system.examples.conftest import EXAMPLES, WITHIN_S
from tests.system.examples.test_ci import CONFIG

ROOT = EXAMPLES.parent
PYTHON = (ROOT / "docs" / "api.md").read_text()
CHECK = (ROOT / "docs" / "cli.md").read_text()
SCHEDULERS = (ROOT / "docs" / "schedulers.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PYTHON, re.M | re.S)
SAYS = ("adamw", "full_shard", "2x8xh100-80gb", "nothing fits")
"""What each block prints among other things; the first one is seen by its progress."""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(0, marks=pytest.mark.slow),
        1,
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(3, marks=pytest.mark.long),
    ],
)
def test_python_runs_as_it_is_shown(number, tmp_path):
    found = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", BLOCKS[number]], capture_output=True, text=True,
        timeout=WITHIN_S, check=False, cwd=tmp_path, env={
            "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT),
            "TUNER_DB": f"sqlite:///{tmp_path}/studies.db",
        },
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert SAYS[number] in found.stdout or number == 1
    if number == 1:
        assert found.stdout.startswith("True Quantity(")
        assert len(found.stdout.splitlines()) == 4


def test_every_example_is_named():
    named = set(re.findall(r"^\| \[?`examples/(\S+)`", SCHEDULERS, re.M))
    files = {str(one.relative_to(EXAMPLES)) for one in EXAMPLES.rglob("*") if one.is_file()}
    others = {name for name in files if name.startswith("deploy/")}  # docs/deploy.md has them
    # its README and manifest are named beside the webhook
    others |= {"kubernetes/README.md", "kubernetes/size_webhook.yaml"}
    assert named | others | {"slurm/question.json", "optuna_study.py"} == files


def test_the_command_that_asks_does(run, service, working, folder):
    (command,) = re.findall(r"^```\n(TUNER_URL=.*?)\n```", SCHEDULERS, re.M | re.S)
    working()
    (folder / "scheduler.key").write_text(service.key)
    here = command.replace("https://tuner.example.org", service.url)
    assert here != command
    found = run("bash", "-euo", "pipefail", "-c", here)
    assert found.returncode == 0, found.stderr
    assert "TUNED_SHARDING=" in (folder / "tuned.env").read_text()


def test_the_command_that_checks_does(tmp_path):
    (command,) = re.findall(r"^```\n(tuner check.*?)\n```", CHECK, re.M | re.S)
    (tmp_path / "accelerate.yaml").write_text(CONFIG.format(checkpointing="true"))
    main = "import sys; from tuner.cli import main; sys.exit(main())"
    script = f"tuner() {{ {sys.executable} -P -c '{main}' \"$@\"; }}\n{command} --dry-runs none"
    found = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S,
        check=False, env={
            "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path),
            "TUNER_DB": f"sqlite:///{tmp_path}/studies.db",
        },
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "fits        yes" in found.stdout
