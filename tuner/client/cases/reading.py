"""A case: one configuration of one question, read from strict JSON to be predicted.

Lines of a file of cases are split from it as they come in.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Protocol

from pydantic import PlainValidator, ValidationInfo, WrapValidator

from tuner.client.parts import Kept, cluster_of, json_knob, short
from tuner.client.request import Common, read
from tuner.client.values import NotCoveredError
from tuner.core.cluster import Cluster
from tuner.core.configuration import KNOBS, Settings, no_knob, parse_settings
from tuner.core.framework import framework, installed_versions, packages_beside
from tuner.core.study import HEADROOM, Question
from tuner.core.workload import LossKernel
from tuner.cost.prediction import uncovered
from tuner.cost.script import Script
from tuner.errors import UsageError, all_of
from tuner.space import check_settings, no_liger, settings_notes
from tuner.text import DoubledNameError, read_json

# Read at once of a file. Cases of one chunk are looked at together: some thousands of them.
CHUNK_BYTES = 4 * 2**20
# A case with a whole ``config.json`` has some kB; longer lines are refused unread.
LARGEST_LINE_BYTES = 4 * 2**20
# Levels of lists and objects in a case: three around a model's configuration, which has eight.
DEEPEST = 12


def read_settings(value: Any) -> tuple[Settings, frozenset[str]]:
    """Settings from an object of knobs, or from text such as ``sharding=ddp``; and the
    names of the knobs that were given.
    """
    if isinstance(value, str):
        text = short(value, "settings")
        names = {part.partition("=")[0].strip() for part in text.split(",")}
        return parse_settings(text), frozenset(names & KNOBS.keys())
    if not isinstance(value, Mapping):
        raise UsageError("settings", value, "must be an object of fields")
    found: dict[str, Any] = {}
    wrong_ones = []
    for name, one in value.items():
        try:
            if name not in KNOBS:
                raise UsageError(name, one, no_knob(name))
            found[name] = json_knob(name, one)
        except UsageError as error:
            wrong_ones.append(error)
    if wrong_ones:
        raise all_of(wrong_ones)
    return Settings(**found), frozenset(found)


def said_knobs(value: Any) -> dict[str, Any]:
    """The values of the knobs that were given to :func:`read_settings`."""
    written, names = read_settings(value)
    return {name: getattr(written, name) for name in names}


def _read_settings(value: Any, info: ValidationInfo) -> tuple[Settings, frozenset[str]]:
    if isinstance(value, Settings):
        return value, frozenset(KNOBS)
    return read_settings(value)


class CaseGiven(Common):
    """One configuration of one question, as a line of a file of cases has it."""

    id: Any = None
    cluster: Annotated[Cluster, PlainValidator(cluster_of), WrapValidator(Kept())]
    settings: Annotated[tuple[Settings, frozenset[str]], PlainValidator(_read_settings)]
    script: Annotated[Script, PlainValidator(Script.from_dict)] = Script()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One settings of one question, to be predicted."""

    question: Question
    """Workload, cluster and framework; without restrictions of knobs."""
    settings: Settings
    headroom: float = HEADROOM
    """Share of the device's memory to leave free; not applied to ``memory_limit_gib``."""
    memory_limit_gib: float | None = None
    """Memory that one device may use, taken as it is."""
    script: Script = field(default_factory=Script)
    """What the user's training loop keeps beside the step."""
    notes: tuple[str, ...] = ()
    """What was written and is not used, or was left out and matters, and why."""

    @property
    def limit_bytes(self) -> int | None:
        return None if self.memory_limit_gib is None else round(self.memory_limit_gib * 2**30)


def read_case(
    values: Mapping[str, Any],
    *,
    here: bool = False,
    beside: Sequence[UsageError] = (),
    named: Callable[[UsageError], UsageError] = lambda error: error,
) -> Case:
    """The case in a JSON object: ``workload``, ``cluster``, ``settings``, and if wanted
    ``framework``, ``headroom``, ``memory_limit_gib``, ``script`` and ``id``.

    Raises:
        UsageError: fields are wrong or missing, or the settings break a rule; with its path.
        NotCoveredError: all is in order, but nothing is known of the model type, of the GPU, or
            of the workload under the framework.
    """
    try:
        given = read(CaseGiven, values, here=here, beside=beside, named=named)
    except UsageError as error:
        mistakes = [one for one in error.errors if not isinstance(one, NotCoveredError)]
        if mistakes:
            raise all_of(mistakes) from error
        reasons = "; ".join(one.allowed for one in error.errors)
        raise NotCoveredError(error.field, error.given, reasons) from error
    workload = given.workload.trained_by(given.framework.name, given.cluster.gpu.device)
    try:
        asked = given.framework
        stack = framework(
            asked.name,
            asked.versions,
            _installed(),
            beside=packages_beside(workload, given.cluster.gpu.device),
        )
        if reason := uncovered(workload, stack):
            raise NotCoveredError("workload", workload.model.name, reason)
        question = Question(workload=workload, cluster=given.cluster, framework=stack)
        settings, changed = canonical(question, *given.settings)
    except NotCoveredError:
        raise
    except UsageError as error:
        is_version = error.field == "framework_version"
        raise named(error.at("framework.versions") if is_version else error) from error
    kernel = given.script.loss_kernel
    if kernel and (why := _no_kernel(question, settings, kernel, changed)):
        raise named(UsageError("script.loss_kernel", kernel, why))
    return Case(
        question=question,
        settings=settings,
        headroom=given.headroom,
        memory_limit_gib=given.memory_limit_gib,
        script=given.script,
        notes=(*changed, *given.notes),
    )


