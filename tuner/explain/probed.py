"""Facts of an answer on probes: why this one, what was second, what failed, what is left."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from math import log
from statistics import median

from tuner.core.cluster import Device
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import PROBED, Fidelity, Outcome
from tuner.core.study import OPEN, Probe, Question, Study
from tuner.core.words import (
    MOST_NAMED,
    describe,
    interval_text,
    probes_text,
    rough_duration_text,
    seconds_text,
    share_text,
)
from tuner.explain import facts
from tuner.explain.english import (
    change_interval_text,
    earned_text,
    few_text,
    grounds_text,
    ran_text,
)
from tuner.explain.facts import Fact, fact
from tuner.explain.knobs import knob_facts
from tuner.explain.memory import of_workload, on_host
from tuner.guard.faults import Wrong
from tuner.planner.expectation import Expectation
from tuner.planner.forecast import Forecast
from tuner.planner.knowledge import Knowledge, finished, learned, outcome_of
from tuner.planner.ranking import LIGHTER, Choice, complexity
from tuner.planner.spending import cost, devices_held, spent
from tuner.planner.step_times import change_between, compared, fair
from tuner.planner.timing import SHORT_COUNTS
from tuner.search.gain import HOPEFUL, gain_of_more
from tuner.space import enumerate_space
from tuner.text import count_text, size_text

# Probes whose gain is told, and the gain in speed below which none is expected.
MORE, NOTHING = 3, 0.001
# Share of the cores that ranks may use from which others' load is told.
LOADED = 0.25
_TOLD_APART = frozenset({Outcome.OK, Outcome.OOM, Outcome.STOPPED_EARLY})


def probed_facts(
    whole: Study, known: Knowledge, choice: Choice, predictions: Forecast | None
) -> Iterator[Fact]:
    """All facts of an answer that was probed, most important first."""
    expectation = Expectation(known)
    yield from _of_best(known, choice)
    yield from knob_facts(known, choice.best, expectation)
    yield from _paid(known, choice.best, expectation)
    yield from failures(known)
    yield from not_suggested(known.wrong, known.study)
    yield from what_is_left(known, expectation)
    yield from of_other_fidelities(whole, known, predictions)


def _of_best(known: Knowledge, choice: Choice) -> Iterator[Fact]:
    timed, tolerance = fair(known), known.study.limits.tolerance
    best, fastest = timed[choice.best.settings], timed[choice.fastest.settings]
    time, memory = best.step_time_s.provenance, best.allocated_bytes.provenance
    are_from = f"the time is {time}, the memory {memory}"
    yield fact(
        "chosen",
        f"{describe(best.settings)} takes {seconds_text(best.seconds)} for an optimizer step"
        f" ({interval_text(best.step_time_s)}) and needs {size_text(best.most_bytes)} of"
        f" {size_text(known.limit_bytes)} on one device (probe {probes_text(best.probe_ids)};"
        f" {f'both are {time}' if time is memory else are_from}).",
        best=best,
        limit_bytes=known.limit_bytes,
    )
    question, last = known.study.question, best.probes[-1].measurement
    if question.workload.model.is_named:
        yield from on_host(question.workload, question.cluster, best.settings)
    if question.script is None:  # whose batches are its own
        yield from of_workload(question.workload, best)
    if (script := question.script) is not None and last is not None:
        ranks, how = question.cluster.world_size, str(script.launch)
        counted = last.hardware.get("memory", "as the script's process has it")
        yield fact(
            "script_ran",
            f"What ran is {script.path}, through {how} on {ranks} ranks; its memory is the"
            f" {counted}, and its step the time from one report to the next, with loading data.",
            path=script.path,
            launch=how,
            ranks=ranks,
            memory=counted,
        )
    tied = [f for f in choice.tied if f is not choice.best]
    if choice.best is not choice.fastest:
        change = change_between(best, fastest)
        yield facts.tied_with_fastest(
            fastest,
            fastest.expected_bytes - best.expected_bytes,
            choice.reason,
            change=change,
            tolerance=tolerance if change.is_clear else None,
        )
    elif tied:
        named = tuple(f.probes[0].id for f in tied[:MOST_NAMED])
        more = len(tied) - len(named)
        yield fact(
            "tied_with_others",
            f"Its speed cannot be told apart from that of {probes_text(named)}"
            f"{f' and {more} more' if more else ''}, none of which is lighter by {LIGHTER:.0%} of"
            " the limit or more.",
            probes=named,
            more=more,
            lighter=LIGHTER,
        )
    second = next((f for f in known.fitting if f is not choice.best), None)
    if second is None:
        yield fact("no_other", "No other settings that fit were timed.")
    elif second is not choice.fastest:  # which was named as what the answer is tied with
        second = timed[second.settings]
        yield facts.next_best(second, change_between(best, second), tolerance=tolerance)
    count = best.settings.gradient_accumulation_steps
    steps = {p.id: p.measurement.step_times_s for p in best.probes if p.measurement}
    if best.extrapolated:
        ran = tuple(sorted({n for found in steps.values() for n in found}))
        yield fact(
            "extrapolated",
            f"Its step time is extrapolated from steps of {' and '.join(map(str, ran))}"
            f" micro-batches to {count} (probe {probes_text(best.probe_ids)}).",
            ran=ran,
            count=count,
            probes=best.probe_ids,
        )
    elif count > max(SHORT_COUNTS) and len(best.probes) > 1:
        run_out = tuple(number for number, found in steps.items() if found.get(count))
        text = f"Steps of all its {count} micro-batches were run (probe {probes_text(run_out)})."
        yield fact("run_out", text, count=count, probes=run_out)
    hardware = [p.measurement.hardware for p in best.probes if p.measurement]
    for conf in dict.fromkeys(one["allocator_conf"] for one in hardware if "allocator_conf" in one):
        text = f"Its probes ran with PYTORCH_ALLOC_CONF={conf}: launch with the same."
        yield fact("allocator_configured", text, conf=conf)
    yield from _other_load(known.study)


def _other_load(study: Study) -> Iterator[Fact]:
    """Says once that other programs took cores from timed ranks: no interval knows of that."""
    if study.question.cluster.gpu.device is not Device.CPU:
        return  # a GPU's steps wait for a core only while they are launched
    ran = {p.id: p.measurement.hardware for p in study.probes if p.measurement}
    known = {number: one for number, one in ran.items() if "cores_of_others" in one}
    loaded = [n for n, one in known.items() if one["cores_of_others"] > LOADED * one["cores"]]
    if loaded:
        used = median(known[number]["cores_of_others"] for number in loaded)
        cores = known[loaded[0]]["cores"]
        text = (
            f"Other programs used about {used:.2g} of {cores} cores while probe"
            f" {probes_text(loaded)} ran: measure again on a quiet machine."
        )
        yield fact("other_load", text, used=used, cores=cores, probes=tuple(loaded))


def rule_of_thumb(question: Question, expectation: Expectation) -> Settings | None:
    """Picks what one would launch without tuning, of what is known or expected to fit.

    The least model parallelism, then the fewest knobs off their default, then the largest
    micro-batch. ``None`` when nothing is expected to fit.
    """
    return next(filter(expectation.is_expected_to_fit, _plainest_first(question)), None)


# A study is answered again after every probe, in the same space.
@lru_cache(maxsize=8)
def _plainest_first(question: Question) -> tuple[Settings, ...]:
    def order(one: Settings) -> tuple[int, int, int, str]:
        return one.model_parallel_size, complexity(question, one), -one.micro_batch_size, str(one)

    return tuple(sorted(enumerate_space(question).legal, key=order))


# What one would launch without tuning, in short.
RULE = (
    "the least model parallelism, then the fewest knobs off their default, then the largest"
    " micro-batch, of what is expected to fit"
)


def _paid(known: Knowledge, best: Evaluation, expectation: Expectation) -> Iterator[Fact]:
    """What the tuning cost, and the rule of thumb against which it pays for itself."""
    spent, rule = cost(known.study), rule_of_thumb(known.study.question, expectation)
    if rule is None or not spent.wall_s:
        return
    timed, change, grounds = compared(known), None, None
    found = timed.get(rule)
    rule_s = found.seconds if found else best.seconds
    if rule != best.settings and found is not None:
        change = change_between(timed[best.settings], found)
    elif rule != best.settings:
        change, grounds = expectation.change(best.settings, rule), expectation.grounds
        rule_s = best.seconds * change.ratio
    probes, ended_early = found.probe_ids if found else (), found is not None and found.ended_early
    took, against = rough_duration_text(spent.wall_s), f"the rule of thumb ({RULE})"
    took += f" and {spent.device_s:,.0f} device-seconds" if spent.device_s else ""
    text = f"Tuning took {took}, and confirms {against}."
    if change is not None:
        source = grounds_text(grounds) if grounds else f"probe {probes_text(probes)}"
        source += ", ended early" * ended_early
        against += f", {describe(rule)}, takes {seconds_text(rule_s)} for a step"
        against += f" ({change_interval_text(change)}; {source})"
        paid = "and has saved no time"
        paid = earned_text(spent.wall_s, asdict(change)) if change.ratio > 1 else paid
        text = f"Tuning took {took}, {paid}: {against}."
    yield fact(
        "tuning_paid",
        text,
        wall_s=spent.wall_s,
        device_s=spent.device_s,
        step_s=best.seconds,
        rule=rule,
        rule_s=rule_s,
        change=change,
        probes=probes,
        grounds=grounds,
        ended_early=ended_early,
    )


# -- what failed, and what is left ------------------------------------------------------------


def failures(known: Knowledge) -> Iterator[Fact]:
    done = finished(known)

    def ran_out(probe: Probe) -> str:
        oom = probe.measurement.oom if probe.measurement else None
        where = f" in {oom.phase}, needing at least {size_text(oom.needed_bytes)}" if oom else ""
        return f"{describe(probe.request.settings)}{where} (probe {probes_text([probe.id])})"

    def slow(probe: Probe, seconds: float | None) -> str:
        taken = "" if seconds is None else f", about {seconds_text(seconds)} for a step"
        return f"{describe(probe.request.settings)}{taken} (probe {probes_text([probe.id])})"

    if oom := _ended_as(done, {Outcome.OOM}):
        text = f"Out of memory: {few_text(map(ran_out, oom))}."
        yield fact("ran_out_of_memory", text, probes=oom)
    if early := _ended_as(done, {Outcome.STOPPED_EARLY}):
        ended = (known.slow.get(probe.request.settings) for probe in early)
        seconds = tuple(one.step_time_s.value if one else None for one in ended)
        named = few_text(map(slow, early, seconds))
        text = f"Ended early, slower than the fastest could be: {named}."
        yield fact("ended_early", text, probes=early, seconds=seconds)
    if failed := _ended_as(done, set(Outcome) - _TOLD_APART):
        yield facts.failed(failed, known.study.limits.fidelity)


def _ended_as(probes: Iterable[Probe], outcomes: set[Outcome]) -> tuple[Probe, ...]:
    return tuple(probe for probe in probes if outcome_of(probe) in outcomes)


def not_suggested(found: Mapping[Settings, Wrong], study: Study) -> Iterator[Fact]:
    """One fact for each reason for which configurations are not suggested."""
    for why in dict.fromkeys(one.why for one in found.values()):
        ones = [settings for settings, one in found.items() if one.why == why]
        outcome = found[ones[0]].outcome
        yield fact(
            "not_suggested",
            f"{len(ones)} settings such as {describe(ones[0])} are not suggested: {why}.",
            count=len(ones),
            example=ones[0],
            why=why,
            probes=tuple(p.id for p in study.probes if outcome_of(p) is outcome),
        )


def what_is_left(known: Knowledge, expectation: Expectation | None = None) -> Iterator[Fact]:
    """Says what more probes may gain, and how much was seen."""
    done = finished(known)
    if done:
        expectation = expectation or Expectation(known)
        yield from _more_probes(known, expectation, done)
        if others := expectation.others:
            studies = earlier(known.study.question, others)
            counted = "1 study" if len(studies) == 1 else f"{len(studies)} studies"
            text = f"Other studies' probes are those of {counted} on such devices:"
            text += f" {few_text(map(str, studies))}."
            yield fact("other_studies", text, studies=studies)
    probed, legal = sum(one in known.space.places for one in known.tried), len(known.space.legal)
    yield fact(
        "coverage",
        f"{probed} of the {legal} legal settings were probed, in {count_text(len(done), 'probe')}.",
        probed=probed,
        legal=legal,
        probes_done=len(done),
    )


def _more_probes(
    known: Knowledge, expectation: Expectation, done: Sequence[Probe]
) -> Iterator[Fact]:
    search, study = expectation.search, known.study
    left = int((search.allowed & (search.belief.fits >= HOPEFUL)).sum())
    proposed = search.expect() if left else None
    if proposed is None:
        text = "Nothing is left that may fit and was not probed: more probes cannot gain."
        yield fact("nothing_left", text)
        return
    if not known.fitting:
        yield fact(
            "untried",
            f"{left} settings that may fit, {grounds_text(expectation.grounds)}, were not probed;"
            f" the next would be {describe(proposed.settings)}.",
            count=left,
            grounds=expectation.grounds,
            next=proposed.settings,
        )
        return
    count, fastest = min(MORE, left), log(known.fitting[0].seconds)
    mean, most = gain_of_more(search.belief, fastest, search.allowed, count)
    wall_s = count * median(p.measurement.wall_s for p in done if p.measurement)
    devices, is_cpu = devices_held(study), study.question.cluster.gpu.device is Device.CPU
    gain = (
        f"may gain {share_text(mean)} in speed on average, {share_text(most)} or less nine times in"
        " ten, over the fastest known"
    )
    if most < NOTHING:
        gain = f"are expected to gain nothing (less than {share_text(NOTHING)})"
    yield fact(
        "more_probes",
        f"{count} more {'probe' if count == 1 else 'probes'}, about {rough_duration_text(wall_s)}"
        f" on {count_text(devices, 'CPU rank' if is_cpu else 'GPU')}, {gain},"
        f" {grounds_text(expectation.grounds)}; the first would be {describe(proposed.settings)}.",
        count=count,
        wall_s=wall_s,
        devices=devices,
        is_cpu=is_cpu,
        mean=mean,
        most=most,
        is_spent=bool(spent(study)),
        grounds=expectation.grounds,
        next=proposed.settings,
    )
    if study.state not in OPEN and study.reason:
        yield facts.study_ended(study.reason)


# -- other probes, and other studies ----------------------------------------------------------


def also_probed(study: Study, fidelity: Fidelity) -> Iterator[Fact]:
    if count := sum(1 for p in study.at(fidelity).probes if p.measurement):
        yield fact(
            "also_probed",
            f"{count_text(count, 'probe')} of this question {fidelity} too; --fidelity {fidelity}"
            " answers from these.",
            fidelity=fidelity,
            count=count,
        )


def rehearsed_facts(study: Study) -> Iterator[Fact]:
    """What was rehearsed of a study, whose other figures are predicted."""
    known = learned(study, Fidelity.REHEARSED)
    if not (done := finished(known)):
        return
    outside = max((found.outside_bytes for found in known.findings.values()), default=0)
    probes, world_size = tuple(probe.id for probe in done), study.question.cluster.world_size
    yield fact(
        "rehearsed",
        f"{count_text(len(done), 'probe')} rehearsed settings ({probes_text(probes)}): their memory"
        " is what torch's own CUDA allocator counted over steps of rank 0 of"
        f" {world_size}, on no GPU, and up to {size_text(outside)} of context and communicators, as"
        " assumed. All times are predicted.",
        count=len(done),
        probes=probes,
        world_size=world_size,
        outside_bytes=outside,
    )
    if (script := study.question.script) is not None and study.question.workload.has_arithmetic:
        model = study.question.workload.model.name
        yield fact(
            "times_of_built_in",
            f"What was rehearsed is {script.path}; times are predicted of the built-in step of"
            f" {model}, and say no more of the script than an order.",
            path=script.path,
            model=model,
        )
    yield from failures(known)


def probes_against(study: Study, known: Forecast) -> Iterator[Fact]:
    """For a predicted answer: what was measured or emulated, and how predictions compare."""
    for fidelity in PROBED:
        counted = list(also_probed(study, fidelity))
        yield from counted
        fitting = learned(study, fidelity).fitting if counted else ()
        found = known.estimates.get(fitting[0].settings) if fitting else None
        if found is not None:
            # As it was predicted before it was corrected.
            seen, value = fitting[0], found.step_time_s.value
            predicted_s = None if value is None else value / found.factor
            time = "no time" if predicted_s is None else seconds_text(predicted_s)
            yield fact(
                "probes_against_prediction",
                f"The fastest {seen.fidelity} that fits, {describe(seen.settings)}, took"
                f" {seconds_text(seen.seconds)} and needed {size_text(seen.most_bytes)} (probe"
                f" {probes_text(seen.probe_ids)}); without it, {time} and"
                f" {size_text(found.expected_bytes)} are predicted of it.",
                found=seen,
                predicted_s=predicted_s,
                predicted_bytes=found.expected_bytes,
            )


def of_other_fidelities(
    study: Study, known: Knowledge, predictions: Forecast | None
) -> Iterator[Fact]:
    """For a measured or emulated answer: when it was, and what the other one, and dry runs, say."""
    mine = study.limits.fidelity
    if known.findings and (days := days_of(study.at(mine))):
        versions = study.question.framework.versions
        text = f"This was {mine} {ran_text(days, versions)}."
        yield fact("ran_on", text, fidelity=mine, days=days, versions=versions)
    for fidelity in (*PROBED, Fidelity.REHEARSED):
        if fidelity is not mine:
            yield from also_probed(study, fidelity)
    dry_runs = _ended_as(study.at(Fidelity.PREDICTED).probes, {Outcome.OK})
    if not dry_runs:
        return
    count = len(dry_runs)
    yield fact(
        "also_dry_run",
        f"{count_text(count, 'layout')} {'was' if count == 1 else 'were'} dry-run too; --fidelity"
        " predicted answers from these.",
        count=count,
    )
    fitting = known.fitting if predictions else ()
    found = predictions.estimates.get(fitting[0].settings) if predictions and fitting else None
    if found is not None and found.probes:
        needed = fitting[0].most_bytes
        yield fact(
            "dry_run_against_probes",
            f"Of {describe(found.settings)} a dry run predicts {size_text(found.expected_bytes)}"
            f" (probe {probes_text(found.probe_ids)}); {mine} are {size_text(needed)}.",
            predicted=found,
            needed_bytes=needed,
            fidelity=mine,
        )


def days_of(study: Study) -> tuple[str, ...]:
    return tuple(sorted({p.finished_at[:10] for p in study.probes if p.finished_at}))


def earlier(question: Question, studies: Iterable[Study]) -> tuple[facts.EarlierStudy, ...]:
    mine, found = question.workload, []
    for study in studies:
        workload, ran = study.question.workload, []
        for fidelity in PROBED:
            probes = study.at(fidelity).probes
            steps = {
                p.request.settings for p in probes if p.measurement and p.measurement.step_times_s
            }
            ran += [(len(steps), fidelity)] if steps else []
        is_other = workload.reduce_dtype is not mine.reduce_dtype
        found.append(
            facts.EarlierStudy(
                id=study.id,
                model=workload.model.name,
                cluster=study.question.cluster.name,
                global_batch_size=workload.global_batch_size,
                sequence_length=workload.sequence_length,
                optimizer="" if workload.optimizer is mine.optimizer else str(workload.optimizer),
                reduce_dtype=str(workload.reduce_dtype) if is_other else "",
                ran=tuple(ran),
                days=days_of(study),
                versions=study.question.framework.versions,
            )
        )
    return tuple(found)
