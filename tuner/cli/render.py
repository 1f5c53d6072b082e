"""A study's answer, for people: ``tuner suggest`` and ``tuner studies show``."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tuner.cli.console import TEXT_WIDTH, facts_grid, paragraphs, print_rows, stdout_console
from tuner.cli.errors import print_json, report
from tuner.cli.export import TEMPLATE
from tuner.cli.options import SuggestAsked
from tuner.cli.progress import Terminal
from tuner.cli.tables import (
    BASES,
    common_text,
    probes_table,
    rate_text,
    seconds_text,
    show_candidates,
    sizes_text,
    spare_text,
)
from tuner.cli.values import read_options
from tuner.client.answered import Answered, with_launch
from tuner.client.suggest import answer_at
from tuner.core.answer import Candidate, Suggestion
from tuner.core.evaluation import GIB
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import Probe, SamplerName, Study
from tuner.core.words import memory_range_text, rank_word, speed_range_text
from tuner.errors import UsageError
from tuner.explain.english import KNOB_HEADS, knob_rows, shown
from tuner.explain.known import answer, is_forecast
from tuner.launchfiles import FORMATS
from tuner.model.shape import shown_question
from tuner.planner import probe_as_dict
from tuner.results.points import differing, fastest_first, question_text, rows_of
from tuner.space.rules import show
from tuner.store import open_store
from tuner.text import count_text, duration_text, moment_text, size_text, time_text

# Notes on a study's probes that are shown; a hot node has one for each.
MOST_NOTES = 5
# Lines that are shown of the end of a rank's log.
LOG_LINES = 12


def run(asked: SuggestAsked) -> int:
    if asked.from_file is not None:
        from tuner.cli.from_file import run as run_file

        return run_file(asked, asked.from_file)
    for name in ("format_name", "in_place", "no_backup", "diff"):
        if given := getattr(asked, name):
            raise UsageError(name.removesuffix("_name"), given, "needs --from FILE")
    answered = answer_at(
        read_options(asked),
        Terminal(),
        asked.write or (),
        server=asked.server,
        replaces=asked.replace,
        db=asked.db,
    )
    return show_answered(answered, as_json=asked.json)


def show_answered(answered: Answered, *, as_json: bool) -> int:
    """Show an answer, and write its files; the exit code."""
    if as_json:
        beside = {"beside": answered.beside} if answered.beside else {}
        print_json({**answered.as_json, **beside})
        answered.write()
    else:
        console = stdout_console()
        show_evidence(console, answered.study, answered.suggestion)
        show_answer(console, answered.study, answered.suggestion)
        answered.write()
        for path, texts in answered.beside.items():
            for index, text in enumerate(texts):
                said, _, pasted = text.partition("\n")
                paragraphs(console, [said], "" if index else f"Beside {path}")
                if pasted:  # as it is, to be copied
                    console.print(Text(pasted), soft_wrap=True)
        show_end(console, answered.suggestion, tuple(answered.files))
    return 0 if answered.why_none is None else report(answered.why_none, as_json=False)


def show_study(study_id: str, *, as_json: bool, db: str | None) -> int:
    with open_store(db, create=False) as store:
        study = store.study(study_id)
    suggestion = with_launch(answer(study), study.question)
    if as_json:
        own = {"id": study.id, "state": str(study.state), "reason": study.reason}
        own |= {"created_at": study.created_at, "asked_at": study.asked_at}
        question: dict[str, Any] = shown_question(study.question.as_dict())
        print_json(
            {
                "study": {**own, "question": question, "terms": study.limits.as_dict()},
                "probes": [probe_as_dict(study, probe) for probe in study.probes],
                "suggestion": suggestion.as_dict(),
            }
        )
        return 0
    console = stdout_console()
    console.print(facts_grid(_study_facts(study)))
    console.print()
    show_evidence(console, study, suggestion)
    noted = [(p.id, note) for p in study.probes if p.measurement for note in p.measurement.notes]
    for number, note in noted[:MOST_NOTES]:
        console.print(Text(f"Probe #{number}: {note}."))
    if len(noted) > MOST_NOTES:
        console.print(Text(f"{len(noted) - MOST_NOTES} more such notes: --json has them."))
    if noted:
        console.print()
    show_answer(console, study, suggestion)
    for probe in study.probes:
        show_logs(console, probe)
    show_end(console, suggestion, ())
    return 0


def _study_facts(study: Study) -> Iterator[tuple[str, str]]:
    question, limits = study.question, study.limits
    yield "Question", question_text(question)
    if (script := question.script) is not None:
        variables = [f"{name}={value}" for name, value in script.environment.items()]
        yield "Script", shlex.join([*variables, str(script.launch), script.path, *script.arguments])
    versions = ", ".join(f"{name} {v}" for name, v in question.framework.versions.items())
    yield from [("Versions", versions)] if versions else []
    for knob, values in question.knobs.items():
        yield "Only", f"{knob} {', '.join(show(value) for value in values)}"
    budget = [count_text(limits.max_probes, "probe")]
    budget += [duration_text(limits.wall_s)] if limits.wall_s else []
    budget += [f"{limits.device_s:g} device-seconds"] if limits.device_s else []
    usual = limits.sampler is SamplerName.COST_MODEL
    yield (
        "Limits",
        f"at most {', '.join(budget)}; memory limit"
        f" {size_text(limits.limit_bytes(question.cluster))}; tolerance"
        f" {100 * limits.tolerance:g}%; {limits.fidelity}"
        f"{'' if usual else f'; sampler {limits.sampler}'}",
    )
    asked = f"asked {moment_text(study.created_at)}, last {moment_text(study.asked_at)} UTC"
    yield "State", f"{study.state}{f' ({study.reason})' if study.reason else ''}; {asked}"


def show_logs(console: Console, probe: Probe) -> None:
    """The end of each rank's log, when the probe failed; an out of memory explains itself."""
    measurement = probe.measurement
    if measurement is None or measurement.outcome in (Outcome.OK, Outcome.OOM):
        return
    for rank, tail in sorted(measurement.log_tails.items()):
        if lines := tail.strip().splitlines()[-LOG_LINES:]:
            console.print()
            console.print(Text(f"Probe #{probe.id}, end of rank {rank}'s log", style="bold"))
            console.print(Text("\n".join(f"  {line}" for line in lines), style="dim"))


