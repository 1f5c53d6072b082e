"""Flags of a command: read, and changed where they stand; a launcher's own are not its script's."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tuner.errors import UsageError
from tuner.launchfiles.editing import changed, spliced

# A flag with its value, which may stand on the next line of a continued command.
_FLAG = re.compile(
    r"""(?<![\w-])--(?P<name>[A-Za-z_][\w-]*)"""
    r"""(?:(?:=|[ \t]+|[ \t]*\\\r?\n[ \t]*)(?P<value>(?!--|\\)(?:'[^']*'|"[^"]*"|[^\s\\'"]+)))?"""
)


# What a command begins with before its script: a launcher with flags of its own.
_LAUNCHER = re.compile(
    r"(?<![\w./-])(?:accelerate(?:-|[ \t]+)launch|accelerate\.commands\.launch|torchrun|deepspeed"
    r"|torch\.distributed\.(?:run|launch))\s(?:\\\r?\n|[^;&|\n])*?"
    r"(?=\.py\b|\s-m\s|\s--module\s)"
)
# Flags of launchers by which something else shards than by the script's arguments.
_SHARDS = {
    "config_file": "ask about that file itself, with --from",
    "accelerate_config": "ask about accelerate's file itself, with --from",
    "deepspeed_config_file": "give its script --deepspeed with that file in its place",
    "deepspeed_config": "ask about that file itself, with --from; of the Trainer's scripts"
    " --deepspeed with it is read",
    "use_deepspeed": "give its script --deepspeed with a JSON in its place",
    "use_fsdp": "ask about a file of accelerate's that says the same, or give its script --fsdp",
    "use_megatron_lm": "Megatron-LM is not predicted",
    "use_parallelism_config": "ask about a file of accelerate's that says the same",
}


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


def _flags(text: str, *, of_launchers: bool = False) -> Iterator[tuple[str, re.Match[str]]]:
    """Flags of the script by name, or with those of what launches it; comments are blanked."""
    shown = re.sub(r"(?m)^\s*#.*$", _blank, text)
    for found in _FLAG.finditer(shown if of_launchers else _LAUNCHER.sub(_blank, shown)):
        yield found["name"].replace("-", "_"), found


def refuse_launched(text: str) -> None:
    """Refuses a command whose launcher shards by flags or a file of its own."""
    said = {name: found["value"] for name, found in _flags(text, of_launchers=True)}
    for name, instead in _SHARDS.items():
        if name in said:
            allowed = f"is the launcher's, and not read with a command: {instead}"
            raise UsageError(f"--{name}", said[name] or True, allowed)


def parse_flags(text: str) -> dict[str, Any]:
    """The values of a script's flags, by name."""
    values: dict[str, Any] = {}
    for name, found in _flags(text):
        word = found["value"]
        one = True if word is None else yaml.safe_load("".join(shlex.split(word)))
        values[name] = one
    return values


def edit_flags(text: str, wanted: Mapping[str, Any]) -> str:
    """Puts changes into the flags of a script; ``None`` takes one away."""
    there = dict(_flags(text))
    values = parse_flags(text)
    pieces: list[tuple[int, int, str]] = []
    end = max(found.end() for found in there.values())
    for name, value in wanted.items():
        old = values.get(name)
        if isinstance(value, Mapping):
            value = changed(old if isinstance(old, Mapping) else {}, value)
        spelled = value if isinstance(value, str) else json.dumps(value)
        if name not in there:
            if value is not None and value != {}:
                pieces.append((end, end, f" --{name} {shlex.quote(spelled)}"))
        elif value is None:
            pieces.append((*there[name].span(), ""))
        elif there[name]["value"] is None:
            pieces.append((there[name].end(), there[name].end(), f" {shlex.quote(spelled)}"))
        else:
            pieces.append((*there[name].span("value"), shlex.quote(spelled)))
    return spliced(text, pieces)