def _no_kernel(
    question: Question, settings: Settings, kernel: LossKernel, changed: Sequence[str]
) -> str:
    """Why this does not compute a fused loss here; empty where it does."""
    if settings.fused_loss:
        return no_liger(question) if kernel is LossKernel.LIGER else ""
    said = [one for one in changed if one.startswith("fused_loss ")]
    told = said or ["settings.fused_loss must be true"]
    return f"names what computes a fused loss: {'; '.join(told)}"


def canonical(
    question: Question, written: Settings, given: Collection[str]
) -> tuple[Settings, tuple[str, ...]]:
    """Legal settings with inactive knobs collapsed, and a sentence for each that was written
    otherwise or whose default is refused.
    """
    try:
        settings = check_settings(question, written, given=given)
        kept = all(getattr(settings, name) == getattr(written, name) for name in given)
        if kept and settings.sync_each_batch == written.sync_each_batch:
            return settings, ()
        notes = settings_notes(question, written, given=given)
    except UsageError as error:
        first = error.field.partition(" x ")[0]  # of a product of sizes
        inner = {"global_batch_size": "workload.global_batch_size"}
        path = f"settings.{first}" if first in KNOBS else inner.get(error.field, error.field)
        raise error.at(path) from error
    return settings, tuple(note.why for note in notes)


@lru_cache
def _installed() -> Mapping[str, str]:
    return installed_versions()


class Stream(Protocol):
    """A binary stream, such as ``sys.stdin.buffer`` or an open file."""

    def read1(self, size: int, /) -> bytes:
        """Reads what is there, but no more than ``size`` bytes; nothing at the end."""


def read_batches(stream: Stream) -> Iterator[list[bytes]]:
    """Whole lines as they come in, without waiting for more than a first one.

    Whoever writes one case and waits for its answer gets it; a file is read in large batches. Of a
    line longer than :data:`LARGEST_LINE_BYTES` only the beginning is kept, one byte too long.
    """
    rest = b""
    try:
        while chunk := stream.read1(CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[: LARGEST_LINE_BYTES + 1]
            if lines:
                yield lines
    except OSError as error:
        allowed = f"cannot be read any further: {error.strerror}"
        raise UsageError("cases", "the file", allowed) from error
    if rest:
        yield [rest]


def parse_line(line: bytes, number: int) -> dict[str, Any]:
    """The JSON object of a line without its end; ``number`` is for errors without a better name."""
    too_deep = f"may have {DEEPEST} levels of lists and objects at most"
    why, value = "", None
    if len(line) > LARGEST_LINE_BYTES:
        why = f"must be {LARGEST_LINE_BYTES} bytes at most"
    else:
        try:
            text = line.decode("utf-8-sig")
            value = read_json(text)
            # Few lines have that many brackets, so few are walked through.
            if text.count("{") + text.count("[") > DEEPEST and _depth(value) > DEEPEST:
                why = too_deep
        except UnicodeDecodeError:
            why = "must be JSON in UTF-8"
        except RecursionError:
            why = too_deep
        except DoubledNameError as error:
            raise UsageError(error.path or "case", "two values", "must be given once") from error
        except json.JSONDecodeError as error:
            why = f"must be JSON: {error.msg} at character {error.pos + 1}"
        except ValueError as error:  # a number that is too large
            why = f"must be JSON: {error}"
    if not why and isinstance(value, dict):
        return value
    raise UsageError("case", f"line {number}", why or "must be a JSON object")


def _depth(value: object) -> int:
    """Levels of lists and objects."""
    level, deepest = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        deepest += 1
        level = [i for item in level for i in (item.values() if isinstance(item, dict) else item)]
    return deepest