def show_evidence(console: Console, study: Study, suggestion: Suggestion) -> None:
    """Shows what the answer was chosen from: probes, fastest first, or where these are dry runs,
    what they predict.
    """
    best, is_predicted = suggestion.best, study.limits.fidelity is Fidelity.PREDICTED
    rows = fastest_first(rows_of(study.at(study.limits.fidelity)))
    if rows and not is_predicted:
        chosen = None if best is None or is_forecast(study, suggestion) else best.settings
        knobs = differing([row.settings for row in rows])
        per, width = rank_word(study.question), console.width
        console.print(probes_table(rows, knobs, width=width, per=per, best=chosen))
        marks = ["* is the answer"] if chosen else []
        marks += ["> ran out of memory there"] if any(row.at_least for row in rows) else []
        for text in filter(None, (common_text(rows, knobs), "; ".join(marks))):
            console.print(Text(text, style="dim"))
        quiet = {Outcome.OK, Outcome.OOM, Outcome.STOPPED_EARLY}
        failed = [row for row in rows if row.outcome not in quiet and row.detail]
        paragraphs(
            console,
            [
                f"probe {', '.join(f'#{number}' for number in row.ids)} {row.outcome}: {row.detail}"
                for row in failed
            ],
        )
    if is_predicted or any(one.basis for one in (best, *suggestion.alternatives) if one):
        show_candidates(console, suggestion, rank_word(study.question))


