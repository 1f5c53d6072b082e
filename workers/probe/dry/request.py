"""One line of input: a spec, micro-batch sizes and accumulation counts.

Settings that no dry run shows are refused before they get here (``tuner/dryrun/plan.py``), and
those that are not legal before that (``tuner/space/rules.py``).
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from workers.probe.spec import Spec, parse_spec

# A line has two points.
MOST_SIZES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The order for a dry run."""

    spec: Spec  # its micro-batch size and accumulation counts are of no meaning here
    micro_batch_sizes: tuple[int, ...]  # sequences of one forward pass: one or two sizes, ascending
    accumulation_counts: tuple[int, ...]
    """Micro-batches in one optimizer step, each tracked by a step of its own."""
    copies: tuple[dict[str, Any], ...] = ()
    """The model at two depths, of which the spec's is one, and the whole model: where the two do
    not show the whole, that is run in the place of the deeper one, and nothing in the other's."""
    counts_work: bool = False  # what a micro-batch computes is counted too, which takes time

    def at(self, micro_batch_size: int, count: int) -> Spec:
        knobs = replace(
            self.spec.settings, micro_batch_size=micro_batch_size, gradient_accumulation_steps=count
        )
        return replace(self.spec, settings=knobs, accumulation_counts=[count])


def parse_request(line: str) -> Request:
    """The request of a line.

    Raises:
        ValueError, TypeError: not JSON, or not what a request is made of.
    """
    values = json.loads(line)
    expected = {"id", "spec", "micro_batch_sizes", "accumulation_counts"}
    if not isinstance(values, dict) or set(values) - {"class", "copies", "work"} != expected:
        raise ValueError(f"a request has the fields {sorted(expected)}")
    if not isinstance(values["spec"], dict):
        raise ValueError("spec: must be an object")
    copies = values.get("copies", [])
    if copies and (len(copies) != 3 or values["spec"].get("model") not in copies[:2]):
        raise ValueError("copies: must be the model at two depths, one the spec's, and the whole")
    numbers: dict[str, tuple[int, ...]] = {}
    for field in ("micro_batch_sizes", "accumulation_counts"):
        given = values[field]
        good = isinstance(given, list) and given and all(type(x) is int and x >= 1 for x in given)
        if not good or len(set(given)) != len(given):
            raise ValueError(f"{field}: must be distinct integers of 1 or more")
        if field == "micro_batch_sizes" and len(given) > MOST_SIZES:
            raise ValueError(f"{field}: at most two")
        numbers[field] = tuple(sorted(given))
    counts = list(numbers["accumulation_counts"])
    spec = parse_spec({**values["spec"], "accumulation_counts": counts})
    counts_work = values.get("work", False) is True
    return Request(spec=spec, copies=tuple(copies), counts_work=counts_work, **numbers)


def id_and_class(line: str) -> tuple[str, str]:
    """The id of a line, empty where there is none, and the class that its dry run shares limits in.

    Also of a line that is wrong. The id stands for the class where a line names none.
    """
    try:
        values = json.loads(line)
    except ValueError:
        return "", ""
    if not isinstance(values, dict):
        return "", ""
    name = str(values.get("id", ""))
    return name, str(values.get("class", "")) or name
