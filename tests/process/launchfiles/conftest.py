"""Files of accelerate's, and the environment that its launcher makes of one."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.launchfiles.cases import ABOUT, CASES
from tuner.launchfiles import export


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Writes a case's file for accelerate; its path."""

    def write(name: str) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(export("accelerate", *CASES[name].parts(), ABOUT), encoding="utf-8")
        return path

    return write


@pytest.fixture
def launched_environment(written: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts this process into the environment that ``accelerate launch`` makes of a file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    def enter(name: str) -> dict[str, str]:
        argv = ["--config_file", str(written(name)), "--main_process_port", "0", "script.py"]
        args, *_ = _validate_launch_command(launch_command_parser().parse_args(argv))
        ours = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
        made = prepare_multi_gpu_env(args)
        environment = {k: v for k, v in made.items() if k.startswith(ours)}
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        return environment

    return enter
