"""Pieces of the sentences that facts are said in, and what people are shown in their place."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tuner.core.answer import Grounds
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import Change
from tuner.core.study import Probe
from tuner.core.words import (
    MOST_NAMED,
    change_range_text,
    change_text,
    describe_class,
    listed,
    probe_name,
    probes_text,
    rough_duration_text,
)
from tuner.text import show, size_text

# Names of categories of memory, and of the phases of a step, in a sentence.
CATEGORY_WORDS: Mapping[str, str] = {
    "parameters": "parameters",
    "gradients_sharded": "sharded gradients",
    "gradients_unsharded": "unsharded gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "gathered_parameters": "gathered or cast parameters",
    "logits_and_loss": "logits and loss",
    "ddp_buckets": "buckets of gradients",
    "temporaries": "temporaries",
    "library_workspaces": "cuBLAS's workspaces",
    "unsplit_blocks": "blocks larger than their tensors",
}
PHASE_WORDS: Mapping[str, str] = {
    "forward": "forward",
    "loss": "the loss",
    "backward": "backward",
    "optimizer": "the optimizer's step",
}

# Part of the memory by which the upper end of its interval must exceed it to be told.
CLEARLY = 0.01


# -- pieces -----------------------------------------------------------------------------------


def change_interval_text(change: Change | float) -> str:
    """``25% longer, 80% interval 20% to 30% longer``; of a ratio alone without the interval."""
    if not isinstance(change, Change):
        return change_text(change)
    interval = change_range_text(change.low, change.high)
    return f"{change_text(change.ratio)}, 80% interval {interval}"


def few_probes_text(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else ""
    return f"{probes_text(numbers[:MOST_NAMED])}{more}"


def few_text(texts: Iterable[str]) -> str:
    found = list(texts)
    rest = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return "; ".join(found[:MOST_NAMED]) + rest


def most_text(one: Evaluation) -> str:
    """``61.2 GiB``, or with the interval's upper end where that is another number."""
    if one.basis is None:
        return size_text(one.most_bytes)
    text = size_text(one.expected_bytes)
    if one.most_bytes <= one.expected_bytes * (1 + CLEARLY):
        return text
    return f"{text} (up to {size_text(one.most_bytes)})"


def basis_text(found: Evaluation) -> str:
    if found.is_rehearsed:
        return f"rehearsed (probe {probes_text(found.probe_ids)})"
    return f"from dry run {probes_text(found.probe_ids)}" if found.probes else "by arithmetic"


def arithmetic_text(at_assumed_rates: bool) -> str:
    return "arithmetic at assumed rates" if at_assumed_rates else "arithmetic"


def grounds_text(grounds: Grounds) -> str:
    if grounds.by_rules_of_thumb:
        return "ordered by rules of thumb and corrected by the probes"
    by = ["by the probes"]
    by += ["by those of other fidelities"] if grounds.by_other_fidelities else []
    by += ["by other studies' probes"] if grounds.by_other_studies else []
    rates = "predicted with assumed rates" if grounds.at_assumed_rates else "predicted"
    return f"{rates} and corrected {listed(by)}"


def ran_text(days: Sequence[str], versions: Mapping[str, str]) -> str:
    """``on 2026-01-01 with torch 2.13.0``; empty where nothing ran."""
    if not days:
        return ""
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    when = f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}"
    return f"{when} with {named}" if named else when


def failure_text(probe: Probe) -> str:
    return ended_text(probe, describe_class(probe.request.settings))


def ended_text(probe: Probe, settings: str) -> str:
    assert probe.measurement is not None
    detail = f", {probe.measurement.detail}" if probe.measurement.detail else ""
    ended = probe.measurement.outcome.words
    return f"{settings} ended as {ended}{detail} ({probe_name(probe)})"


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def spared_text(spared_bytes: float) -> str:
    """How much less memory an answer needs that was chosen for its upper end."""
    return f"{size_text(spared_bytes)} less" if spared_bytes > 0 else "at its upper end less"


def earned_text(wall_s: float, change: Mapping[str, float]) -> str:
    """``earned back after 16 s of training (13 s to 20 s)``, of the change of a step that tuning
    spares."""
    gains = (change[end] - 1 for end in ("ratio", "high", "low"))
    value, soonest, latest = (
        rough_duration_text(wall_s / gain) if gain > 0 else "never" for gain in gains
    )
    return f"earned back after {value} of training ({soonest} to {latest})"


# -- what people are shown --------------------------------------------------------------------

# Kinds of facts whose changes a table shows in the place of their sentences.
OF_KNOBS = frozenset({"knob_probed", "knobs_expected", "knob_predicted"})
KNOB_HEADS = ("change one knob", "step", "memory", "seen in")

PlainFact = Mapping[str, Any]


_NUMBERS = ("probes", "against", "early")


def probes_in(value: object) -> set[int]:
    """The numbers of all probes that a fact names, of its plain values."""
    if isinstance(value, Mapping):
        found = [probes_in(item) for name, item in value.items() if name not in _NUMBERS]
        lists = [one for name in _NUMBERS if isinstance(one := value.get(name), list)]
        return set().union(*found, *([one for one in ids if isinstance(one, int)] for ids in lists))
    return set().union(*map(probes_in, value)) if isinstance(value, list) else set()


def shown(
    found: Sequence[PlainFact], sentences: Sequence[str], but: Collection[str] = ()
) -> Iterator[tuple[str, Collection[int]]]:
    """The sentences that stand beside the table of knobs, each with the probes that it names; those
    of some kinds left out."""
    if not found:
        yield from ((text, ()) for text in sentences)
    for fact, text in zip(found, sentences, strict=False):
        if fact["kind"] not in OF_KNOBS and fact["kind"] not in but:
            yield text, probes_in(fact)


def knob_rows(found: Iterable[PlainFact]) -> list[tuple[str, str, str, str]]:
    """The effects of knobs, of facts as plain values, as :data:`KNOB_HEADS` names them."""
    return [
        effect_cells(one) for fact in found if fact["kind"] in OF_KNOBS for one in fact["changes"]
    ]


def change_cell(change: Mapping[str, float]) -> str:
    """``+6.6% (-32 to 68)``: a step's change, with its interval in percent where it has one."""
    low, high = (100 * (change[end] - 1) for end in ("low", "high"))
    ends = f" ({round(low)} to {round(high)})" if high - low >= 1 else ""  # never -0
    return f"{round(100 * (change['ratio'] - 1), 1) + 0.0:+.1f}%{ends}"  # nor -0.0


def effect_cells(one: PlainFact) -> tuple[str, str, str, str]:
    """The row of one knob's other value, under :data:`KNOB_HEADS`."""
    memory, more = one["memory_bytes"], "-"
    if memory is not None:
        more = f"{'+' if memory >= 0 else '-'}{size_text(abs(memory))}" if memory else "same"
    if not one["fits"]:
        least = ">" if one["at_least"] else ""
        more = f"{least}{size_text(one['needed_bytes'])}: no fit"
    seen = probes_text(one["probes"]) or "predicted"
    seen += " ended early" if one["ended_early"] else ""
    seen += "" if one["of_answer"] else f", against {probes_text(one['against'])}"
    seen += f"; trains {one['trains']}" if one["trains"] else ""
    step = change_cell(one["step"]) if one["step"] else "-"
    return f"{one['knob']}={show(one['value'])}", step, more, seen
