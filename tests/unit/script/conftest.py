"""Questions about a script that is there."""

import pytest

from tests.questions import question_about
from tests.records import VERSIONS
from tuner.core.framework import framework
from tuner.core.script import read_script

BATCH = ("--micro", "{micro_batch_size}", "--accumulation", "{gradient_accumulation_steps}")


@pytest.fixture
def ask(tmp_path):
    """``ask(arguments, cluster=..., name=..., launch=..., knobs=...)``: a question."""
    (tmp_path / "train.py").write_text("print('steps')\n")

    def ask(arguments=BATCH, *, cluster="8xa100-80gb", name="torch", knobs=None, **script):
        read = read_script("train.py", arguments=arguments, folder=tmp_path, **script)
        stack = framework(name, {}, VERSIONS)
        return question_about(
            "stories15m", cluster, stack, tokens=32, batch=16, knobs=knobs, script=read
        )

    return ask
