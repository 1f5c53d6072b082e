"""Reads what was written on the command line into a request: numbers, sizes, durations, knobs."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tuner.cli.case_options import CaseAsked, SizeAsked
from tuner.cli.errors import option_of
from tuner.cli.options import Asked, SuggestAsked
from tuner.client.request import RequestHere, read_here
from tuner.core.adapter import QUANTIZED
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
    read_whole,
)

T = TypeVar("T")
G = TypeVar("G")


def read_documents(field: str, text: str) -> dict[str, object]:
    """Documents of an option's value: their mean, lengths with counts, or a file of lengths."""
    try:
        if text.startswith("mean="):
            return {"mean": read_number(field, text.removeprefix("mean="))}
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


def read_tags(field: str, texts: Sequence[str]) -> dict[str, str]:
    """Labels of a study; one without a value is empty."""
    return {name: text or "" for name, text in parse_labels(field, texts).items()}


class Texts:
    """Reads texts of options one by one; what cannot be read is kept, to be told with the rest."""

    def __init__(self) -> None:
        self.wrong: list[UsageError] = []

    def read(self, read: Callable[[str, G], T], field: str, given: G | None) -> T | None:
        """The value of an option by ``read``; ``None`` where it is left out, or is wrong."""
        return None if given is None else self.made(lambda: read(field, given))

    def made(self, make: Callable[[], T]) -> T | None:
        """The same of what is made of several."""
        try:
            return make()
        except UsageError as error:
            self.wrong += error.errors
            return None

    def adapter(self, asked: Asked | CaseAsked | SizeAsked) -> dict[str, object] | None:
        """The adapter that options describe."""
        given: dict[str, object] = {
            "rank": self.read(read_whole, "lora_rank", asked.lora_rank),
            "alpha": self.read(read_number, "lora_alpha", asked.lora_alpha),
            "dropout": self.read(read_share, "lora_dropout", asked.lora_dropout),
            "target_modules": asked.lora_targets,
            "modules_to_save": asked.lora_modules_to_save,
            "quantize": asked.quantize,
            "double_quant": asked.double_quant,
        }
        found = {name: value for name, value in given.items() if value is not None}
        if asked.adapter is None and found:
            name = next(iter(found))
            wanted = "qlora" if name in QUANTIZED else "lora or qlora"
            self.wrong.append(
                UsageError(option_of(f"adapter.{name}"), found[name], f"needs --adapter {wanted}")
            )
        return None if asked.adapter is None else {"method": asked.adapter, **found}

    def packing(self, asked: Asked | CaseAsked | SizeAsked) -> dict[str, object] | None:
        """The packing that options describe."""
        documents = self.read(read_documents, "documents", asked.documents)
        if asked.packing is None:
            if asked.documents is not None:
                self.wrong.append(UsageError("documents", asked.documents, "needs --packing"))
            return None
        found = {} if documents is None else {"documents": documents}
        return {"variant": asked.packing, **found}

    def limits(self, asked: Asked | CaseAsked | SizeAsked) -> dict[str, object]:
        """The options that ``suggest``, ``probe``, ``predict`` and ``check`` have in common."""
        memory_bytes = self.read(read_size, "memory_limit", asked.memory_limit)
        return {
            "global_batch_size": self.read(
                read_length, "global_batch_size", asked.global_batch_size
            ),
            "sequence_length": self.read(read_length, "sequence_length", asked.sequence_length),
            "model": asked.model,
            "cluster": asked.cluster,
            "optimizer": asked.optimizer,
            "precision": asked.precision,
            "reduce_dtype": asked.reduce_dtype,
            "loss": asked.loss,
            "tensor_parallel": asked.tensor_parallel,
            "adapter": self.adapter(asked),
            "frozen": asked.frozen,
            "packing": self.packing(asked),
            "task": asked.task,
            "image_tokens": self.read(read_whole, "image_tokens", asked.image_tokens),
            "framework": asked.framework,
            "framework_versions": self.made(
                lambda: parse_stated_versions(asked.framework_version or ())
            ),
            "headroom": self.read(read_share, "headroom", asked.headroom),
            "memory_limit_gib": None if memory_bytes is None else memory_bytes / 2**30,
        }


def read_options(asked: Asked) -> RequestHere:
    texts = Texts()
    given = {**texts.limits(asked), **further(texts, asked)}
    if asked.cluster is None:
        given["cluster"] = "local"
    return read_here(given, texts.wrong)


def further(texts: Texts, asked: Asked) -> dict[str, object]:
    """The options that only ``suggest`` and ``probe`` have."""
    given: dict[str, object] = {
        "knobs": texts.made(lambda: read_knobs(asked.knob or ())),
        "fidelity": asked.fidelity,
        "probe_deadline_s": texts.read(read_duration, "probe_deadline", asked.probe_deadline),
        "launcher": asked.launcher,
        "ray": asked.ray,
        "script": texts.made(lambda: _script(asked)),
    }
    if isinstance(asked, SuggestAsked):
        given |= {
            "max_probes": texts.read(read_whole, "max_probes", asked.max_probes),
            "wall_s": texts.read(read_duration, "budget", asked.budget),
            "gpu_s": texts.read(read_seconds, "max_gpu_seconds", asked.max_gpu_seconds),
            "tolerance": texts.read(read_share, "tolerance", asked.tolerance),
            "pool": asked.pool,
            "labels": texts.read(read_tags, "label", asked.label),
            "sampler": asked.sampler,
        }
    else:
        given["max_probes"] = 1
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
