"""The environment that accelerate's launcher makes of a file."""

import pytest

from tests.process.launchfiles.facts import OURS, environment_of
from tests.unit.launchfiles.cases import ABOUT, CASES
from tuner.launchfiles import export


@pytest.fixture
def launched_environment(tmp_path, monkeypatch):
    """Puts this process into the environment that ``accelerate launch`` makes of a case's file."""

    def enter(name):
        path = tmp_path / f"{name}.yaml"
        path.write_text(export("accelerate", *CASES[name].parts(), ABOUT), encoding="utf-8")
        made = environment_of(str(path))
        environment = {key: value for key, value in made.items() if key.startswith(OURS)}
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        return environment

    return enter
