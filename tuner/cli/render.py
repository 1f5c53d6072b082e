"""A study's answer, for people: ``tuner suggest`` and ``tuner studies show``."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tuner.cli.console import (
    TEXT_WIDTH,
    paragraphs,
    print_facts,
    print_rows,
    stdout_console,
    wrappable,
)
from tuner.cli.errors import print_json, report
from tuner.cli.export import TEMPLATE
from tuner.cli.options import ShowAsked, SuggestAsked
from tuner.cli.progress import terminal
from tuner.cli.serve import page_of
from tuner.cli.tables import probes_table, show_candidates, spare_text
from tuner.cli.values import read_options
from tuner.client.answered import Answered, with_launch
from tuner.client.place import with_reason
from tuner.client.suggest import answer_at
from tuner.core.answer import Candidate, Suggestion
from tuner.core.evaluation import GIB
from tuner.core.measurement import PROBED, Outcome
from tuner.core.study import OPEN, Probe, SamplerName, Study
from tuner.core.words import (
    memory_range_text,
    probe_name,
    probe_word,
    probes_text,
    rank_word,
    sizes_text,
)
from tuner.errors import NothingFitsError, TunerError, UsageError
from tuner.explain.brief import IN_BRIEF, brief, is_forecast, scale
from tuner.explain.english import KNOB_HEADS, knob_rows, shown
from tuner.explain.known import answer, why_none
from tuner.explain.ways_out import WayOut, ways_out
from tuner.launchfiles import FORMATS
from tuner.model.shape import shown_question
from tuner.planner import probe_as_dict
from tuner.planner.knowledge import learned
from tuner.results.points import differing, fastest_first, outcome_text, question_text, rows_of
from tuner.results.summary import summary_of
from tuner.store import open_store
from tuner.text import count_text, duration_text, moment_text, read_tokens, show, size_text

# Notes on a study's probes that are shown; a hot node has one for each.
MOST_NOTES = 5
# The answer in brief: its lines, those of its parts, and how far its titles reach.
MOST_LINES, MOST_WHY, MOST_SURE, INDENT = 25, 3, 5, 9
# Of the table of changes and around it: blank lines, head and rule.
TABLE_LINES = 4
# Lines that are shown of the end of a rank's log.
LOG_LINES = 12


def run(asked: SuggestAsked) -> int:
    question = None
    if asked.from_file is not None:
        from tuner.cli.from_file import read_file, show_file  # with all that reads files

        question = read_file(asked, asked.from_file)
        request = question.request
    else:
        for name in ("format_name", "settings", "in_place", "no_backup", "diff"):
            if given := getattr(asked, name):
                raise UsageError(name.removesuffix("_name"), given, "needs --from FILE")
        request = read_options(asked)
    if asked.tokens is not None:
        read_tokens("tokens", asked.tokens)
    answered = answer_at(
        request, terminal(quiet=asked.quiet), asked.write or (), server=asked.server, db=asked.db
    )
    if question is not None:
        return show_file(asked, question, answered)
    return show_asked(asked, answered)


def show_asked(
    asked: SuggestAsked,
    answered: Answered,
    more: Mapping[str, Any] | None = None,
    then: str = "",
    keep: str = "",
) -> int:
    """Show an answer as the options say, with ``more`` fields in JSON, and write its files; the
    exit code. ``then`` is what to do next, in the place of an export and its launch; ``keep`` says
    that the user's own file is the answer, beside which this is what was found."""
    tokens = None if asked.tokens is None else read_tokens("tokens", asked.tokens)
    study, suggestion, why = answered.study, answered.suggestion, answered.why_none
    nothing_fits = isinstance(why, NothingFitsError)
    of_file = asked.from_file is not None
    found = ways_out(study.question, study.limits, of_file=of_file) if nothing_fits else ()
    if asked.json:
        shown = {**answered.as_json, **(more or {})}
        shown |= {"beside": answered.beside} if answered.beside else {}
        if suggestion.best is not None:
            shown["scale"] = scale(study.question, suggestion.best, tokens).as_dict()
        if found:
            shown["ways_out"] = [one.as_dict() for one in found]
        print_json(shown)
        answered.write()
        return 0 if why is None else report(why, as_json=False)
    console = stdout_console()
    if not asked.quiet:
        show_table(console, study, suggestion, "the best found" if keep else "the answer")
    answered.write()
    for path, texts in answered.beside.items() if asked.why else ():
        for index, text in enumerate(texts):
            said, _, pasted = text.partition("\n")
            paragraphs(console, [said], "" if index else f"Beside {path}")
            if pasted:  # as it is, to be copied
                console.print(Text(pasted), soft_wrap=True)
    if asked.why or (suggestion.best is None and not nothing_fits):
        show_all(console, suggestion, rank_word(study.question))
    if why is not None and nothing_fits:  # an answer too: what would fit
        show_ways_out(console, why, found, of_file=of_file)
    if not asked.quiet:
        console.print()
    written, page = tuple(answered.files), page_of(study.id, asked.server, asked.db)
    more = {"written": written, "page": page, "then": then, "keep": keep, "whole": asked.why}
    more["by_script"] = tuple(_by_script(answered))
    show_answer(console, study, suggestion, tokens, **more)
    if why is None or nothing_fits:
        return 0 if why is None else why.exit_code
    return report(why, as_json=False)


