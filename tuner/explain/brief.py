"""Says an answer in brief: the configuration, why it, what one knob changes, and how sure it is.

All of it is of facts as plain values, so that a service's answers are said alike. Intervals stand
in brackets, and what stands behind the numbers is said once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.core.answer import Reason, Suggestion
from tuner.core.configuration import ACCUMULATION, Settings, idle_knobs
from tuner.core.evaluation import GIB, KNOBS_PASSED, NOT_CHECKED, UNCHECKED, Evaluation
from tuner.core.measurement import Basis, Fidelity
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.study import OPEN, Question, Study
from tuner.core.words import (
    change_text,
    describe,
    memory_range_text,
    probes_text,
    rank_word,
    rate_text,
    rough_duration_text,
    seconds_text,
    share_text,
    speed_text,
)
from tuner.cost.memory.tensors import counts
from tuner.cost.time.compute import peak_flops_per_s
from tuner.explain.english import (
    CATEGORY_WORDS,
    OF_KNOBS,
    PHASE_WORDS,
    PlainFact,
    change_cell,
    earned_text,
    effect_cells,
    spared_text,
)
from tuner.serialization import Plain
from tuner.text import count_text, show, size_text, time_text

# Kinds of facts of which nothing is left to say beside the brief answer and its memory in full.
IN_BRIEF = frozenset({
    "chosen", "predicted", "nothing_measured", "memory_peak", "awkward_batch", "may_not_fit",
})  # fmt: skip

# Single changes that are told.
MOST_CHANGES = 6
DAY_S = 86_400.0
# Part of a step that a knob's other value may take or spare and still be said to cost nothing.
NEXT_TO_NOTHING = 0.01
BASES: Mapping[Basis, str] = {
    Basis.REHEARSED: "rehearsal",
    Basis.DRY_RUN: "dry run",
    Basis.ARITHMETIC: "arithmetic",
}
# Of two published runs of one workload, which the cost model sets apart by a lead of so much or
# more: how often the one that it calls faster is (``benchmarks/results/order.json``).
REAL_LEADS: Mapping[float, float] = {0.5: 0.93, 0.2: 0.79, 0.1: 0.70, 0.05: 0.61, 0.0: 0.56}
# Part of a step; smaller leads are none.
LEAST_LEAD = 0.005
# What a verdict of the guard means for whoever wants to launch.
GUARDS: Mapping[str, str] = {
    "passed": "Checked: a small copy of the model trains the same as on one process.",
    KNOBS_PASSED: "Each of its knobs was seen to train right; together they were not checked.",
    UNCHECKED: "Not checked for correct training: no step of it was run.",
    NOT_CHECKED: "Not checked for correct training.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(Plain):
    """The answer's speed as people plan with it."""

    devices: int
    tokens_per_s: Quantity
    """Of all devices together."""
    mfu: Quantity
    """Share of the devices' peak matrix rate that the model's own FLOPs take; unknown where the
    peak is, or where not all of a model is trained."""
    tokens: float | None
    """Of the training that is planned."""
    days: Quantity
    """That it takes; unknown unless tokens are said."""


def scale(question: Question, best: Evaluation, tokens: float | None = None) -> Scale:
    """The speed of all devices, their MFU, and how long training on ``tokens`` takes."""
    speed, devices = best.tokens_per_s_per_gpu, question.cluster.world_size
    total, days, mfu = speed.scaled(devices), UNKNOWN, UNKNOWN
    if tokens and total.value and total.low and total.high:
        value, low, high = (tokens / one / DAY_S for one in (total.value, total.high, total.low))
        days = Quantity(value=value, low=low, high=high, provenance=total.provenance)
    workload = question.workload
    model, peak = workload.model, peak_flops_per_s(workload, question.cluster)
    whole = question.script is None and workload.adapter is None and not model.is_traced
    if peak and whole:
        # As torchtitan and PaLM count: six FLOPs a parameter that multiplies, and attention without
        # its causal half.
        looked_up = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
        scores = model.layers * model.heads * model.head_dim * workload.sequence_length
        each = 6 * (counts(model).active_parameters - looked_up) + 12 * scores
        mfu = speed.scaled(each / peak)
    return Scale(devices=devices, tokens_per_s=total, mfu=mfu, tokens=tokens, days=days)


