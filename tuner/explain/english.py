"""Says facts in English: one template for each kind."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import singledispatch
from string import Formatter
from typing import Any

from tuner.core.answer import Grounds, Reason
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Basis
from tuner.core.packing import PackingVariant
from tuner.core.quantity import Change
from tuner.core.study import Probe
from tuner.core.words import (
    MOST_NAMED,
    change_range_text,
    change_text,
    describe,
    describe_class,
    interval_text,
    listed,
    need_text,
    probes_text,
    range_text,
    rough_duration_text,
    seconds_text,
    share_text,
    speed_text,
)
from tuner.cost.prediction import OF_TRACES
from tuner.explain import facts
from tuner.explain.facts import Fact, probes_in
from tuner.text import count_text, show, size_text

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
# Gain in speed below which none is expected.
NOTHING = 0.001
# What one would launch without tuning, in short.
RULE = (
    "the least model parallelism, then the fewest knobs off their default, then the largest"
    " micro-batch, of what is expected to fit"
)
_REASONS = {
    Reason.CHECKED: "that one's knobs were not seen to train what they should, and these were",
    Reason.SIMPLER: "the answer has fewer knobs off their default and needs no more memory",
}


# Templates, by kind; after the colon stands what says the value (:data:`_SAID`).
TEMPLATES: Mapping[type[Fact], str] = {
    facts.ScriptRan: (
        "What ran is {path}, through {launch} on {ranks} ranks; its memory is the {memory}, and its"
        " step the time from one report to the next, with loading data."
    ),
    facts.NoOther: ("No other settings that fit were timed."),
    facts.AwkwardBatch: (
        "A global batch of {batch.global_batch_size} on {batch.gpus} GPUs costs {batch.cost:.0%} of"
        " the speed, by arithmetic: {batch.instead:or} would not."
    ),
    facts.Extrapolated: (
        "Its step time is extrapolated from steps of {ran:and} micro-batches to {count} (probe"
        " {probes:probes})."
    ),
    facts.RunOut: ("Steps of all its {count} micro-batches were run (probe {probes:probes})."),
    facts.AllocatorConfigured: (
        "Its probes ran with PYTORCH_ALLOC_CONF={conf}: launch with the same."
    ),
    facts.NotSuggested: ("{count} settings such as {example:settings} are not suggested: {why}."),
    facts.Untried: (
        "{count} settings that may fit, {grounds:grounds}, were not probed; the next would be"
        " {next:settings}."
    ),
    facts.NothingLeft: (
        "Nothing is left that may fit and was not probed: more probes cannot gain."
    ),
    facts.StudyEnded: ("The study has ended: {reason}."),
    facts.Coverage: (
        "{probed} of the {legal} legal settings were probed, in {probes_done:count probe}."
    ),
    facts.AlsoProbed: (
        "{count:count probe} of this question {fidelity} too; --fidelity {fidelity} answers from"
        " these."
    ),
    facts.DryRunAgainstProbes: (
        "Of {predicted.settings:settings} a dry run predicts {predicted.expected_bytes:size} (probe"
        " {predicted.probe_ids:probes}); {fidelity} are {needed_bytes:size}."
    ),
    facts.ProbedTrainsWrongly: ("What was {fidelity} and fits trains something else: {why}."),
    facts.NothingProbedFits: ("None of the settings probed was seen to fit in {limit_bytes:size}."),
    facts.WhatFollows: ("What follows is predicted, until something is {fidelity} that fits."),
    facts.Rehearsed: (
        "{count:count probe} rehearsed settings ({probes:probes}): their memory is what torch's own"
        " CUDA allocator counted over steps of rank 0 of {world_size}, on no GPU, and up to"
        " {outside_bytes:size} of context and communicators, as assumed. All times are predicted."
    ),
    facts.TimesOfBuiltIn: (
        "What was rehearsed is {path}; times are predicted of the built-in step of {model}, and say"
        " no more of the script than an order."
    ),
    facts.TransferredFrom: (
        "No step of this question was timed. The most similar settings that other studies ran are"
        " {near:.0%} alike, workload included; by these studies the step takes {factor:.2f} times"
        " what {at_assumed_rates:arithmetic} says."
    ),
    facts.MayNotFit: (
        "At the upper end of its memory's interval it would not fit: nothing is predicted to fit in"
        " {limit_bytes:size} for sure."
    ),
    facts.Unverified: (
        "By arithmetic {leader.settings:settings} would be faster, with {leader.seconds:seconds}"
        " ({ratio:change}) and {leader:need}, but its layout was not dry-run; more --max-probes"
        " allow that."
    ),
    facts.Lighter: (
        "{least.settings:settings} needs {spared_bytes:size} less, {least:basis}, and is predicted"
        " to take {least.seconds:seconds} ({ratio:change}): predictions err alike for all settings,"
        " so only a tie within the tolerance is decided by memory."
    ),
    facts.MemoryUnknown: ("What it needs is unknown: {why}."),
    facts.OfDryRun: ("Of its dry run: {note}."),
    facts.OfDryRunsAlone: (f"{OF_TRACES[0].upper()}{OF_TRACES[1:]}."),
    facts.SpeedUnknown: (
        "{fit} of the {legal} legal settings {how} to fit in {limit_bytes:size}, but which of them"
        " is the fastest is not known: {why}."
    ),
    facts.LargestListed: (
        "Of each layout the largest micro-batch that fits is listed, the simplest layout"
        " first: {first.settings:settings} needs {first:need}, {first:basis}."
    ),
    facts.AllTrainWrongly: (
        "{fit} of the {legal} legal settings are predicted to fit in {limit_bytes:size}, and all of"
        " them train something else."
    ),
    facts.NothingFits: (
        "None of the {legal} legal settings is predicted to fit in {limit_bytes:size}."
    ),
    facts.Uncovered: (
        "Unknown of {count} of the {legal} legal settings, with {shardings:list}: {why}."
    ),
    facts.MeasuredRates: ("{text:sentence}"),
    facts.RanOn: ("This was {fidelity} {self:ran}."),
}

_SAID: Mapping[str, Callable[[Any], str]] = {
    "and": lambda items: " and ".join(map(str, items)),
    "arithmetic": lambda at_assumed_rates: _arithmetic(at_assumed_rates),
    "basis": lambda one: basis_text(one),
    "change": change_text,
    "grounds": lambda grounds: grounds_text(grounds),
    "list": ", ".join,
    "or": lambda items: " or ".join(map(str, items)),
    "need": lambda one: _need(one),
    "probes": probes_text,
    "ran": lambda fact: ran_text(fact.days, fact.versions),
    "seconds": seconds_text,
    "sentence": lambda text: _sentence(text),
    "settings": describe,
    "size": size_text,
}


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("count "):
            return count_text(value, format_spec.removeprefix("count "))
        said = _SAID.get(format_spec)
        return said(value) if said else str(super().format_field(value, format_spec))


@singledispatch
def say(fact: Fact) -> str:
    """The sentence of a fact: its template, or what is registered for its kind."""
    return _Words().vformat(TEMPLATES[type(fact)], (), {**vars(fact), "self": fact})


# -- pieces -----------------------------------------------------------------------------------


def _change(change: Change | float) -> str:
    """``25% longer, 80% interval 20% to 30% longer``; of a ratio alone without the interval."""
    if not isinstance(change, Change):
        return change_text(change)
    return f"{change_text(change.ratio)}, {_interval(change)}"


def _interval(change: Change) -> str:
    return f"80% interval {change_range_text(change.low, change.high)}"


def _ids(one: Evaluation) -> str:
    return probes_text(one.probe_ids)


def _some(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else ""
    return f"{probes_text(numbers[:MOST_NAMED])}{more}"


def _named(texts: Iterable[str]) -> str:
    found = list(texts)
    rest = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return "; ".join(found[:MOST_NAMED]) + rest


def _need(one: Evaluation) -> str:
    """``61.2 GiB``, or with the interval's upper end where that is another number."""
    if one.basis is None:
        return size_text(one.most_bytes)
    text = size_text(one.expected_bytes)
    if one.most_bytes <= one.expected_bytes * (1 + CLEARLY):
        return text
    return f"{text} (up to {size_text(one.most_bytes)})"


