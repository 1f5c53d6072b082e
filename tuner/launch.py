"""How an answer is launched: the launcher's files, and the command that reads them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tuner.answer_words import memory_range_text, rank_word, speed_range_text
from tuner.export import FORMATS, About, export, why_not
from tuner.framework import FrameworkName
from tuner.study import Question
from tuner.suggestion import Candidate, Suggestion


def with_launch(
    suggestion: Suggestion, question: Question, wanted: Sequence[tuple[str, str]] = ()
) -> Suggestion:
    """The suggestion with the launcher's files, and the command that reads them.

    Args:
        suggestion: an answer.
        question: what was asked.
        wanted: format and path of each file; by default those of the framework that was asked
            about.
    """
    best = suggestion.best
    if best is None:
        return suggestion
    named = list(wanted)
    if not named and question.framework.name is not FrameworkName.TORCH:
        names = [name for name in FORMATS if why_not(name, question, best.settings) is None]
        named = [(name, FORMATS[name].file_name) for name in names]
    files = {path: exported(name, question, best, suggestion.study_id) for name, path in named}
    return replace(suggestion, launch=launch_of(question, files))


def launch_of(question: Question, files: dict[str, str]) -> dict[str, object]:
    """The command that reads ``files``, and these, by name."""
    return {"argv": _argv(question, tuple(files)), "files": files}


def exported(format_name: str, question: Question, best: Candidate, study_id: str) -> str:
    """The text of a launcher's file for ``best``.

    Raises:
        UsageError: there is no such format, or it cannot express the settings.
    """
    per = rank_word(question)
    about = About(
        study_id=study_id,
        date=datetime.now(UTC).date().isoformat(),
        provenance=best.provenance,
        versions=best.guard.versions,
        figures=(speed_range_text(best, per), memory_range_text(best, per)),
    )
    return export(format_name, question, best.settings, about)


def _argv(question: Question, files: Sequence[str]) -> list[str]:
    if files:
        return ["accelerate", "launch", "--config_file", files[0], "SCRIPT.py"]
    cluster = question.cluster
    if cluster.nodes > 1:
        # On every node; HOST is any one of them.
        sizes = ["--nnodes", str(cluster.nodes), "--nproc-per-node", str(cluster.gpus_per_node)]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
        return ["torchrun", *sizes, *meeting, "SCRIPT.py"]
    ranks = str(cluster.world_size)
    return ["torchrun", "--standalone", "--nproc-per-node", ranks, "SCRIPT.py"]
