"""What ``import tuner`` gives, and what it costs."""

import inspect
import subprocess
import sys
from dataclasses import fields

import pytest

import tuner
from tuner.cli.options import SuggestAsked
from tuner.client.request import RequestHere


def test_importing_it_imports_nothing_else_of_it():
    code = (
        "import sys; before = set(sys.modules); import tuner;"
        "assert dir(tuner) and 'suggest' in dir(tuner);"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(new - sys.stdlib_module_names);"
        "print([name for name in sys.modules if name.startswith('tuner.')])"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == ["{'tuner'}", "[]"]


def test_there_is_no_other_name():
    assert list(tuner.__all__) == sorted(tuner.__all__)
    with pytest.raises(AttributeError, match="module 'tuner' has no attribute 'sugest'"):
        _ = tuner.sugest


RENAMED = {
    "knob": "knobs", "framework_version": "framework_versions", "budget": "wall_s",
    "max_gpu_seconds": "gpu_s", "memory_limit": "memory_limit_gib",
    "probe_deadline": "probe_deadline_s", "label": "labels",
}  # fmt: skip
"""Arguments that say in their name that they are not text, by the command's option."""
OF_A_PART = {
    "lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "lora_modules_to_save", "quantize",
    "double_quant", "documents",
}  # fmt: skip
"""Options that are fields of the arguments ``adapter`` and ``packing``."""
OF_A_SCRIPT = {"launch", "script_env", "template", "script_arguments"}
"""Options that :func:`tuner.read_script` takes."""
OF_A_FILE = {"format_name", "in_place", "diff", "no_backup"}
"""Options of a file in use that is asked about, and put in order."""
OF_THE_TERMINAL = {"json", "why", "quiet", "tokens", "question_file"}
"""Options that say what is shown, or where options are."""


def test_what_the_command_takes_python_takes_too():
    taken = inspect.signature(tuner.suggest).parameters
    options = {field.name for field in fields(SuggestAsked)} - OF_A_SCRIPT - OF_A_PART - OF_A_FILE
    options -= OF_THE_TERMINAL
    assert {RENAMED.get(name, name) for name in options} == set(taken) - {"key", "progress"}


def test_defaults_are_the_command_s():
    taken = inspect.signature(tuner.suggest).parameters
    for name, field in RequestHere.model_fields.items():
        if isinstance(field.default, str | float):
            assert taken[name].default == field.default or taken[name].default is None