def basis_text(found: Evaluation) -> str:
    if found.is_rehearsed:
        return f"rehearsed (probe {_ids(found)})"
    return f"from a dry run (probe {_ids(found)})" if found.probes else "by arithmetic"


def _arithmetic(at_assumed_rates: bool) -> str:
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
    return _ended(probe, describe_class(probe.request.settings))


def _ended(probe: Probe, settings: str) -> str:
    assert probe.measurement is not None
    detail = f", {probe.measurement.detail}" if probe.measurement.detail else ""
    return f"{settings} ended as {probe.measurement.outcome}{detail} (probe #{probe.id})"


def _studies(studies: Sequence[facts.EarlierStudy]) -> str:
    def one(study: facts.EarlierStudy) -> str:
        differs = f", {study.optimizer}" if study.optimizer else ""
        how = "as the framework does" if study.reduce_dtype == "framework" else ""
        how = how or f"in {study.reduce_dtype}"
        differs += f", gradients reduced {how}" if study.reduce_dtype else ""
        ran = " and ".join(f"{count} settings {fidelity}" for count, fidelity in study.ran)
        return (
            f"{study.id} ({study.model} on {study.cluster}, global batch"
            f" {study.global_batch_size}, sequence {study.sequence_length}{differs}:"
            f" {ran or 'nothing ran'} {ran_text(study.days, study.versions)})"
        )

    return _named(map(one, studies))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


