"""``tuner suggest``: probe, and answer."""

import typer

from tuner.answering import answered_before, check_terms, closed_without_probes
from tuner.cli.answers import finish, standing_text
from tuner.cli.asked import Inquiry, check_covered, read_budget, read_inquiry
from tuner.cli.follow import follow
from tuner.cli.options import SuggestAsked
from tuner.cli.progress import progress_of
from tuner.cli.targets import read_targets
from tuner.cli.worker import worker_argv
from tuner.errors import UsageError
from tuner.measurement import Fidelity
from tuner.store import Store, open_store
from tuner.study import Study


def run(asked: SuggestAsked) -> int:
    """Answer the question; the exit code.

    Raises:
        UsageError: something about the question is wrong; nothing was written then.
        TunerError: it could not be answered.
    """
    if asked.server is not None:
        from tuner.cli.remote import run as run_remote

        return run_remote(asked, asked.server)
    if asked.replace:
        raise UsageError("replace", True, "needs --server: here, asking again replaces the terms")
    inquiry = read_inquiry(asked, **read_budget(asked))
    if inquiry.terms.fidelity is Fidelity.PREDICTED:
        check_covered(inquiry.question)
    targets = read_targets(asked.write or (), inquiry.question, inquiry.space)
    with open_store(asked.db) as store:
        study = _answered(store, inquiry)
    return finish(study, targets, as_json=asked.json)


def _answered(store: Store, inquiry: Inquiry) -> Study:
    """The question's study, with all probes that are worth it on these terms."""
    if stored := answered_before(store, inquiry.question, inquiry.terms):
        typer.echo(standing_text(stored, answered=True), err=True)
        typer.echo("to probe further, ask with another --max-probes or --budget", err=True)
        return stored
    study = store.ask(inquiry.question, inquiry.terms)
    if closed := closed_without_probes(store, study):
        typer.echo(standing_text(closed, answered=True), err=True)
        return closed
    typer.echo(standing_text(study, answered=False), err=True)
    study = follow(store, study.id, progress_of(study), worker_argv(study.id))
    check_terms(study, inquiry.terms)
    return study