def _by_script(answered: Answered) -> Iterator[str]:
    """What must be done beside the files that are written: a sentence, or how several are shown."""
    names = {str(target.path): target.format_name for target in answered.targets}
    for path, texts in answered.beside.items():
        argv = ("tuner", "export", answered.suggestion.study_id, names[path])
        several = f"in SCRIPT.py do what {path} cannot say: {shlex.join(argv)} shows how"
        yield texts[0] if len(texts) == 1 else several


def show_study(asked: ShowAsked) -> int:
    with open_store(asked.db, create=False) as store:
        study = with_reason(store, store.study(asked.study))
    suggestion = with_launch(answer(study), study.question)
    if asked.json:
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
    state = summary_of(study, suggestion).shown_state
    print_facts(console, _study_facts(study, state))
    console.print()
    show_table(console, study, suggestion)
    noted = [(p, note) for p in study.probes if p.measurement for note in p.measurement.notes]
    for probe, note in noted[:MOST_NOTES]:
        console.print(Text(f"{_named(probe)}: {note}."))
    if len(noted) > MOST_NOTES:
        console.print(Text(f"{len(noted) - MOST_NOTES} more such notes: --json has them."))
    for probe in study.probes:
        show_logs(console, probe)
    none = None
    if suggestion.best is None and study.state not in OPEN:
        none = why_none(study, suggestion, shown=True)
    if asked.why or (suggestion.best is None and not isinstance(none, NothingFitsError)):
        show_all(console, suggestion, rank_word(study.question))
    if isinstance(none, NothingFitsError):
        show_ways_out(console, none, ways_out(study.question, study.limits))
    console.print()
    page = page_of(study.id, None, asked.db)
    show_answer(console, study, suggestion, page=page, whole=asked.why)
    return 0


def _study_facts(study: Study, state: str) -> Iterator[tuple[str, str]]:
    question, limits = study.question, study.limits
    yield "Question", question_text(question)
    if (script := question.script) is not None:
        variables = [f"{name}={value}" for name, value in script.environment.items()]
        yield "Script", shlex.join([*variables, str(script.launch), script.path, *script.arguments])
    versions = ", ".join(f"{name} {v}" for name, v in question.framework.versions.items())
    yield from [("Versions", versions)] if versions else []
    for knob, values in question.knobs.items():
        yield "Only", f"{knob} {', '.join(show(value) for value in values)}"
    budget = [count_text(limits.max_probes, probe_word(limits.fidelity))]
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
    yield "State", f"{state}{f' ({study.reason})' if study.reason else ''}; {asked}"


def _named(probe: Probe) -> str:
    return probe_name(probe).capitalize()


def show_logs(console: Console, probe: Probe) -> None:
    """The end of each rank's log, when the probe failed; an out of memory explains itself."""
    measurement = probe.measurement
    if measurement is None or measurement.outcome in (Outcome.OK, Outcome.OOM):
        return
    for rank, tail in sorted(measurement.log_tails.items()):
        if lines := tail.strip().splitlines()[-LOG_LINES:]:
            console.print()
            console.print(Text(f"{_named(probe)}, end of rank {rank}'s log", style="bold"))
            console.print(Text("\n".join(f"  {line}" for line in lines), style="dim"))