# -- an answer on probes ----------------------------------------------------------------------


@say.register
def _(fact: facts.Chosen) -> str:
    best = fact.best
    time, memory = best.step_time_s.provenance, best.allocated_bytes.provenance
    are = f"both are {time}" if time is memory else f"the time is {time}, the memory {memory}"
    return (
        f"{describe(best.settings)} takes {seconds_text(best.seconds)} for an optimizer step"
        f" ({interval_text(best.step_time_s)}) and needs {size_text(best.most_bytes)} of"
        f" {size_text(fact.limit_bytes)} on one device (probe {_ids(best)}; {are})."
    )


def spared_text(spared_bytes: float) -> str:
    """How much less memory an answer needs that was chosen for its upper end."""
    return f"{size_text(spared_bytes)} less" if spared_bytes > 0 else "at its upper end less"


@say.register
def _(fact: facts.TiedWithFastest) -> str:
    fastest = fact.fastest
    reason = _REASONS.get(fact.reason, f"the answer needs {spared_text(fact.spared_bytes)} memory")
    if fact.change is None:
        return (
            f"{describe(fastest.settings)} is as fast, within the tolerance, with"
            f" {seconds_text(fastest.seconds)} and {_need(fastest)}; {reason}."
        )
    tied = "cannot be told apart from"
    if fact.tolerance is not None:
        tied = f"is within the tolerance ({fact.tolerance:.1%}) of"
    return (
        f"Its speed {tied} that of the fastest, {describe(fastest.settings)} with"
        f" {seconds_text(fastest.seconds)} ({_change(fact.change)}) and {_need(fastest)}"
        f" (probe {_ids(fastest)}); {reason}."
    )


@say.register
def _(fact: facts.TiedWithOthers) -> str:
    more = f" and {fact.more} more" if fact.more else ""
    return (
        f"Its speed cannot be told apart from that of {probes_text(fact.probes)}{more}, none of"
        f" which is lighter by {fact.lighter:.0%} or more."
    )


@say.register
def _(fact: facts.NextBest) -> str:
    second = fact.second
    where = f" (probe {_ids(second)})" if second.basis is None else f", {basis_text(second)}"
    return (
        f"Next comes {describe(second.settings)} with {seconds_text(second.seconds)}"
        f" ({_change(fact.change)}) and {_need(second)}{where}."
    )


@say.register
def _(fact: facts.OnlyKnob) -> str:
    def group(one: facts.ValueGroup) -> str:
        ends = dict.fromkeys((seconds_text(one.low_s), seconds_text(one.high_s)))
        early = f"; {_some(one.early)} ended early" if one.early else ""
        value = f"{fact.knob}={show(one.value)}"
        return f"a step takes {' to '.join(ends)} with {value} (probe {_some(one.probes)}{early})"

    return (
        f"Of what was probed, only {' or '.join((fact.knob, *fact.confounded))} changed the speed:"
        f" {'; '.join(map(group, fact.groups))}. Those of the same {fact.knob} cannot be told"
        f" apart, though they differ in {listed(fact.without_effect)}."
    )


