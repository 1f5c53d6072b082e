"""Reads what was written on the command line into values: numbers, shares, sizes, durations."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import typer

from tuner.cli.options import Asked, SuggestAsked
from tuner.client.inquiry import Inquiry, inquiry_of
from tuner.client.request import Wanted
from tuner.core.configuration import KNOBS
from tuner.core.framework import FrameworkName, parse_stated_versions
from tuner.core.script import Launch, Script, read_script
from tuner.core.workload import choice
from tuner.errors import UsageError
from tuner.text import (
    read_duration,
    read_seconds,
    read_share,
    read_size,
    read_whole,
)


def read_inquiry(asked: Asked, **budget: Any) -> Inquiry:
    """The inquiry that was written; what its reader should know of it is told on stderr.

    Args:
        asked: the options.
        budget: further fields of :class:`Wanted`, already read.

    Raises:
        UsageError: some of it cannot be read, is contradictory, or cannot be measured here.
    """
    inquiry = inquiry_of(read_wanted(asked, **budget), asked.db)
    for note in inquiry.notes:
        typer.echo(note, err=True)
    return inquiry


def read_wanted(asked: Asked, **budget: Any) -> Wanted:
    """Reads the options into values.

    Raises:
        UsageError: one cannot be read.
    """
    return Wanted(
        model=asked.model,
        global_batch_size=read_whole("global_batch_size", asked.global_batch_size),
        sequence_length=read_whole("sequence_length", asked.sequence_length),
        cluster=asked.cluster,
        optimizer=asked.optimizer,
        precision=asked.precision,
        reduce_dtype=asked.reduce_dtype,
        framework=asked.framework,
        framework_versions=parse_stated_versions(asked.framework_version or ()),
        knobs=_knobs(asked.knob or ()),
        headroom=if_given(read_share, "headroom", asked.headroom),
        memory_limit_bytes=if_given(read_size, "memory_limit", asked.memory_limit),
        fidelity=asked.fidelity,
        probe_deadline_s=if_given(read_duration, "probe_deadline", asked.probe_deadline),
        script=_script(asked),
        **budget,
    )


def read_budget(asked: SuggestAsked) -> dict[str, Any]:
    """The fields of :class:`Wanted` that say how long to look, and who may.

    Raises:
        UsageError: one cannot be read.
    """
    return {
        "max_probes": if_given(read_whole, "max_probes", asked.max_probes),
        "wall_s": if_given(read_duration, "budget", asked.budget),
        "gpu_s": if_given(read_seconds, "max_gpu_seconds", asked.max_gpu_seconds),
        "tolerance": read_share("tolerance", asked.tolerance),
        "pool": asked.pool,
        "sampler": asked.sampler,
    }


T = TypeVar("T")


def if_given(read: Callable[[str, str], T], field: str, text: str | None) -> T | None:
    """``None`` for an option that was left out, else what ``read`` makes of it."""
    return None if text is None else read(field, text)


def _script(asked: Asked) -> Script | None:
    """The user's own script, if one is to be probed."""
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


def _knobs(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Allowed values by knob; the question checks them."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name:
            known = ", ".join(KNOBS)
            raise UsageError("knob", text, f"must look like tp_size=1,2; the knobs are {known}")
        if name in found:
            raise UsageError("knob", text, f"{name} is given twice; write all its values in one")
        found[name] = tuple(filter(None, (value.strip() for value in values.split(","))))
    return found
