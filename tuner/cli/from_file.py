"""``tuner suggest --from FILE``: what a file does today, what the best does, and the change."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from tuner.catalog.gpus import MIB
from tuner.cli.console import paragraphs, print_facts, stdout_console, watch_of
from tuner.cli.errors import report
from tuner.cli.options import SuggestAsked
from tuner.cli.render import show_asked
from tuner.cli.values import Texts, request_arguments
from tuner.client.answered import Answered
from tuner.client.cases import Policy
from tuner.client.cases.reading import said_knobs
from tuner.client.check import Checked
from tuner.client.from_file import (
    AsFast,
    FileQuestion,
    Written,
    as_fast,
    beside_file,
    changed_files,
    least_change,
    left_out,
    patched,
    put_back,
    read_question,
    today,
)
from tuner.core.answer import Candidate, Suggestion
from tuner.core.evaluation import GIB
from tuner.core.quantity import Provenance
from tuner.core.words import describe, rank_word, rate_text, share_text, sizes_text
from tuner.errors import TunerError, UsageError, all_of
from tuner.explain.brief import LEAST_LEAD, real_text
from tuner.launchfiles import FORMATS
from tuner.store import open_store
from tuner.text import show, show_all, size_text

# What starts a file, by its format; others are read by a script of the user's own.
LAUNCHERS = {
    "axolotl": "axolotl train",
    "llama-factory": "llamafactory-cli train",
}
# What is said of a file that is kept, and how more can be asked for.
KEEP = {
    AsFast.WITHIN: (
        "your file is as fast as anything found (within {}): keep it",
        "a smaller --tolerance asks for more",
    ),
    AsFast.UNTOLD: (
        "nothing found can be told apart from your file by what was measured: keep it",
        "a larger --max-probes measures more",
    ),
}


NO_FASTER = "nothing found is faster"
# How many times as wide one interval must be for it to be said why.
UNLIKE = 1.3


def read_file(asked: SuggestAsked, path: str) -> FileQuestion:
    """Read the question out of a file and what is given beside it."""
    texts = Texts()
    given = request_arguments(texts, asked)
    given["settings"] = texts.made(lambda: said_knobs(asked.settings or ""))
    if texts.wrong:
        raise all_of(texts.wrong)
    return read_question(path, asked.format_name, given, asked.db)


def show_file(asked: SuggestAsked, question: FileQuestion, answered: Answered) -> int:
    """Show the answer beside the file; the exit code is that of ``tuner suggest``."""
    path = str(asked.from_file)
    with (
        open_store(None if asked.server else asked.db) as store,
        watch_of(as_json=asked.json) as watch,
    ):
        now = today(question, answered.study.question, store, watch, Policy.AUTO)
    best = answered.suggestion.best if answered.why_none is None else None
    tolerance = answered.study.limits.tolerance
    text: str = question.opened.text
    wanted: dict[str, Any] = {}
    refused: UsageError | None = None
    if best is not None:
        best = least_change(question, answered.suggestion, tolerance)
        try:
            text, wanted = patched(question, answered.study.question, best.settings)
        except UsageError as error:  # the answer is one nevertheless
            refused = error
    keep, more = "", ""
    if best is not None:
        changes = wanted or refused or beside_file(question, answered.study.question, best.settings)
        keep, more = _kept(now, best, tolerance) if changes else ("", "")
    files, copies = changed_files(question, text, wanted), []
    writes = asked.in_place and bool(wanted) and not keep
    failed: TunerError | None = refused if (asked.in_place or asked.diff) and not keep else None
    if writes:
        try:
            copies = put_back(files, backup=not asked.no_backup)
        except TunerError as error:  # said below the answer
            failed = error
    patch = "".join(one.diff for one in files)
    if asked.json:
        own = _as_json(question, now, best, wanted, patch, written=writes and failed is None)
        own["left_out"] = left_out(answered.study.question, question.restricted)
        code = show_asked(asked, answered, {"from": {**own, "keep": bool(keep)}})
        return report(failed, as_json=False) if failed else code
    then = "" if refused else _start(question, answered.suggestion, path)
    if keep:
        then = then or f"nothing: keep {path}"
    elif wanted and not asked.in_place:
        which = "it" if best is answered.suggestion.best else "what is best for the file, below,"
        then = f"the same command with --in-place, which writes {which} into {path}"
    code = show_asked(asked, answered, then=then, keep=keep)
    console = stdout_console()
    console.print()
    console.print(Text(f"Your file: {path}, of {question.opened.found.format_name}", style="bold"))
    print_facts(
        console,
        [
            *_facts(question, answered, now, best, wanted, refused, keep),
            *(_left_out(question, answered) if asked.why else ()),
        ],
    )
    paragraphs(console, question.asked.notes, "", further=2)
    paragraphs(console, [str(one) for one in question.asked.uncounted], "Not counted", further=2)
    if asked.diff and patch and more != NO_FASTER:
        console.print()
        sys.stdout.flush()
        typer.echo(patch, nl=False)
    if failed:
        sys.stdout.flush()
        return report(failed, as_json=False)
    if done := _done(asked, wanted, keep and more, files, copies):
        console.print(Text(f"\n{done}"), soft_wrap=True)
    return code


def _start(question: FileQuestion, suggestion: Suggestion, path: str) -> str:
    """The command that starts the file itself; empty where none is known, or it would not fit."""
    format_name, launch = question.opened.found.format_name, suggestion.launch
    if suggestion.best is None:
        return ""
    if (launcher := LAUNCHERS.get(format_name)) is not None:
        return f"{launcher} {shlex.quote(path)}"
    own = FORMATS[format_name].file_name if format_name in FORMATS else None
    if own not in launch["files"]:
        return ""
    return shlex.join(path if word == own else word for word in launch["argv"])


def _done(
    asked: SuggestAsked,
    wanted: Mapping[str, Any],
    more: str,
    files: Iterable[Written],
    copies: Iterable[Path],
) -> str:
    """Says what was written, or what would be, or how to ask for ``more`` than the file that is
    kept; empty where that is shown."""
    if more:
        return f"nothing is written: {more}" if asked.in_place else ""
    if asked.in_place and wanted:
        kept = f"; as it was: {', '.join(map(str, copies))}" if copies else ""
        return f"wrote {' and '.join(str(one.path) for one in files)}{kept}"
    return "--diff shows the change, --in-place makes it." if wanted and not asked.diff else ""


def _facts(
    question: FileQuestion,
    answered: Answered,
    now: Checked | UsageError,
    best: Candidate | None,
    wanted: Mapping[str, Any],
    refused: UsageError | None,
    keep: str,
) -> Iterator[tuple[str, str]]:
    asked = answered.study.question
    per, work = rank_word(asked), asked.workload
    if question.asked.made:
        yield "batch", f"{work.global_batch_size} sequences = {question.asked.made}"
    if isinstance(now, UsageError):
        yield "today", f"nothing is known of its settings: {now}"
    else:
        yield "today", describe(now.case.settings).replace(",", ", ")
        fits = "fits" if now.fits else f"does not fit: {now.reason}"
        if now.fits and not now.fits_surely:
            limit = size_text((now.prediction.limit_gib or 0.0) * GIB)
            fits = f"may run out of memory: the limit is {limit}"
        yield "", f"{fits}; {_figures(now, per)}" if now.fits else fits
    if best is None:
        return
    script = beside_file(question, asked, best.settings)
    if not wanted and refused is None and not keep:
        of_all = ", of what it says" if script else ""
        is_answer = best is answered.suggestion.best
        fit = "fit" if best.fits_surely else "may fit"
        as_good = (
            f"the fastest settings that {fit}" if is_answer else "settings tied with the answer"
        )
        yield "best", f"the file has {as_good} already{of_all}"
        if script:
            yield "beside it", f"the answer needs {script}, which no field of it says"
            yield "", _figures(best, per)
        if script and (said := _difference(now, best)):
            yield "difference", said
        return
    said = describe(best.settings)
    if isinstance(now, Checked):  # with knobs at their default that the file has otherwise
        theirs = now.case.settings.all_values().items()
        mine, named = best.settings.all_values(), {one.split("=")[0] for one in said.split(",")}
        turned = (name for name, value in theirs if value != mine[name] and name not in named)
        said = ",".join([said, *(f"{name}={show(mine[name])}" for name in turned)])
    written = "best" if best is answered.suggestion.best else "for the file"
    yield "alternative" if keep else written, said.replace(",", ", ")
    yield "", _figures(best, per)
    if best is not answered.suggestion.best:
        yield "", "tied with the answer, and changes less of the file"
    if said := _difference(now, best):
        yield "difference", said
        yield from (("", one) for one in _predicted_lead(now, best))
    fields = ", ".join(wanted) or "no field of it"
    yield "changes", fields if refused is None else f"none: {refused.allowed}"
    if script:
        yield "beside it", f"the answer needs {script}, which no field of it says"


def _left_out(question: FileQuestion, answered: Answered) -> Iterator[tuple[str, str]]:
    if found := left_out(answered.study.question, question.restricted):
        values = "; ".join(f"{name}={show_all(values)}" for name, values in found.items())
        yield "left out", f"{values}: no field of the file can be made to say it"


def _kept(now: Checked | UsageError, best: Candidate, tolerance: float) -> tuple[str, str]:
    """Says that the file is kept, and how more can be asked for; empty where the best is better."""
    if (why := as_fast(now, best, tolerance)) is None or isinstance(now, UsageError):
        return "", ""
    said, more = KEEP[why]
    own, other = now.tokens_per_s_per_gpu.value, best.tokens_per_s_per_gpu.value
    return said.format(share_text(tolerance)), NO_FASTER if own and other and other <= own else more


def _figures(one: Checked | Candidate, per: str) -> str:
    speed = one.tokens_per_s_per_gpu
    rate = "speed unknown" if speed.value is None else f"{rate_text(speed, per)}"
    return f"{rate}, {sizes_text(one.needed_gib)} needed, {one.provenance}"


def _difference(now: Checked | UsageError, best: Candidate | None) -> str:
    """In plain figures: speed and memory of the best against the file's; empty of unknown ones."""
    if isinstance(now, UsageError) or best is None or not now.fits:
        return ""
    parts = []
    was, is_now = now.tokens_per_s_per_gpu.value, best.tokens_per_s_per_gpu.value
    if was and is_now:
        parts.append(f"{100 * (is_now / was - 1):+.1f}% tokens/s")
    held, holds = now.needed_gib.value, best.needed_gib.value
    if held is not None and holds is not None:
        more = (holds - held) * GIB
        said = f"{'+' if more > 0 else '-'}{size_text(abs(more))}"
        parts.append("the same memory" if abs(more) < MIB else said)
    return ", ".join(parts)