@say.register(facts.KnobProbed)
@say.register(facts.KnobsExpected)
def _(fact: Fact) -> str:
    cells = (effect_cells(one) for one in fact.as_dict()["changes"])
    told = "; ".join(f"{knob}: {step} {memory} ({seen})" for knob, step, memory, seen in cells)
    return f"One knob changed, in step and memory: {told}."


@say.register
def _(fact: facts.TuningPaid) -> str:
    took, change = rough_duration_text(fact.wall_s), fact.change
    took += f" and {fact.device_s:,.0f} device-seconds" if fact.device_s else ""
    rule = f"the rule of thumb ({RULE})"
    if change is None:
        return f"Tuning took {took}, and confirms {rule}."
    source = grounds_text(fact.grounds) if fact.grounds else f"probe {probes_text(fact.probes)}"
    against = f"{rule}, {describe(fact.rule)}, takes {seconds_text(fact.rule_s)} for a step"
    against = f"{against} ({_change(change)}; {source}{', ended early' * fact.ended_early})"
    if change.ratio <= 1:
        return f"Tuning took {took}, and has saved no time: {against}."
    ends = (ratio - 1 for ratio in (change.ratio, change.high, change.low))
    value, soonest, latest = (
        rough_duration_text(fact.wall_s / gain) if gain > 0 else "never" for gain in ends
    )
    earned = f"earned back after {value} of training ({soonest} to {latest})"
    return f"Tuning took {took}, {earned}: {against}."


@say.register
def _(fact: facts.RanOutOfMemory) -> str:
    def one(probe: Probe) -> str:
        oom = probe.measurement.oom if probe.measurement else None
        where = f" in {oom.phase}, needing at least {size_text(oom.needed_bytes)}" if oom else ""
        return f"{describe(probe.request.settings)}{where} (probe #{probe.id})"

    return f"Out of memory: {_named(map(one, fact.probes))}."


@say.register
def _(fact: facts.EndedEarly) -> str:
    def one(probe: Probe, seconds: float | None) -> str:
        taken = "" if seconds is None else f", about {seconds_text(seconds)} for a step"
        return f"{describe(probe.request.settings)}{taken} (probe #{probe.id})"

    named = _named(map(one, fact.probes, fact.seconds))
    return f"Ended early, slower than the fastest could be: {named}."


@say.register
def _(fact: facts.Failed) -> str:
    if fact.fidelity != "predicted":
        ended = (_ended(probe, describe(probe.request.settings)) for probe in fact.probes)
        return f"Without a result: {_named(ended)}."
    named = _named(map(failure_text, fact.probes))
    if fact.is_accident:
        return (
            "By arithmetic, because their dry run had an accident, which the next request tries"
            f" again: {named}."
        )
    return f"Unknown, because their dry run failed: {named}."


@say.register
def _(fact: facts.MoreProbes) -> str:
    if fact.most < NOTHING:
        gain = f"are expected to gain nothing (less than {share_text(NOTHING)})"
    else:
        gain = (
            f"could gain up to {share_text(fact.most)} in speed ({share_text(fact.mean)} on"
            " average) over the fastest known"
        )
    devices = count_text(fact.devices, "CPU rank" if fact.is_cpu else "GPU")
    return (
        f"{fact.count} more {'probe' if fact.count == 1 else 'probes'}, about"
        f" {rough_duration_text(fact.wall_s)} on {devices}, {gain}, {grounds_text(fact.grounds)};"
        f" the first would be {describe(fact.next)}."
    )


@say.register
def _(fact: facts.OtherStudies) -> str:
    counted = "1 study" if len(fact.studies) == 1 else f"{len(fact.studies)} studies"
    return (
        f"Other studies' probes are those of {counted} on such devices: {_studies(fact.studies)}."
    )


@say.register
def _(fact: facts.AlsoDryRun) -> str:
    one = fact.count == 1
    counted = "1 layout was" if one else f"{fact.count} layouts were"
    return f"{counted} dry-run too; --fidelity predicted answers from these."


@say.register
def _(fact: facts.ProbesAgainstPrediction) -> str:
    found = fact.found
    time = "no time" if fact.predicted_s is None else seconds_text(fact.predicted_s)
    return (
        f"The fastest {found.fidelity} that fits, {describe(found.settings)}, took"
        f" {seconds_text(found.seconds)} and needed {size_text(found.most_bytes)} (probe"
        f" {_ids(found)}); without it, {time} and {size_text(fact.predicted_bytes)} are predicted"
        " of it."
    )


