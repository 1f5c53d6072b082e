"""A question answered on this machine, by a worker of its own."""

from tuner.answering.known import answered_before, check_terms, closed_without_probes
from tuner.asking.caller import Caller
from tuner.asking.follow import follow
from tuner.asking.inquiry import Inquiry
from tuner.asking.worker import worker_argv
from tuner.measurement import Fidelity
from tuner.planner.other_fidelity import ran_text
from tuner.results.words import question_text
from tuner.store import Store
from tuner.study import ProbeState, Study, StudyState
from tuner.units import count_text, moment_text


def answer_here(store: Store, inquiry: Inquiry, caller: Caller) -> Study:
    """The question's study, with all probes that are worth it on these terms.

    Raises:
        ProbeError: the worker could not go on, or the study was asked again on other terms.
        StoreError: the database fails.
        StoppedError: the caller was asked to end; the study is kept.
    """
    if stored := answered_before(store, inquiry.question, inquiry.terms):
        caller.note(standing_text(stored, answered=True))
        caller.note("to probe further, ask with another --max-probes or --budget")
        return stored
    study = store.ask(inquiry.question, inquiry.terms)
    if closed := closed_without_probes(store, study):
        caller.note(standing_text(closed, answered=True))
        return closed
    caller.note(standing_text(study, answered=False))
    argv = worker_argv(study.id, probe_deadline_s=inquiry.probe_deadline_s)
    study = follow(store, study, caller, argv)
    check_terms(study, inquiry.terms)
    return study


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
