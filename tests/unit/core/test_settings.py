"""Settings are keys: of what is known of a space, of predictions, of what processes hand on."""

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import replace

from tuner.core.configuration import Settings, parse_settings

OTHER = """
import pickle, sys
from tuner.core.configuration import Settings
print({pickle.load(sys.stdin.buffer): "found"}[Settings(micro_batch_size=4)])
"""


def asked(**knobs):
    """Settings that have told their hash and their class."""
    settings = Settings(**knobs)
    assert hash(settings) == hash(settings)
    assert settings.layout.micro_batch_size == 1
    return settings


def test_copies_know_what_they_are():
    settings = asked(micro_batch_size=4, tp_size=2)
    larger = replace(settings, micro_batch_size=8, tp_size=4)
    assert hash(larger) == hash(Settings(micro_batch_size=8, tp_size=4))
    assert larger.layout == Settings(tp_size=4)
    assert hash(copy.deepcopy(settings)) == hash(settings)


def test_a_hash_is_not_handed_on_to_other_processes():
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


def test_a_later_knob_leaves_what_was_recorded_before_as_it_was():
    plain, deferred = Settings(), Settings(defer_all_reduce=True)
    assert "defer_all_reduce" not in str(plain)
    assert "defer_all_reduce" not in plain.as_dict()
    assert plain.all_values()["defer_all_reduce"] is False
    assert ",defer_all_reduce=true" in str(deferred)
    assert deferred.as_dict()["defer_all_reduce"] is True
    for settings in (plain, deferred):
        assert Settings.from_dict(settings.as_dict()) == settings
        assert parse_settings(str(settings)) == settings
        assert Settings.from_dict(settings.all_values()) == settings
    assert parse_settings(f"{plain},defer_all_reduce=false") == plain