# -- an answer on predictions -----------------------------------------------------------------


@say.register
def _(fact: facts.NothingProbed) -> str:
    if fact.is_done:
        return f"No probe has given a result{fact.last and f'; the last: {fact.last}'}."
    return f"Nothing was {fact.fidelity} yet: no probe is done."


@say.register
def _(fact: facts.SmallestNeed) -> str:
    return _sentence(need_text(fact.smallest, fact.limit_bytes))


@say.register
def _(fact: facts.GoOn) -> str:
    if not fact.options:
        return "Ask again, and it goes on where it ended."
    options = ", ".join(fact.options)
    return f"Ask again with a larger budget ({options}): it goes on where it ended."


@say.register
def _(fact: facts.Predicted) -> str:
    best = fact.best
    time = {
        "arithmetic": "arithmetic",
        "transferred": "transferred: arithmetic, corrected by what other studies measured",
        "corrected": "arithmetic, corrected by what other studies measured of less similar"
        " settings",
    }[fact.time_from]
    if best.is_rehearsed:
        return (
            f"{describe(best.settings)} is predicted to take {seconds_text(best.seconds)} for an"
            f" optimizer step ({interval_text(best.step_time_s)}), which is {time}; rehearsed, it"
            f" needed {_need(best)} of {size_text(fact.limit_bytes)} (probe {_ids(best)})."
        )
    memory = basis_text(best) if best.probes else "arithmetic"
    same = time == memory
    basis = "both are arithmetic" if same else f"its memory is {memory}, its time is {time}"
    return (
        f"{describe(best.settings)} is predicted to take {seconds_text(best.seconds)} for an"
        f" optimizer step ({interval_text(best.step_time_s)}) and to need {_need(best)} of"
        f" {size_text(fact.limit_bytes)} on one device; {basis}."
    )


@say.register
def _(fact: facts.MemoryPeak) -> str:
    by = "a dry run" if fact.basis is Basis.DRY_RUN else "arithmetic"
    parts = [f"{size_text(size)} of {CATEGORY_WORDS[name]}" for name, size in fact.largest.items()]
    rest = "" if fact.is_all else ", and the rest is less"
    return (
        f"By {by} the peak of {size_text(fact.peak_bytes)} is in {PHASE_WORDS[fact.phase]}:"
        f" {listed(parts)}{rest}."
    )


@say.register
def _(fact: facts.ExpertsPadded) -> str:
    times = fact.each * fact.ranks / fact.experts
    return (
        f"FSDP2 splits packed experts by whole experts, so each of the {fact.ranks} ranks that"
        f" shard has room for {fact.each} of {fact.experts}, which is {times:.3g} times their size"
        f" in all: {size_text(fact.held_bytes)} of padding in parameters, gradients and optimizer"
        f" state, and {size_text(fact.gathered_bytes)} in each layer that is gathered."
    )


@say.register
def _(fact: facts.InputsOnHost) -> str:
    node = fact.ranks * fact.pinned_bytes
    return (
        f"`activation_checkpointing=offload` keeps {size_text(fact.rank_bytes)} of layers' inputs"
        " of each rank in host memory: each micro-batch sends them there and fetches them back."
        f" Pinned, in blocks of powers of two, they take {size_text(node)} of a node's memory."
    )


@say.register
def _(fact: facts.DocumentsTaken) -> str:
    length, row, variant = fact.sequence_length, fact.row, fact.variant
    if variant is PackingVariant.PADDED:
        useful, every = fact.useful_tokens_per_s_per_gpu, fact.tokens_per_s_per_gpu
        speed = ""
        if useful.value is not None:
            speed = (
                f": of {speed_text(every.value)} tokens/s per GPU {speed_text(useful.value)}"
                f" ({range_text(useful)}, {useful.provenance}) are useful"
            )
        share = share_text(1 - sum(row) / length)
        return f"Each sequence of {length:,} tokens is taken to be {share} padding{speed}."
    if fact.are_said:
        number = f"{len(row)} documents" if len(row) > 1 else "one document"
        sizes = f"{min(row):,} to {max(row):,}" if min(row) < max(row) else f"{row[0]:,}"
        return f"Each sequence is taken for {number} of {sizes} tokens."
    if variant is PackingVariant.POSITION_IDS:
        return (
            "No documents are said: each sequence is taken for two, of which transformers makes a"
            " mask; with it attention takes as long whatever the documents are."
        )
    return (
        "No documents are said: each sequence is taken for one, of which attention takes the"
        " longest that it can. `--documents` says what they are."
    )