def _predicted_lead(now: Checked | UsageError, best: Candidate) -> Iterator[str]:
    """How far two predicted speeds tell which is faster, and why their intervals may be unlike."""
    if isinstance(now, UsageError):
        return
    speeds = now.tokens_per_s_per_gpu, best.tokens_per_s_per_gpu
    own, other = (one.value for one in speeds)
    if not own or not other or {one.provenance for one in speeds} != {Provenance.PREDICTED}:
        return
    if other / own - 1 >= LEAST_LEAD:
        yield f"a predicted lead like this {real_text(other / own - 1)}"
    widths = [(one.high or 0.0) / one.low for one in speeds if one.low]
    if len(widths) == 2 and max(widths) >= UNLIKE * min(widths):
        yield "one interval is wider: no published run had its knobs; most errors are common"


def _as_json(
    question: FileQuestion,
    now: Checked | UsageError,
    best: Candidate | None,
    wanted: Mapping[str, Any],
    patch: str,
    *,
    written: bool,
) -> dict[str, Any]:
    return {
        "file": str(question.path),
        "format": question.opened.found.format_name,
        "batch": question.asked.made,
        "notes": [*question.asked.notes],
        "uncounted": [
            {"key": one.key, "value": str(one.value), "effect": one.effect}
            for one in question.asked.uncounted
        ],
        "today": now.as_dict() if isinstance(now, Checked) else {"reason": str(now)},
        "difference": _difference(now, best),
        "changes": dict(wanted),
        "diff": patch,
        "written": written,
    }