def show_answer(console: Console, study: Study, suggestion: Suggestion) -> None:
    """The best configuration, why, which knobs were inactive, and how to launch."""
    if (best := suggestion.best) is not None:
        forecast = f"Predicted, not {study.limits.fidelity}"
        title = forecast if is_forecast(study, suggestion) else "Answer"
        console.print()
        console.print(Text(title, style="bold green"))
        per = rank_word(study.question)
        facts = [(knob, show(value)) for knob, value in best.settings.as_dict().items()]
        facts += _predicted_facts(best, per) if best.basis else _measured_facts(best, per)
        guard, said = (
            best.guard,
            "a small replica of these settings trains what one process trains",
        )
        text = said if guard.verdict == "passed" else guard.verdict.replace("_", " ")
        facts.append(("guard", f"{text} ({guard.why})" if guard.why else text))
        indented = ((f"  {name}", value) for name, value in facts)
        console.print(facts_grid(indented), width=min(console.width, TEXT_WIDTH))
    sentences = [text for text, _ in shown(suggestion.facts, suggestion.explanation)]
    paragraphs(console, sentences, "Why" if best else "No answer")
    if rows := knob_rows(suggestion.facts):
        console.print()
        print_rows(KNOB_HEADS, rows)
    paragraphs(console, [one.why for one in suggestion.dead_knobs], "Knobs without effect here")


def _measured_facts(best: Candidate, per: str) -> Iterator[tuple[str, str]]:
    seconds = f"{time_text(best.step_time_s.value)} s for an optimizer step"
    yield "speed", f"{speed_range_text(best, per)}, {seconds}"
    yield "memory", memory_range_text(best, per)
    speed_is, memory_is = best.step_time_s.provenance, best.allocated_gib.provenance
    if speed_is is memory_is:
        yield "both are", str(speed_is)
    else:
        yield "speed is", str(speed_is)
        yield "memory is", str(memory_is)


def _predicted_facts(best: Candidate, per: str) -> Iterator[tuple[str, str]]:
    assert best.basis is not None
    yield "speed", rate_text(best.tokens_per_s_per_gpu, per)
    yield "", f"{seconds_text(best.step_time_s)} for an optimizer step"
    limit = best.limit_gib * GIB
    yield "memory", f"{sizes_text(best.needed_gib)} needed per {per}, of {size_text(limit)}"
    if best.needed_gib.value != best.allocated_gib.value:
        yield "", f"{sizes_text(best.allocated_gib)} of it allocated"
    allocated, reserved = (
        (size.value or 0.0) * GIB for size in (best.allocated_gib, best.reserved_gib)
    )
    spare = spare_text(allocated, reserved, limit)
    yield "", f"{sizes_text(best.reserved_gib)} reserved{spare}"
    yield "", f"{sizes_text(best.device_gib)} on the device, as its own tool shows it"
    yield "at the peak", _sizes(best.breakdown_gib)
    yield "peaks", _sizes(best.by_phase_gib)
    memory_is = BASES[best.basis]
    if (provenance := best.step_time_s.provenance) is Provenance.TRANSFERRED:
        yield "speed is", f"{provenance}: arithmetic, corrected by what other studies measured"
        yield "memory is", f"predicted, allocated memory by {memory_is}"
    else:
        yield "both are", f"predicted: speed by arithmetic, allocated memory by {memory_is}"


def _sizes(sizes_gib: Mapping[str, float]) -> str:
    """Largest first; what is nothing is left out."""
    largest = sorted(filter(sizes_gib.__getitem__, sizes_gib), key=lambda name: -sizes_gib[name])
    return ", ".join(
        f"{name.replace('_', ' ')} {size_text(sizes_gib[name] * GIB)}" for name in largest
    )


def show_end(console: Console, suggestion: Suggestion, written: Sequence[str]) -> None:
    """Shows what was written, how to launch it, and what it all cost."""
    console.print()
    lines = [("Written", path) for path in written]
    if suggestion.launch["argv"]:
        formats = {known.file_name: name for name, known in FORMATS.items()}
        for path in suggestion.launch["files"]:
            if path not in written:
                name = formats.get(path, TEMPLATE)
                argv = ("tuner", "export", suggestion.study_id, name, "--write", path)
                lines.append(("First", f"{shlex.join(argv)}  (it is not written yet)"))
        lines.append(("Launch", shlex.join(suggestion.launch["argv"])))
    probes = count_text(sum(suggestion.probes.values()), "probe")
    spent = duration_text(suggestion.wall_s)
    if suggestion.device_s or suggestion.best is None or suggestion.best.basis is None:
        spent += f", {suggestion.device_s:,.0f} device-seconds"
    for title, text in (*lines, ("Cost", f"{probes}, {spent}"), ("Study", suggestion.study_id)):
        console.print(Text.assemble((f"{title:<9}", "bold"), text), soft_wrap=True)