def show_table(
    console: Console, study: Study, suggestion: Suggestion, best_is: str = "the answer"
) -> None:
    """Shows what the answer was chosen from: it first, then probes by speed, or where these are dry
    runs, what they predict. ``best_is`` says what its mark is of.
    """
    best, is_predicted = suggestion.best, study.limits.fidelity not in PROBED
    mine = study.at(study.limits.fidelity)
    rows = fastest_first(rows_of(mine, None if is_predicted else learned(study)))
    if rows and not is_predicted:
        chosen = None if best is None or is_forecast(study, suggestion) else best.settings
        rows = tuple(sorted(rows, key=lambda row: row.settings != chosen))
        knobs = differing([row.settings for row in rows])
        per, width = rank_word(study.question), console.width
        console.print(probes_table(rows, knobs, width=width, per=per, best=chosen))
        marks = [f"* is {best_is}; the others by speed"] if chosen else []
        marks += ["> ran out of memory there"] if any(row.at_least for row in rows) else []
        console.print(Text("; ".join(marks), style="dim"))
        quiet = {Outcome.OK, Outcome.OOM, Outcome.STOPPED_EARLY}
        failed = [row for row in rows if row.outcome not in quiet and row.why]
        paragraphs(
            console,
            [
                f"probe {probes_text(row.probe_ids)} {outcome_text(row)}: {row.why}"
                for row in failed
            ],
        )
    if is_predicted or any(one.basis for one in (best, *suggestion.alternatives) if one):
        show_candidates(console, suggestion, rank_word(study.question), best_is)


def show_all(console: Console, suggestion: Suggestion, per: str) -> None:
    """All that is known of an answer: its memory in full, each fact, the knobs that do not act."""
    if (best := suggestion.best) is not None:
        console.print()
        console.print(Text("Memory", style="bold"))
        print_facts(console, _memory_facts(best, per), indent=2)
    sentences = shown(suggestion.facts, suggestion.explanation, but=IN_BRIEF if best else ())
    paragraphs(console, [text for text, _ in sentences], "Evidence" if best else "No answer")
    rows = knob_rows(suggestion.facts)
    if best is None and rows:  # else they are in the answer
        console.print()
        print_rows(KNOB_HEADS, rows)
    paragraphs(console, [one.why for one in suggestion.dead_knobs], "Knobs without effect here")


def _memory_facts(best: Candidate, per: str) -> Iterator[tuple[str, str]]:
    yield "must be free", memory_range_text(best, per)
    yield "allocated", sizes_text(best.allocated_gib)
    if best.basis is not None:
        allocated, reserved = (
            (size.value or 0.0) * GIB for size in (best.allocated_gib, best.reserved_gib)
        )
        spare = spare_text(allocated, reserved, best.limit_gib * GIB)
        yield "reserved", f"{sizes_text(best.reserved_gib)}{spare}"
    if best.device_gib.value:
        shows = size_text(best.device_gib.value * GIB)
        yield "nvidia-smi", f"may show {shows}: what is reserved and free counts there too"
    if best.breakdown_gib:  # of a script's rehearsal none is known
        yield "at the peak", _sizes(best.breakdown_gib)
    if best.by_phase:
        yield "peaks", _sizes(best.by_phase_gib)


def _sizes(sizes_gib: Mapping[str, float]) -> str:
    """Largest first; what is nothing is left out."""
    largest = sorted(filter(sizes_gib.__getitem__, sizes_gib), key=lambda name: -sizes_gib[name])
    return ", ".join(
        f"{name.replace('_', ' ')} {size_text(sizes_gib[name] * GIB)}" for name in largest
    )