def whole_text(question: Question, best: Evaluation) -> str:
    """``8 GPUs: 310,339 tokens/s, MFU 42%``; empty where one device says it all."""
    found = scale(question, best)
    if found.tokens_per_s.value is None or (found.devices == 1 and not found.mfu.value):
        return ""
    counted = count_text(found.devices, rank_word(question))
    mfu = f", MFU {share_text(found.mfu.value)}" if found.mfu.value else ""
    return f"{counted}: {speed_text(found.tokens_per_s.value)} tokens/s{mfu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """An answer in brief: lines, the most important first."""

    title: str
    answer: tuple[str, ...]
    why: tuple[str, ...]
    changes: tuple[tuple[str, str, str, str], ...]
    """What one knob changes: see :data:`tuner.explain.english.KNOB_HEADS`."""
    sure: tuple[str, ...]


def is_forecast(study: Study, suggestion: Suggestion) -> bool:
    """True where what is suggested is predicted, while it was to be measured, emulated, or its
    memory rehearsed."""
    best, asked = suggestion.best, study.limits.fidelity
    if best is None or asked is Fidelity.PREDICTED:
        return False
    return not best.is_rehearsed if asked is Fidelity.REHEARSED else best.basis is not None


def brief(
    study: Study, suggestion: Suggestion, tokens: float | None = None, *, whole: bool = False
) -> Brief:
    """The brief answer of a suggestion that has a best; a ``whole`` one with all single changes."""
    best = suggestion.best
    assert best is not None
    by_kind = _by_kind(suggestion)
    changes = _changes(suggestion)
    so_far = "Best so far" if study.state in OPEN else "Answer"
    return Brief(
        title=f"Predicted, not {study.limits.fidelity}"
        if is_forecast(study, suggestion)
        else so_far,
        answer=tuple(_answer(study.question, best, tokens, named_knobs(suggestion))),
        why=tuple(_why(by_kind, changes, best)),
        changes=tuple(map(effect_cells, changes[: None if whole else MOST_CHANGES])),
        sure=tuple(_sure(by_kind, best, suggestion.alternatives, study)),
    )


def differing_text(settings: Mapping[str, Any], best: Settings) -> str:
    """Names the knobs in which a configuration differs from the answer, but for those that do not
    act in it: ``pp_size=2``."""
    theirs = Settings.from_dict(settings).all_values()
    names = _differing(settings, best)
    return ", ".join(f"{name}={show(theirs[name])}" for name in names) or "the same"


def _differing(settings: Mapping[str, Any], best: Settings) -> list[str]:
    other = Settings.from_dict(settings)
    mine, theirs = best.all_values(), other.all_values()
    passed_over = {ACCUMULATION, *idle_knobs(other)}
    return [name for name in theirs if name not in passed_over and theirs[name] != mine[name]]


# -- the answer -------------------------------------------------------------------------------


# Facts that Why tells, with their field that is another configuration.
OTHERS: Mapping[str, str] = {
    "tied_with_fastest": "fastest",
    "next_best": "second",
    "tuning_paid": "rule",
    "lighter": "least",
    "unverified": "leader",
}


def named_knobs(suggestion: Suggestion) -> set[str]:
    """Knobs of the answer that other configurations are told apart from it by, in why it was chosen
    and in its single changes: their values are shown, be they the default."""
    best, facts = suggestion.best, _by_kind(suggestion)
    if best is None:
        return set()
    others = [facts[kind][name] for kind, name in OTHERS.items() if kind in facts]
    named = {name for one in others for name in _differing(one.get("settings", one), best.settings)}
    return named | {one["knob"] for one in _changes(suggestion)[:MOST_CHANGES]}


def _by_kind(suggestion: Suggestion) -> dict[str, PlainFact]:
    """The first fact of each kind."""
    return {fact["kind"]: fact for fact in reversed(suggestion.facts)}


def _answer(
    question: Question, best: Evaluation, tokens: float | None, named: Collection[str]
) -> Iterator[str]:
    per, found = rank_word(question), scale(question, best, tokens)
    said = describe(best.settings).split(",")
    # Knobs at their default go unsaid, but for those that Why and the single changes name.
    left = {*named} - {part.partition("=")[0] for part in said}
    mine = best.settings.all_values()
    yield ", ".join([*said, *(f"{name}={show(mine[name])}" for name in mine if name in left)])
    speed, step = best.tokens_per_s_per_gpu, best.step_time_s
    step_text = f"{time_text(step.value)} s a step"
    yield f"{rate_text(speed, per)}, {step_text}"
    yield memory_range_text(best, per)
    yield _provenance(best, question)
    if whole := whole_text(question, best):
        yield whole
    if found.days.value is not None:
        low, high = (
            rough_duration_text((one or 0.0) * DAY_S) for one in (found.days.low, found.days.high)
        )
        took = rough_duration_text(found.days.value * DAY_S)
        yield f"{tokens_text(tokens or 0.0)} tokens take {took} ({low} to {high})"


def tokens_text(tokens: float) -> str:
    """``1T``, ``300B`` or ``20M``."""
    for letter, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.4g}{letter}"
    return f"{tokens:g}"


def _provenance(best: Evaluation, question: Question) -> str:
    time, memory = best.step_time_s.provenance, best.allocated_bytes.provenance
    if best.basis is None:
        return str(time) if time is memory else f"speed {time}, memory {memory}"
    by = BASES[best.basis]
    how = "rehearsed, on no GPU" if best.is_rehearsed else f"predicted by {by}"
    if time is Provenance.TRANSFERRED:
        return f"transferred: speed from other studies; memory {how}"
    if best.is_rehearsed:
        what = "by arithmetic" if question.script is None else "of the built-in step"
        return f"memory {how}; speed predicted {what}"
    if best.basis is Basis.ARITHMETIC:
        return "predicted by arithmetic"
    return f"predicted: memory by {by}, speed by arithmetic"


# -- why --------------------------------------------------------------------------------------


def _why(
    facts: Mapping[str, PlainFact], changes: Sequence[PlainFact], best: Evaluation
) -> Iterator[str]:
    if fact := facts.get("tied_with_fastest"):
        yield tied_text(fact, best)
    yield from _next_to(facts, best)
    if fact := facts.get("adapter_trained"):
        yield from _reductions(fact, changes)
    if fact := facts.get("only_knob"):
        yield f"Of the knobs that were probed, {fact['knob']} alone changed the speed."
    if fact := facts.get("tuning_paid"):
        yield from _paid(fact, best)
    second = facts.get("next_best", {}).get("second", {}).get("settings")
    fact = facts.get("lighter")
    if fact and fact["least"]["settings"] != second:  # whose figures were told
        other, takes = differing_text(fact["least"]["settings"], best.settings), fact["ratio"]
        spared = size_text(fact["spared_bytes"])
        yield f"Lighter: {other} spares {spared}, and takes {change_text(takes)}."
    if fact := facts.get("memory_peak"):
        parts = [f"{CATEGORY_WORDS[n]} {size_text(size)}" for n, size in fact["largest"].items()]
        yield f"Peak in {PHASE_WORDS[fact['phase']]}: {', '.join(parts)}."


def _next_to(facts: Mapping[str, PlainFact], best: Evaluation) -> Iterator[str]:
    """Names what is as fast as the answer, and the next best."""
    tied = set[int]()
    if fact := facts.get("tied_with_others"):
        tied, second = {*fact["probes"]}, facts.get("next_best", {}).get("second", {})
        others = [one for one in fact["probes"] if one not in second.get("probes", ())]
        more = f" and {fact['more']} more" if fact["more"] else ""
        if others or more:
            lighter = "is no lighter" if len(others) == 1 and not more else "are no lighter"
            yield f"As fast as {probes_text(others)}{more}, which {lighter}."
    if fact := facts.get("next_best"):
        second, change = fact["second"], fact["change"]
        if isinstance(change, Mapping):
            change = change["ratio"]
        untold = "; a tie, within the tolerance" if fact.get("is_tied") else ""
        if tied & {*second["probes"]}:
            untold = "; their runs do not tell the two apart"
        yield f"Second: {_other(second, best, change)}{untold}."
    elif "no_other" in facts:
        yield "Nothing else that fits was timed to the end."


def _reductions(fact: PlainFact, changes: Sequence[PlainFact]) -> Iterator[str]:
    """Says that reducing an adapter's gradients with each micro-batch takes no time, if so."""
    share = share_text(fact["trained"] / fact["parameters"])
    for one in changes:
        step = one["step"]
        if one["knob"] == "sync_each_batch" and step and abs(step["ratio"] - 1) <= NEXT_TO_NOTHING:
            told = f"{show(one['value'])}: {change_cell(step)}"
            yield (
                f"sync_each_batch costs next to nothing ({told}):"
                f" {share} of the parameters have gradients."
            )