@say.register
def _(fact: facts.AdapterTrained) -> str:
    share = share_text(fact.trained / fact.parameters)
    return (
        f"Of {fact.parameters:,} parameters the adapter's {fact.trained:,} ({share}) are trained:"
        " they alone have gradients, which are reduced, and optimizer state."
    )


@say.register
def _(fact: facts.KnobPredicted) -> str:
    (one,) = fact.changes
    also = f", with {fact.beside}," if fact.beside else ""
    told = f"`{one.knob}={show(one.value)}`{also} would"
    if not one.memory_bytes:
        return f"{told} hardly change the peak: it is not what the peak is made of."
    verb = "add" if one.memory_bytes > 0 else "save"
    both = fact.of_dry_run and fact.basis is Basis.ARITHMETIC
    by = " (both by arithmetic)" if both else ""
    return f"{told} {verb} {size_text(abs(one.memory_bytes))}{by}: {fact.reason}."


@say.register
def _(fact: facts.HowToKnowSpeed) -> str:
    if fact.is_cpu:
        return (
            "Speeds of CPU ranks can be measured, on that machine: --fidelity measured; or"
            f" predicted, once tuner calibrate --cluster {fact.cluster} has run there."
        )
    ways = []
    if fact.precisions:
        named = " or ".join(fact.precisions)
        ways.append(f"with --precision {named}, whose matrix rate is known")
    if not ways or not fact.is_listed:
        ways.append(f"where --cluster is a .toml file that states {', '.join(fact.missing)}")
    return f"Speeds are predicted {', or '.join(ways)}; or measure them there: --fidelity measured."


@say.register
def _(fact: facts.NothingPredicted) -> str:
    if fact.dry_runs_failed:
        return "The dry runs failed, so nothing is known of what any settings need."
    return "Nothing is predicted of any settings."


@say.register
def _(fact: facts.NoDryRuns) -> str:
    made = "No dry run succeeded"
    if not fact.failed:
        made = f"No dry run was made{f' ({fact.why})' if fact.why else ''}"
    if fact.is_transferred:
        return f"{made}: all memory, and every time before it is corrected, is arithmetic."
    return f"{made}: all numbers are arithmetic."


@say.register
def _(fact: facts.DryRunsMade) -> str:
    times = "every time before it is corrected" if fact.is_transferred else "every time"
    return (
        f"{len(fact.probes)} of {fact.layouts} layouts were dry-run (probe"
        f" {probes_text(fact.probes)}): their memory is counted on the step itself. The memory of"
        f" the others, what is outside of tensors, and {times} are arithmetic."
    )


@say.register
def _(fact: facts.OtherVersions) -> str:
    ran = ", ".join(f"{package} {version}" for package, version in fact.ran.items())
    asked = ", ".join(f"{package} {version}" for package, version in fact.asked.items())
    return (
        f"The dry runs were made with {ran}, which is installed here, instead of the {asked} that"
        " is asked about; what the knobs do is as in the latter."
    )


@say.register
def _(fact: facts.Transferred) -> str:
    ends = " to ".join(dict.fromkeys(f"{end:.2f}" for end in (fact.low, fact.high)))
    count = len(fact.studies)
    counted = "1 other study" if count == 1 else f"{count} other studies"
    text = (
        f"The times of {fact.count} of {fact.timed} settings are transferred: {ends} times what"
        f" {_arithmetic(fact.at_assumed_rates)} says, by the steps that {counted} ran on such"
        f" devices with the same versions: {_studies(fact.studies)}."
    )
    if fact.count < fact.timed:
        text += (
            " The other times are corrected by these too, and stay predicted: what was run is less"
            f" than {fact.near:.0%} like them."
        )
    return text


# -- what people are shown --------------------------------------------------------------------

# Kinds of facts whose changes a table shows in the place of their sentences.
OF_KNOBS = frozenset({"knob_probed", "knobs_expected", "knob_predicted"})
KNOB_HEADS = ("change one knob", "step", "memory", "seen in")

PlainFact = Mapping[str, Any]


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
