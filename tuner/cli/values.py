"""Reads what was written on the command line into a request: numbers, sizes, durations, knobs."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from tuner.cli.errors import option_of
from tuner.cli.options import Asked, SuggestAsked, WorkloadAsked
from tuner.client.request import WITHIN, Common, RequestHere, read_here
from tuner.client.values import ARGUMENTS, framework_of_files
from tuner.core.adapter import Adapter
from tuner.core.bounds import choice
from tuner.core.configuration import KNOBS
from tuner.core.framework import FrameworkName, parse_stated_versions
from tuner.core.script import Launch, Script, read_script
from tuner.core.study import parse_labels
from tuner.errors import UsageError
from tuner.text import (
    read_duration,
    read_length,
    read_number,
    read_seconds,
    read_share,
    read_size,
    read_tokens,
    read_whole,
)

T = TypeVar("T")


def read_documents(field: str, text: str) -> dict[str, object]:
    """Documents of an option's value: their mean, lengths with counts, or a file of lengths."""
    if text.startswith("mean="):
        return {"mean": read_number(field, text.removeprefix("mean="))}
    try:
        if re.fullmatch(r"\d+x\d+(,\d+x\d+)*", text):
            return {"histogram": [[*map(int, one.split("x"))] for one in text.split(",")]}
        content = Path(text).read_text(encoding="utf-8")
        if content.lstrip().startswith(("[", "{")):
            found = json.loads(content)
            return found if isinstance(found, dict) else {"lengths": found}
        return {"lengths": [int(line) for line in content.split()]}
    except (OSError, ValueError) as error:
        allowed = "must be mean=N, lengths with counts such as 512x10,2048x3, or a file of lengths"
        raise UsageError(field, text, f"{allowed}: {error}") from error


def read_knobs(texts: Iterable[str]) -> dict[str, list[str]]:
    """Allowed values by knob; the request checks them."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name:
            known = ", ".join(KNOBS)
            raise UsageError("knob", text, f"must look like tp_size=1,2; the knobs are {known}")
        if name in found:
            raise UsageError("knob", text, f"{name} is given twice; write all its values in one")
        found[name] = [value for part in values.split(",") if (value := part.strip())]
    return found


# How texts of options are read; others are handed on as they are.
READ: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("global_batch_size", "sequence_length"), read_length),
    **dict.fromkeys(("image_tokens", "lora_rank", "max_probes"), read_whole),
    **dict.fromkeys(("headroom", "lora_dropout", "tolerance"), read_share),
    **dict.fromkeys(("lora_alpha", "price"), read_number),
    **dict.fromkeys(("budget", "probe_deadline", "within"), read_duration),
    **dict.fromkeys(("tokens", "tokens_per_s"), read_tokens),
    "documents": read_documents,
    "framework_version": lambda field, texts: parse_stated_versions(texts),
    "knob": lambda field, texts: read_knobs(texts),
    # of a study; one without a value is empty
    "label": lambda field, texts: {n: v or "" for n, v in parse_labels(field, texts).items()},
    "max_gpu_seconds": read_seconds,
    "memory_limit": lambda field, text: read_size(field, text) / 2**30,
}
# Arguments of Python by options that have other names.
NAMES = {
    **ARGUMENTS,
    "budget": "wall_s",
    "knob": "knobs",
    "max_gpu_seconds": "gpu_s",
    "memory_limit": "memory_limit_gib",
    "price": "price_per_gpu_hour",
    "within": "within_s",
}


class Texts:
    """Reads texts of options one by one; what cannot be read is kept, to be told with the rest."""

    def __init__(self) -> None:
        self.wrong: list[UsageError] = []

    def made(self, make: Callable[[], T]) -> T | None:
        """What is made of texts; ``None`` where one is wrong."""
        try:
            return make()
        except UsageError as error:
            self.wrong += error.errors
            return None

    def option(self, asked: WorkloadAsked, name: str) -> Any:
        """The value of an option, as its argument has it."""
        given, read = getattr(asked, name), READ.get(name)
        return given if given is None or read is None else self.made(lambda: read(name, given))

    def arguments(self, asked: WorkloadAsked, kind: type[Common]) -> dict[str, Any]:
        """The options that say fields of a request of ``kind``, by the names of arguments."""
        names = {NAMES.get(one.name, one.name): one.name for one in fields(asked)}
        known = names.keys() & (WITHIN.keys() | kind.model_fields.keys())
        given = {
            name: self.option(asked, option) for name, option in names.items() if name in known
        }
        return {**given, "adapter": self.adapter(asked), "packing": self.packing(asked)}

    def adapter(self, asked: WorkloadAsked) -> dict[str, Any] | None:
        """The adapter that options describe."""
        options = {one.name: option_of(f"adapter.{one.name}") for one in fields(Adapter)}
        values = {name: self.option(asked, option) for name, option in options.items()}
        found = {name: value for name, value in values.items() if value is not None}
        if found and asked.adapter is None:
            name = next(iter(found))
            wanted = "qlora" if name == "double_quant" else "lora or qlora"
            allowed = f"needs --adapter {wanted}"
            self.wrong.append(UsageError(options[name], found[name], allowed))
            return None
        return found or None

    def packing(self, asked: WorkloadAsked) -> dict[str, Any] | None:
        """The packing that options describe."""
        documents = self.option(asked, "documents")
        if asked.packing is None:
            if asked.documents is not None:
                self.wrong.append(UsageError("documents", asked.documents, "needs --packing"))
            return None
        found = {} if documents is None else {"documents": documents}
        return {"variant": asked.packing, **found}


def read_options(asked: Asked) -> RequestHere:
    texts = Texts()
    given = request_arguments(texts, asked)
    cluster = "local" if asked.cluster is None else asked.cluster
    return read_here({**given, "cluster": cluster}, texts.wrong)


def request_arguments(texts: Texts, asked: Asked) -> dict[str, Any]:
    """The options of ``suggest`` and ``probe`` as arguments, with what of the user's is run."""
    given = texts.arguments(asked, RequestHere)
    given["script"] = texts.made(lambda: _script(asked))
    if not isinstance(asked, SuggestAsked):
        return {**given, "max_probes": 1}
    if asked.framework is None and asked.from_file is None and asked.script is None:
        given["framework"] = framework_of_files(asked.write or ())
    return given


def _script(asked: Asked) -> Script | None:
    if asked.script is None:
        for name in ("launch", "script_env", "template"):
            if given := getattr(asked, name):
                raise UsageError(name, given, "needs --script")
        if asked.script_arguments:
            given = " ".join(asked.script_arguments)
            allowed = "only a --script takes arguments; see 'tuner suggest --help'"
            raise UsageError("argument", given, allowed)
        return None
    built = asked.framework in (FrameworkName.ACCELERATE, FrameworkName.TRAINER)
    usual = Launch.ACCELERATE if built else Launch.TORCHRUN
    return read_script(
        asked.script,
        launch=usual if asked.launch is None else choice("launch", Launch, asked.launch),
        arguments=asked.script_arguments or (),
        environment=asked.script_env or (),
        template=asked.template,
    )