def _other(one: Mapping[str, Any], best: Evaluation, ratio: float | None) -> str:
    """``pp_size=2 (14.5 s, +3.2%, 67.1 GiB)``: what is known of another configuration."""
    seconds, needed = one["step_time_s"]["value"], one["needed_gib"]["value"]
    parts = [seconds_text(seconds)] if seconds else []
    parts += [f"{100 * (ratio - 1):+.1f}%"] if ratio else []
    parts += [size_text(needed * GIB)] if needed else []
    return f"{differing_text(one['settings'], best.settings)} ({', '.join(parts)})"


def tied_text(fact: PlainFact, best: Evaluation) -> str:
    """Says why the answer is not the fastest, which the clock cannot tell from it."""
    checked = "each of this one's knobs was seen to train right, and not each of the other's"
    if best.guard.verdict == "passed":
        checked = "this one was seen to train right"
    why = {
        Reason.CHECKED: checked,
        Reason.LIGHTER: f"this one needs {spared_text(fact['spared_bytes'])}",
        Reason.SIMPLER: "this one keeps more of the defaults",
    }[Reason(fact["reason"])]
    ratio = fact["change"]["ratio"] if fact["change"] else None
    return f"Tied with {_other(fact['fastest'], best, ratio)}; {why}."


def _paid(fact: PlainFact, best: Evaluation) -> Iterator[str]:
    took, change = rough_duration_text(fact["wall_s"]), fact["change"]
    if change is None:
        yield f"The rule of thumb leads to the same; tuning took {took}."
        return
    rule = differing_text(fact["rule"], best.settings)
    yield f"Rule of thumb: {rule}, {seconds_text(fact['rule_s'])}, {change_cell(change)}."
    if change["ratio"] <= 1:
        yield f"Tuning took {took}, and has saved no time."
        return
    yield f"Tuning took {took}, {earned_text(fact['wall_s'], change)}."


