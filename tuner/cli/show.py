"""``tuner studies show``: one study in full."""

import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from tuner.cli.console import facts_grid, stdout_console
from tuner.cli.details import show_logs, show_notes
from tuner.cli.errors import print_json
from tuner.cli.render import show_answer, show_end, show_evidence
from tuner.client.launch import with_launch
from tuner.core.answer import Suggestion
from tuner.core.study import SamplerName, Study
from tuner.explain.known import answer
from tuner.model.shape import shown_question
from tuner.planner import probe_as_dict
from tuner.results.points import question_text
from tuner.space.inactive import show
from tuner.store import open_store
from tuner.text import count_text, duration_text, moment_text, size_text


def run(study_id: str, *, as_json: bool, db: str | None) -> int:
    """Show a study; the exit code.

    Raises:
        UsageError: there is no such study or database.
        StoreError: the database cannot be read.
    """
    with open_store(db, create=False) as store:
        study = store.study(study_id)
    suggestion = with_launch(answer(study), study.question)
    if as_json:
        print_json(_as_dict(study, suggestion))
    else:
        _show(stdout_console(), study, suggestion)
    return 0


def _as_dict(study: Study, suggestion: Suggestion) -> dict[str, Any]:
    return {
        "study": {
            "id": study.id,
            "state": str(study.state),
            "reason": study.reason,
            "created_at": study.created_at,
            "asked_at": study.asked_at,
            "question": shown_question(study.question.as_dict()),
            "terms": study.terms.as_dict(),
        },
        "probes": [probe_as_dict(study, probe) for probe in study.probes],
        "suggestion": suggestion.as_dict(),
    }


def _show(console: Console, study: Study, suggestion: Suggestion) -> None:
    console.print(facts_grid(_facts(study)))
    console.print()
    show_evidence(console, study, suggestion)
    show_notes(console, study)
    show_answer(console, study, suggestion)
    for probe in study.probes:
        show_logs(console, probe)
    show_end(console, suggestion, ())


def _facts(study: Study) -> Iterator[tuple[str, str]]:
    question, terms = study.question, study.terms
    yield "Question", question_text(question)
    if (script := question.script) is not None:
        variables = [f"{name}={value}" for name, value in script.environment.items()]
        yield "Script", shlex.join([*variables, str(script.launch), script.path, *script.arguments])
    versions = ", ".join(f"{name} {v}" for name, v in question.framework.versions.items())
    yield from [("Versions", versions)] if versions else []
    for knob, values in question.knobs.items():
        yield "Only", f"{knob} {', '.join(show(value) for value in values)}"
    limit = size_text(terms.limit_bytes(question.cluster))
    budget = [count_text(terms.max_probes, "probe")]
    budget += [duration_text(terms.wall_s)] if terms.wall_s else []
    budget += [f"{terms.device_s:g} device-seconds"] if terms.device_s else []
    usual = terms.sampler is SamplerName.COST_MODEL
    other_sampler = "" if usual else f"; sampler {terms.sampler}"
    yield (
        "Terms",
        f"at most {', '.join(budget)}; memory limit {limit}; tolerance {100 * terms.tolerance:g}%;"
        f" {terms.fidelity}{other_sampler}",
    )
    asked = f"asked {moment_text(study.created_at)}, last {moment_text(study.asked_at)} UTC"
    yield "State", f"{study.state}{f' ({study.reason})' if study.reason else ''}; {asked}"
