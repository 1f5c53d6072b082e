"""From a study to its answer: whether it needs probes, and what is shown and written at its end."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner.advance import advance_from_cache, conclude, end_of
from tuner.cli.console import stdout_console
from tuner.cli.errors import print_json, report
from tuner.cli.render import show_answer, show_end, show_evidence
from tuner.cli.targets import Target, with_launch, write_text
from tuner.cli.units import count_text, moment_text
from tuner.cli.words import question_text
from tuner.errors import NothingFitsError, ProbeError, SpeedUnknownError, TunerError
from tuner.measurement import Fidelity
from tuner.planner import (
    Stop,
    answer,
    has_predicted_answer,
    next_probe,
    what_is_needed,
    why_no_speed,
)
from tuner.planner.other_fidelity import ran_text
from tuner.store import Store
from tuner.study import ProbeState, Question, Study, StudyState, Terms
from tuner.suggestion import Candidate, Suggestion


def answered_before(store: Store, question: Question, terms: Terms) -> Study | None:
    """The study of the same question, if it was answered on the same terms; else ``None``."""
    study = store.find(question)
    if study is None or study.state is not StudyState.DONE or study.terms != terms:
        return None
    if terms.fidelity is Fidelity.PREDICTED:
        # Where torch was not there, and is now, more can be said.
        return study if end_of(study) and has_predicted_answer(study) else None
    return study if answer(study).best is not None else None


def closed_without_probes(store: Store, study: Study) -> Study | None:
    """The study at its end, if nothing more is worth probing on its terms; else ``None``."""
    if study.terms.fidelity is Fidelity.PREDICTED:
        return conclude(store, advance_from_cache(store, study))
    if study.state is not StudyState.QUEUED or not study.probes:
        return None
    plan = next_probe(study)
    if not isinstance(plan, Stop) or plan.nothing_fits:
        return None
    moved = store.move(
        study.id,
        StudyState.DONE,
        plan.reason,
        expect={StudyState.QUEUED},
        revision=study.revision,
    )
    return store.study(study.id) if moved else None


def standing_text(study: Study, *, answered: bool) -> str:
    """Which study this is, and what of it is there already."""
    fidelity = study.terms.fidelity
    done = sum(p.state is ProbeState.DONE for p in study.at(fidelity).probes)
    what = f"study {study.id}: {question_text(study.question)}"
    since = f"{count_text(done, 'probe')} since {moment_text(study.created_at)} UTC"
    if answered:
        stored = f"{what}\nanswered from what is stored, {since}: {study.reason}"
        when = "" if fidelity is Fidelity.PREDICTED else ran_text(study.at(fidelity))
        return f"{stored}\n{fidelity} {when}" if when else stored
    lines = [what, *([f"continues from {since}"] if done else [])]
    if study.state is StudyState.RUNNING:
        lines.append("another command is at it, and this one joins in: its terms hold")
    return "\n".join(lines)


def finish(study: Study, targets: Sequence[Target], *, as_json: bool) -> int:
    """Show a study's answer, and write its files; the exit code.

    Raises:
        TunerError: a file cannot be written after all.
    """
    suggestion = with_launch(answer(study), study.question, targets)
    files = suggestion.launch["files"] if targets else {}
    if as_json:
        print_json(suggestion.as_dict())
        _write(files)
    else:
        console = stdout_console()
        show_evidence(console, study, suggestion)
        show_answer(console, study, suggestion)
        _write(files)
        show_end(console, suggestion, tuple(files))
    if suggestion.best is None:
        return report(why_none(study, suggestion, shown=True), as_json=False)
    return 0


def _write(files: Mapping[str, str]) -> None:
    for path, text in files.items():
        write_text(Path(path), text)


def _in_short(study: Study) -> str:
    """What a predicted answer lacks; empty where nothing is known."""
    if study.terms.fidelity is not Fidelity.PREDICTED:
        return ""
    return what_is_needed(study, named=False) or why_no_speed(study)


def require_best(study: Study, suggestion: Suggestion) -> Candidate:
    """The best settings of an answer.

    Raises:
        NothingFitsError: there are none, for want of memory.
        SpeedUnknownError: some fit, but no speed is known.
        ProbeError: there are none, because no probe had a result.
    """
    if suggestion.best is None:
        raise why_none(study, suggestion)
    return suggestion.best


def why_none(study: Study, suggestion: Suggestion, *, shown: bool = False) -> TunerError:
    """Why a study has no best settings: nothing fits, no speed is known, or nothing ran.

    Args:
        study: the study.
        suggestion: its answer.
        shown: whether the answer is shown too, so that the error need not repeat it.
    """
    why = " ".join(suggestion.explanation[:2]) or study.reason
    if shown:
        why = _in_short(study) or " ".join(suggestion.explanation[1:2]) or why
    if study.terms.fidelity is Fidelity.PREDICTED:
        if what_is_needed(study):
            return NothingFitsError(f"nothing fits: {why}")
        if suggestion.alternatives:
            return SpeedUnknownError(f"no settings are known to be the fastest: {why}")
        return ProbeError(f"study {study.id} has no answer: {why}")
    if {"oom", "ok"} & suggestion.probes.keys():
        # A study whose budget was spent first has settings that were not tried.
        what = "nothing" if study.state is StudyState.FAILED else "nothing that was probed"
        return NothingFitsError(f"{what} fits: {why}")
    return ProbeError(f"study {study.id} has no answer: {why}")