def _changes(suggestion: Suggestion) -> list[PlainFact]:
    """The answer's single changes: those that were run first, then the largest effects."""

    def rank(one: PlainFact) -> tuple[bool, bool, float]:
        step = one["step"]["ratio"] if one["step"] else 1.0
        return not one["probes"], one["step"] is None, -abs(step - 1)

    known = (one for f in suggestion.facts if f["kind"] in OF_KNOBS for one in f["changes"])
    return sorted((one for one in known if one["of_answer"]), key=rank)


# -- how sure ---------------------------------------------------------------------------------


def _rank(step: Quantity, beside: Sequence[Evaluation]) -> str:
    """Says how far the order of predicted speeds is to be trusted; of what other studies tell, that
    was not counted."""
    steps = [one.step_time_s.value for one in beside if one.step_time_s.value]
    lead = min(steps) / step.value - 1 if steps and step.value else 0.0
    if step.provenance is not Provenance.PREDICTED or lead < LEAST_LEAD:
        return "Speeds are a ranking"
    return f"A predicted lead of {share_text(lead)} {real_text(lead)}"


def real_text(lead: float) -> str:
    """``was real 61 times in 100 in published pre-training``: of predicted leads so large."""
    times = 100 * next(share for least, share in REAL_LEADS.items() if lead >= least)
    return f"was real {times:.0f} times in 100 in published pre-training"


def _sure(
    facts: Mapping[str, PlainFact], best: Evaluation, beside: Sequence[Evaluation], study: Study
) -> Iterator[str]:
    step = best.step_time_s
    if best.basis is not None and step.value and step.low and step.high:
        low, high = (share_text(abs(step.value / end - 1)) for end in (step.high, step.low))
        yield f"{_rank(step, beside)}; absolute speed may be off (-{low} to +{high})."
    if fact := facts.get("nothing_measured"):
        yield f"Not measured: {fact['how']}."
    if "in_eight_bits" in facts:
        yield "Layers in eight bits: memory is arithmetic; they are slower than is said here."
    if "may_not_fit" in facts:
        yield "At the upper end of its memory it does not fit."
    if fact := facts.get("other_load"):
        used = f"about {fact['used']:.2g} of {fact['cores']} cores"
        yield f"Other programs used {used} while probes ran: measure again on a quiet machine."
    yield GUARDS.get(best.guard.verdict, best.guard.verdict.replace("_", " "))
    if fact := facts.get("awkward_batch"):
        batch = fact["batch"]
        others = " or ".join(map(str, batch["instead"]))
        lost = share_text(batch["cost"])
        yield f"Batch {batch['global_batch_size']} costs {lost} of the speed: {others} would not."
    if fact := facts.get("unverified"):
        leader = _other(fact["leader"], best, fact["ratio"])
        yield f"Not dry-run: {leader}; --max-probes {study.limits.max_probes + 3} looks."
    if fact := facts.get("more_probes"):
        count = fact["count"]
        most = count + (count == study.limits.max_probes)
        gain = f"may gain {share_text(fact['mean'])} on average,"
        gain += f" {share_text(fact['most'])} or less nine times in ten"
        if fact["most"] < 0.001:
            yield "More probes are expected to gain nothing."
        else:
            took = rough_duration_text(fact["wall_s"])
            more = f"{count_text(count, 'more probe')} ({took})"
            runs = f"; --max-probes {most} allows {most} more" if fact.get("is_spent", True) else ""
            if not runs and study.state not in OPEN:
                runs = "; a smaller --tolerance asks for more"
            yield f"{more} {gain}{runs}."
    elif "nothing_left" in facts:
        yield "Nothing is left to probe."
