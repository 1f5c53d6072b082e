"""The environment that accelerate's launcher makes of a file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.launchfiles.cases import ABOUT, CASES
from tuner.launchfiles import export

OURS = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


@pytest.fixture
def launched_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, str]]:
    """Puts this process into the environment that ``accelerate launch`` makes of a case's file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    def enter(name: str) -> dict[str, str]:
        path = tmp_path / f"{name}.yaml"
        path.write_text(export("accelerate", *CASES[name].parts(), ABOUT), encoding="utf-8")
        argv = ["--config_file", str(path), "--main_process_port", "0", "script.py"]
        args, *_ = _validate_launch_command(launch_command_parser().parse_args(argv))
        made = prepare_multi_gpu_env(args)
        environment = {key: value for key, value in made.items() if key.startswith(OURS)}
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        return environment

    return enter
