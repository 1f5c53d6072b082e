"""``tuner check``: does this configuration still fit?"""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tuner.cli.candidates import sizes_text
from tuner.cli.case_options import CheckAsked
from tuner.cli.console import TEXT_WIDTH, facts_grid, stdout_console
from tuner.cli.errors import print_json, report
from tuner.cli.predict import watch_of
from tuner.cli.values import Texts
from tuner.client.cases import Case, DryRuns, NotCoveredError, Policy
from tuner.client.check import Beside, Checked, case_of, check
from tuner.client.request import read_settings
from tuner.core.bounds import choice
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Provenance
from tuner.core.words import describe, range_text, rank_word, speed_text
from tuner.errors import NothingFitsError, ProbeError, TrainsWronglyError, TunerError, all_of
from tuner.launchfiles.files import read_file
from tuner.results.points import question_text
from tuner.store import open_store
from tuner.text import time_text


def run(asked: CheckAsked) -> int:
    """Answer; the exit code: 0 it fits, 3 it does not, 4 it trains something else, 1 nothing is
    known of it.

    Raises:
        UsageError: the file or an option is wrong, or something is missing.
        TunerError: the database cannot be used.
    """
    policy = choice("dry_runs", Policy, asked.dry_runs)
    found = read_file(asked.file, asked.format_name)
    try:
        case = case_of(found, _beside(asked))
    except NotCoveredError as error:
        raise ProbeError(f"nothing is known of it: {error.allowed}") from error
    checked = _checked(asked, found.format_name, case, policy)
    if asked.json:
        print_json({"file": asked.file, **checked.as_dict()})
    elif checked.fits is not None:
        _show(stdout_console(), asked.file, checked)
    why = _why_not(checked)
    return 0 if why is None else report(why, as_json=False)


def _checked(asked: CheckAsked, format_name: str, case: Case, policy: Policy) -> Checked:
    with (
        open_store(asked.db) as store,
        watch_of(as_json=asked.json) as watch,
        DryRuns(store, policy, watch) as dry_runs,
    ):
        dry_runs.prepare([case])
        return check(store, format_name, case, dry_runs.of(case))


def _beside(asked: CheckAsked) -> Beside:
    """The options as values.

    Raises:
        UsageError: some cannot be read.
    """
    texts = Texts()
    settings = texts.made(lambda: _settings(asked.settings)) or {}
    given: dict[str, Any] = texts.limits(asked)
    if texts.wrong:
        raise all_of(texts.wrong)
    return Beside(**given, settings=settings)


def _settings(text: str | None) -> dict[str, Any]:
    """Knobs by name."""
    if text is None:
        return {}
    written, given = read_settings(text)
    return {name: getattr(written, name) for name in given}


def _why_not(checked: Checked) -> TunerError | None:
    """Why the configuration should not be used; ``None`` for one that fits."""
    if checked.fits is False:
        return NothingFitsError(f"this does not fit: {checked.reason}")
    if wrong := checked.trains_wrongly:
        return TrainsWronglyError(f"this trains something else: {wrong}")
    if checked.fits is None:
        return ProbeError(f"nothing is known of these settings: {checked.reason}")
    return None


def _show(console: Console, path: str, checked: Checked) -> None:
    console.print(Text(question_text(checked.case.question), style="bold"), soft_wrap=True)
    width = min(console.width, TEXT_WIDTH)
    console.print(facts_grid(_facts(path, checked)), width=width)
    if checked.notes:
        console.print()
        console.print(Text("Notes", style="bold"))
        for note in checked.notes:
            console.print(Padding(Text(note), (0, 0, 0, 2)), width=width)


def _facts(path: str, checked: Checked) -> Iterator[tuple[str, str]]:
    per, prediction = rank_word(checked.case.question), checked.prediction
    yield "file", f"{path}, of {checked.format_name}"
    yield "settings", describe(checked.case.settings).replace(",", ", ")
    yield "fits", "yes" if checked.fits else f"no: {checked.reason}"
    limit = f", of {prediction.limit_gib:.2f} GiB" if prediction.limit_gib is not None else ""
    memory = checked.allocated_gib
    yield "memory", f"{sizes_text(memory)} allocated per {per}{limit}, {memory.provenance}"
    speed, step = checked.tokens_per_s_per_gpu, checked.step_time_s
    if step.value is None:
        yield "speed", "unknown"
    else:
        text = f"{speed_text(speed.value)} tokens/s per {per} ({range_text(speed)})"
        yield "speed", f"{text}, {speed.provenance}"
        times = f"{time_text(step.value)} s ({time_text(step.low)} to {time_text(step.high)})"
        yield "step", f"{times}, {step.provenance}"
    yield "known from", _source(checked)


def _source(checked: Checked) -> str:
    if checked.seen is None:
        basis = checked.prediction.basis
        return f"{Provenance.PREDICTED}, memory by {str(basis).replace('_', ' ')}"
    figures = checked.seen.figures
    how = "probes" if figures.fidelity is Fidelity.MEASURED else f"{figures.fidelity} probes"
    numbers = ", ".join(f"#{number}" for number in figures.probes)
    return f"{how} {numbers} of study {checked.seen.study_id}"
