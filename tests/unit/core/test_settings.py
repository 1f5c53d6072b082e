"""Settings are keys: of what is known of a space, of predictions, of what processes hand on."""

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import replace

from tuner.core.configuration import Settings

OTHER = """
import pickle, sys
from tuner.core.configuration import Settings
print({pickle.load(sys.stdin.buffer): "found"}[Settings(micro_batch_size=4)])
"""


def asked(**knobs: int) -> Settings:
    """Settings that have told their hash and their class."""
    settings = Settings(**knobs)  # type: ignore[arg-type]
    assert hash(settings) == hash(settings)
    assert settings.settings_class.micro_batch_size == 1
    return settings


def test_copies_know_what_they_are() -> None:
    settings = asked(micro_batch_size=4, tp_size=2)
    larger = replace(settings, micro_batch_size=8, tp_size=4)
    assert hash(larger) == hash(Settings(micro_batch_size=8, tp_size=4))
    assert larger.settings_class == Settings(tp_size=4)
    assert hash(copy.deepcopy(settings)) == hash(settings)


def test_a_hash_is_not_handed_on_to_other_processes() -> None:
    text = pickle.dumps(asked(micro_batch_size=4))
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", OTHER],
            input=text,
            env=environment,
            capture_output=True,
            check=True,
        )
        assert done.stdout == b"found\n"
