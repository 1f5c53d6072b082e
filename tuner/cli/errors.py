"""Shows errors, with the exit code of each: the only place for both."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import typer

from tuner.core.adapter import QUANTIZED
from tuner.core.configuration import KNOBS
from tuner.errors import TunerError, UsageError
from tuner.text import json_text

USAGE = 2
# Of an option that is not: how like another it must be, and how long to be taken for its words.
LIKE, LEAST = 0.75, 3


# What is shown in one line. Anything else is a mistake of ours, and shows its traceback.
SHOWN = (TunerError, typer.TyperException)


def report(error: Exception, *, as_json: bool) -> int:
    """Show an error of :data:`SHOWN`; the exit code.

    stderr gets ``tuner: error: ...`` in one line for each field that is wrong. With ``as_json``,
    stdout gets ``{"error": {"field", "message", "exit_code", "errors"}}``, so that it always holds
    one JSON object; ``errors`` has ``field``, ``value`` and ``allowed`` of each field.
    """
    usage = error.errors if isinstance(error, UsageError) else ()
    usage = tuple(one.at(option_of(one.field)) for one in usage)
    each = usage or (error,)
    messages = [_one_line(one) for one in each]
    code = error.exit_code if isinstance(error, TunerError) else USAGE
    if as_json:
        option = getattr(getattr(error, "param", None), "name", None)
        field = usage[0].field if usage else option
        found: dict[str, Any] = {"field": field, "message": messages[0]}
        found["exit_code"] = code
        if usage:
            found["errors"] = [one.as_dict() for one in usage]
        print_json({"error": found})
    for message in messages:
        typer.echo(f"tuner: error: {message}", err=True)
    return code


def option_of(field: str) -> str:
    """The option that a field of an adapter or packing is given by; any other field as it is."""
    table, _, name = field.partition(".")
    if table == "packing":
        return "documents" if name.startswith("documents") else "packing"
    if table != "adapter" or not name:
        return field
    own = {"method": "adapter", "target_modules": "lora_targets"}
    own |= {one: one for one in QUANTIZED}
    return own.get(name, f"lora_{name}")


def print_json(value: Mapping[str, Any]) -> None:
    typer.echo(json_text(value, indent=2))


def tell(value: Mapping[str, Any], text: str, *, as_json: bool) -> int:
    """One JSON object, or lines for people, on stdout; the exit code of what went well."""
    if as_json:
        print_json(value)
    else:
        typer.echo(text)
    return 0


def _initials(words: Sequence[str]) -> str:
    return "".join(word[0] for word in words)


# Options by what other programs call them, where neither initials nor letters lead there.
_CALLED_ELSEWHERE = {
    **dict.fromkeys(("--method", "--lora", "--qlora", "--peft"), "--adapter"),
    **dict.fromkeys(("--gpu", "--gpus", "--nodes", "--hardware"), "--cluster"),
    **dict.fromkeys(
        ("--max-length", "--max-seq-len", "--max-seq-length", "--context-length", "--block-size"),
        "--sequence-length",
    ),
    "--dtype": "--precision", "--bs": "--global-batch-size",
}  # fmt: skip


def _other_option(name: str, context: Any) -> str:
    """Says that there is no such option, with those that it may stand for: ``--gbs`` has the
    initials of --global-batch-size, ``--seq-len`` begins its words, others are mistyped, or what
    other programs call it."""
    params = context.command.params if context else ()
    known = [one for param in params for one in param.opts if one.startswith("--")]
    given = name.lstrip("-").lower().replace("_", "-").split("-")
    if not all(given):
        return f"No such option: {name}"

    def stands_for(option: str) -> bool:
        words = option[2:].split("-")
        if len(words) > 2 and "".join(given) == _initials(words):
            return True
        left = iter(words)
        return len(name[2:]) >= LEAST and all(any(w.startswith(one) for w in left) for one in given)

    found = [one for one in known if stands_for(one) or one == _CALLED_ELSEWHERE.get(name)]
    if not found and len(name[2:]) >= LEAST:
        found = get_close_matches(name, known, cutoff=LIKE)
    hint = f" (did you mean {', '.join(found[:3])}?)" if found else ""
    return f"No such option: {name}{hint}"


def _knob_option(name: str, context: Any) -> str:
    """How a knob is given that was taken for an option; nothing of what is no knob."""
    said = name.lstrip("-").replace("-", "_")
    called = {_initials(one.split("_")): one for one in KNOBS}
    knob = called.get(said, said if said in KNOBS else f"{said}_size")
    options = [one for param in context.command.params for one in param.opts] if context else []
    found = next((one for one in ("--knob", "--settings") if one in options), None)
    if found is None or knob not in KNOBS:
        return ""
    return f"No such option: {name}: a knob is given as {found} {knob}=VALUE"


def _one_line(error: Exception) -> str:
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "tuner"
        # typer's own words for choices have pydantic's before them
        text = error.format_message().rstrip(".").replace("Value error, ", "")
        if context is not None and text.startswith("Missing option "):
            # All options that are needed and not given; those that are given were read before.
            wanted = [one for one in context.command.params if one.required]
            left = [f"'{one.opts[0]}'" for one in wanted if one.name not in context.params]
            text = f"Missing option {left[-1]}"
            if len(left) > 1:
                text = f"Missing options {', '.join(left[:-1])} and {left[-1]}"
        if named := getattr(error, "option_name", None):
            text = _knob_option(named, context) or _other_option(named, context)
        return " ".join(f"{text}; see '{command} --help'".split())
    # Of what is missing there is no value to tell, but the option to give.
    if isinstance(error, UsageError) and error.is_missing and error.field.isidentifier():
        return f"--{error.field.replace('_', '-')} {error.allowed}"
    return " ".join(str(error).split())
