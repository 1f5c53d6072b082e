"""One line of input: a spec, micro-batch sizes and accumulation counts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from workers.probe.dry.rules import RefusedError, check
from workers.probe.spec import Spec, parse_spec

MOST_SIZES = 2
"""A line has two points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a dry run is asked for."""

    spec: Spec
    """Its micro-batch size and accumulation counts are of no meaning here."""
    micro_batch_sizes: tuple[int, ...]
    """Sequences of one forward pass: one or two sizes, ascending."""
    accumulation_counts: tuple[int, ...]
    """Micro-batches in one optimizer step, each tracked by a step of its own."""

    def at(self, micro_batch_size: int, count: int) -> Spec:
        """The spec of one tracked step."""
        knobs = replace(
            self.spec.settings,
            micro_batch_size=micro_batch_size,
            gradient_accumulation_steps=count,
        )
        return replace(self.spec, settings=knobs, accumulation_counts=[count])


def parse_request(line: str) -> tuple[str, Request]:
    """The id and the request of a line.

    Raises:
        RefusedError: the spec breaks a rule.
        ValueError, TypeError: not JSON, or not what a request is made of.
    """
    values = json.loads(line)
    name, sizes, counts = _wanted(values)
    spec = parse_spec({**values["spec"], "accumulation_counts": list(counts)})
    request = Request(spec=spec, micro_batch_sizes=sizes, accumulation_counts=counts)
    check(request.at(sizes[0], counts[0]))
    return name, request


def id_of(line: str) -> str:
    """The id of a line, also of one that is wrong; empty where there is none."""
    return _word(line, "id")


def class_of(line: str) -> str:
    """What the dry runs of one class have in common; the id where a line names no class."""
    return _word(line, "class") or _word(line, "id")


def _word(line: str, field: str) -> str:
    try:
        values = json.loads(line)
    except ValueError:
        return ""
    return str(values.get(field, "")) if isinstance(values, dict) else ""


def _wanted(values: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    fields = {"id", "spec", "micro_batch_sizes", "accumulation_counts"}
    if not isinstance(values, dict) or set(values) - {"class"} != fields:
        raise ValueError(f"a request has the fields {sorted(fields)}")
    if not isinstance(values["spec"], dict):
        raise ValueError("spec: must be an object")
    sizes = _counts(values, "micro_batch_sizes")
    if len(sizes) > MOST_SIZES:
        raise RefusedError("micro_batch_sizes", "micro_batch_sizes: at most two")
    return str(values["id"]), sizes, _counts(values, "accumulation_counts")


def _counts(values: Mapping[str, Any], field: str) -> tuple[int, ...]:
    found = values[field]
    good = isinstance(found, list) and found and all(type(x) is int and x >= 1 for x in found)
    if not good or len(set(found)) != len(found):
        raise RefusedError(field, f"{field}: must be distinct integers of 1 or more")
    return tuple(sorted(found))
