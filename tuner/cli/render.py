"""A study's answer, for people."""

import re
import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from tuner.cli.candidates import predicted_facts, show_candidates
from tuner.cli.console import TEXT_WIDTH, facts_grid, stdout_console
from tuner.cli.errors import print_json, report
from tuner.cli.export import TEMPLATE
from tuner.cli.options import SuggestAsked
from tuner.cli.progress import Terminal
from tuner.cli.tables import common_text, probes_table
from tuner.cli.values import read_options
from tuner.client.answered import Answered
from tuner.client.suggest import AnswerPlace, answer_at
from tuner.core.answer import Candidate, Guard, Suggestion
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import Study
from tuner.core.words import memory_range_text, rank_word, speed_range_text
from tuner.launchfiles import FORMATS
from tuner.planner.known import is_forecast
from tuner.results.points import Row, differing, fastest_first, rows_of
from tuner.space.inactive import show
from tuner.text import count_text, duration_text, time_text


def show_evidence(console: Console, study: Study, suggestion: Suggestion) -> None:
    """Shows what the answer was chosen from: probes, or where these are dry runs, what they
    predict.
    """
    best, is_predicted = suggestion.best, study.terms.fidelity is Fidelity.PREDICTED
    if not is_predicted:
        show_probes(console, study, None if is_forecast(study, suggestion) else best)
    if is_predicted or any(one.basis for one in (best, *suggestion.alternatives) if one):
        show_candidates(console, suggestion, rank_word(study.question))


def show_probes(console: Console, study: Study, best: Candidate | None) -> None:
    """The table of probes, fastest first, and what the table leaves out."""
    rows = fastest_first(rows_of(study.at(study.terms.fidelity)))
    if not rows:
        return
    knobs = differing([row.settings for row in rows])
    table = probes_table(
        rows,
        knobs,
        width=console.width,
        per=rank_word(study.question),
        best=best.settings if best else None,
    )
    console.print(table)
    for text in filter(None, (common_text(rows, knobs), _legend(rows, best))):
        console.print(Text(text, style="dim"))
    _lines(console, [f"probe {_ids(row)} {row.outcome}: {row.detail}" for row in _failed(rows)])


def show_answer(console: Console, study: Study, suggestion: Suggestion) -> None:
    """The best settings, why, which knobs were dead, and how to launch."""
    best = suggestion.best
    if best is not None:
        forecast = f"Predicted, not {study.terms.fidelity}"
        title = forecast if is_forecast(study, suggestion) else "Answer"
        _show_best(console, best, rank_word(study.question), title)
    _section(console, "Why" if best else "No answer", suggestion.explanation)
    _section(console, "Knobs without effect here", [dead.why for dead in suggestion.dead_knobs])


def show_end(console: Console, suggestion: Suggestion, written: Sequence[str]) -> None:
    """Shows what was written, how to launch it, and what it all cost."""
    console.print()
    for path in written:
        console.print(Text.assemble(("Written  ", "bold"), path), soft_wrap=True)
    if suggestion.launch["argv"]:
        for get in _to_get(suggestion, written):
            console.print(Text.assemble(("First    ", "bold"), get), soft_wrap=True)
        command = shlex.join(suggestion.launch["argv"])
        console.print(Text.assemble(("Launch   ", "bold"), command), soft_wrap=True)
    probes = count_text(sum(suggestion.probes.values()), "probe")
    spent = duration_text(suggestion.wall_s)
    if suggestion.device_s or suggestion.best is None or suggestion.best.basis is None:
        spent += f", {suggestion.device_s:,.0f} device-seconds"
    console.print(Text.assemble(("Cost     ", "bold"), f"{probes}, {spent}"))
    console.print(Text.assemble(("Study    ", "bold"), suggestion.study_id))


def _to_get(suggestion: Suggestion, written: Sequence[str]) -> Iterator[str]:
    """Commands that write the files that the launch reads, and that were not written."""
    formats = {known.file_name: name for name, known in FORMATS.items()}
    for path in suggestion.launch["files"]:
        if path not in written:
            name = formats.get(path, TEMPLATE)
            argv = ("tuner", "export", suggestion.study_id, name, "--write", path)
            yield f"{shlex.join(argv)}  (it is not written yet)"


def _show_best(console: Console, best: Candidate, per: str, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold green"))
    facts = [(knob, show(value)) for knob, value in best.settings.as_dict().items()]
    facts += predicted_facts(best, per) if best.basis else _measured_facts(best, per)
    facts.append(("guard", _guard_text(best.guard)))
    indented = ((f"  {name}", value) for name, value in facts)
    console.print(facts_grid(indented), width=min(console.width, TEXT_WIDTH))


def _guard_text(guard: Guard) -> str:
    """Tells whether the settings were seen to train what one process trains, and if not, why."""
    said = {"passed": "a small twin of these settings trains what one process trains"}
    text = said.get(guard.verdict, guard.verdict.replace("_", " "))
    return f"{text} ({guard.why})" if guard.why else text


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


def _section(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print()
        console.print(Text(title, style="bold"))
        _lines(console, lines)


def _lines(console: Console, lines: Sequence[str]) -> None:
    """Paragraphs, the first line indented by two and the others by four."""
    for line in lines:
        # Settings have no spaces, and could not be wrapped.
        text = Text(re.sub(r",(?=\w+=)", ", ", line))
        wrapped = text.wrap(console, min(console.width, TEXT_WIDTH) - 4)
        shown = "\n    ".join(part.plain.rstrip() for part in wrapped)
        console.print(Text(f"  {shown}"), soft_wrap=True)


def _failed(rows: Sequence[Row]) -> list[Row]:
    quiet = {Outcome.OK, Outcome.OOM, Outcome.STOPPED_EARLY}
    return [row for row in rows if row.outcome not in quiet and row.detail]


def _legend(rows: Sequence[Row], best: Candidate | None) -> str:
    marks = ["* is the answer"] if best else []
    marks += ["> ran out of memory there"] if any(row.at_least for row in rows) else []
    return "; ".join(marks)


def _ids(row: Row) -> str:
    return ", ".join(f"#{number}" for number in row.ids)


def show_answered(answered: Answered, *, as_json: bool) -> int:
    """Show an answer, and write its files; the exit code.

    Raises:
        TunerError: a file cannot be written after all.
    """
    if as_json:
        print_json(answered.as_json)
        answered.write()
    else:
        console = stdout_console()
        show_evidence(console, answered.study, answered.suggestion)
        show_answer(console, answered.study, answered.suggestion)
        answered.write()
        show_end(console, answered.suggestion, tuple(answered.files))
    return 0 if answered.why_none is None else report(answered.why_none, as_json=False)


def run(asked: SuggestAsked) -> int:
    """Answer the question; the exit code.

    Raises:
        UsageError: something about the question is wrong; nothing was written then.
        TunerError: it could not be answered.
    """
    place = AnswerPlace(server=asked.server, replaces=asked.replace, db=asked.db)
    answered = answer_at(place, read_options(asked), Terminal(), asked.write or ())
    return show_answered(answered, as_json=asked.json)