def show_answer(
    console: Console,
    study: Study,
    suggestion: Suggestion,
    tokens: float | None = None,
    *,
    written: Sequence[str] = (),
    by_script: Sequence[str] = (),
    page: str = "",
    then: str = "",
    keep: str = "",
    whole: bool = False,
) -> None:
    """The answer in brief, at the end, where a terminal shows it: :data:`MOST_LINES` at most, or a
    ``whole`` one with all single changes."""
    width = min(console.width, TEXT_WIDTH) - INDENT

    def block(title: str, texts: Iterable[str], most: int = MOST_LINES) -> list[Text]:
        lines: list[Text] = []
        for text in texts:
            further = [part.plain.rstrip() for part in Text(text).wrap(console, width)]
            if len(lines) + len(further) <= most:
                lines += map(Text, further)
        heads = [title, *[""] * len(lines)]
        return [
            Text.assemble((f"{head:<{INDENT}}", "bold"), line)
            for head, line in zip(heads, lines, strict=False)
        ]

    end = [
        line
        for title, text in _ends(study, suggestion, written, by_script, page, then)
        for line in block(title, [text])
    ]
    if suggestion.best is None:
        for line in end:
            console.print(line, soft_wrap=True)
        return
    told = brief(study, suggestion, tokens, whole=whole)
    answer, why = (
        block("Found" if keep else "Answer", told.answer),
        block("Why", told.why, MOST_WHY),
    )
    if keep:
        answer = [*block("Answer", [keep]), *answer]
    sure = block("Sure?", told.sure, MOST_SURE)
    room = MOST_LINES - sum(map(len, (answer, why, sure, end))) - TABLE_LINES
    if told.title != "Answer":
        console.print(Text(told.title, style="bold green"))
        room -= 1
    for line in (*answer, Text(), *why):
        console.print(line, soft_wrap=True)
    if rows := told.changes[: None if whole else max(0, room)]:
        print_rows(KNOB_HEADS, rows, indent=2)
    for line in (Text(), *sure, *end):
        console.print(line, soft_wrap=True)


def _ends(
    study: Study,
    suggestion: Suggestion,
    written: Sequence[str],
    by_script: Sequence[str],
    page: str,
    then: str,
) -> Iterator[tuple[str, str]]:
    """What was written, how to launch it, where the rest is, what it all cost, and why no more."""
    yield from (("Written", path) for path in written)
    yield from (("First", text) for text in by_script)
    if then:
        yield "Next", then
    elif suggestion.launch["argv"]:
        formats = {known.file_name: name for name, known in FORMATS.items()}
        for path in suggestion.launch["files"]:
            if path not in written:
                name = formats.get(path, TEMPLATE)
                argv = ("tuner", "export", suggestion.study_id, name, "--write", path)
                says = "  (it says what SCRIPT.py must do)" if name == "trainer" else ""
                yield "First", f"{shlex.join(argv)}{says}"
        if not suggestion.launch["files"] and "SCRIPT.py" in suggestion.launch["argv"]:
            # torchrun takes no file: the user's script imports the settings
            name = FORMATS["torch"].file_name
            argv = ("tuner", "export", suggestion.study_id, "torch", "--write", name)
            yield "First", f"{shlex.join(argv)}  (import it)"
        if sets := suggestion.launch["script_sets"]:
            title = "First" if written else "Then"  # after the export that comes first
            yield title, f"in SCRIPT.py set {', '.join(sets)}: the file's comments show how"
        yield "Next", shlex.join(suggestion.launch["argv"])
    if page:
        yield "Page", page
    yield "More", f"tuner studies show {suggestion.study_id} --why"
    probes = count_text(sum(suggestion.probes.values()), probe_word(study.limits.fidelity))
    spent = duration_text(suggestion.wall_s)
    if suggestion.device_s:
        spent += f", {suggestion.device_s:,.0f} device-seconds"
    yield "Cost", f"{probes}, {spent}"
    if study.state not in OPEN and study.reason:
        yield "Ended", wrappable(study.reason)


def show_ways_out(
    console: Console, why: TunerError, found: Sequence[WayOut], *, of_file: bool = False
) -> None:
    """Says that nothing fits, and what would; of a file's own question that what it says is changed
    in it."""
    console.print()
    said = wrappable(str(why).removesuffix("."))
    console.print(Text(f"{said[0].upper()}{said[1:]}."))
    if found:
        console.print()
        rows = [
            (
                one.option,
                one.needed_text,
                "yes" if one.fits else "no",
                size_text(one.host_bytes) if one.host_bytes else "",
            )
            for one in found
        ]
        heads = ("change", "needed", f"fits {size_text(found[0].limit_bytes)}", "host of a node")
        shown = 4 if any(one.host_bytes for one in found) else 3
        cells = [row[:shown] for row in rows]
        print_rows(heads[:shown], cells, "needed,host of a node", indent=2)
        there = " What the file says is changed there." if of_file else ""
        notes = [f"Predicted by arithmetic, at micro-batch 1.{there}"]
        trains = {option: said for one in found for option, said in one.trains.items()}
        others = ", ".join(f"{option} ({said})" for option, said in trains.items())
        notes += [f"These train something else: {others}."] if others else []
        paragraphs(console, notes, further=2)
