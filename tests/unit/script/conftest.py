"""Questions about a script that is there."""

from typing import Any

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.script import read_script
from tuner.core.study import Question
from tuner.core.workload import Workload
from tuner.model import load_model

BATCH = ("--micro", "{micro_batch_size}", "--accumulation", "{gradient_accumulation_steps}")
VERSIONS = {"torch": "2.13.0", "accelerate": "1.15.0", "transformers": "5.23.0"}


@pytest.fixture
def ask(tmp_path):
    """``ask(arguments, cluster=..., name=..., launch=..., knobs=...)``: a question."""
    (tmp_path / "train.py").write_text("print('steps')\n")

    def ask(
        arguments: tuple[str, ...] = BATCH,
        *,
        cluster: str = "8xa100-80gb",
        name: str = "torch",
        knobs: dict[str, tuple[Any, ...]] | None = None,
        **script: Any,
    ) -> Question:
        return Question(
            workload=Workload(
                model=load_model("stories15m"), sequence_length=32, global_batch_size=16
            ),
            cluster=parse_cluster(cluster),
            framework=framework(name, {}, VERSIONS),
            knobs=knobs or {},
            script=read_script("train.py", arguments=arguments, folder=tmp_path, **script),
        )

    return ask
