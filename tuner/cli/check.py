"""``tuner check``: does this configuration still fit?"""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from tuner.cli.case_options import CheckAsked
from tuner.cli.console import TEXT_WIDTH, facts_grid, paragraphs, stdout_console, watch_of
from tuner.cli.errors import print_json, report
from tuner.cli.predict import why_not
from tuner.cli.tables import rate_text, seconds_text, sizes_text
from tuner.client.cases import DryRuns, NotCoveredError, Policy
from tuner.client.cases.reading import read_settings
from tuner.client.check import Beside, Checked, case_of, check
from tuner.core.framework import parse_stated_versions
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Provenance
from tuner.core.words import describe, rank_word
from tuner.core.workload import choice
from tuner.errors import ProbeError
from tuner.launchfiles.files import read_file
from tuner.results.points import question_text
from tuner.store import open_store
from tuner.text import read_share, read_size, read_whole


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
        raise ProbeError(f"nothing is known of it: {error}") from error
    with (
        open_store(asked.db) as store,
        watch_of(as_json=asked.json) as watch,
        DryRuns(store, policy, watch) as dry_runs,
    ):
        dry_runs.prepare([case])
        checked = check(store, found.format_name, case, dry_runs.of(case))
    if asked.json:
        print_json({"file": asked.file, **checked.as_dict()})
    elif checked.fits is not None:
        _show(stdout_console(), asked.file, checked)
    why = why_not("this", checked.fits, checked.trains_wrongly, checked.reason)
    return 0 if why is None else report(why, as_json=False)


def _beside(asked: CheckAsked) -> Beside:
    """The options as values.

    Raises:
        UsageError: one cannot be read.
    """
    memory, headroom = asked.memory_limit, asked.headroom
    knobs: dict[str, Any] = {}
    if asked.settings is not None:
        written, given = read_settings(asked.settings)
        knobs = {name: getattr(written, name) for name in given}
    sequence, batch = asked.sequence_length, asked.global_batch_size
    return Beside(
        cluster=asked.cluster,
        model=asked.model,
        sequence_length=None if sequence is None else read_whole("sequence_length", sequence),
        global_batch_size=None if batch is None else read_whole("global_batch_size", batch),
        optimizer=asked.optimizer,
        precision=asked.precision,
        reduce_dtype=asked.reduce_dtype,
        framework=asked.framework,
        framework_versions=parse_stated_versions(asked.framework_version or ()),
        settings=knobs,
        headroom=None if headroom is None else read_share("headroom", headroom),
        memory_limit_gib=None if memory is None else read_size("memory_limit", memory) / 2**30,
    )


def _show(console: Console, path: str, checked: Checked) -> None:
    console.print(Text(question_text(checked.case.question), style="bold"), soft_wrap=True)
    width = min(console.width, TEXT_WIDTH)
    console.print(facts_grid(_facts(path, checked)), width=width)
    paragraphs(console, checked.notes, "Notes", further=2)


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
        yield "speed", f"{rate_text(speed, per)}, {speed.provenance}"
        yield "step", f"{seconds_text(step)}, {step.provenance}"
    if checked.seen is None:
        basis = str(checked.prediction.basis).replace("_", " ")
        yield "known from", f"{Provenance.PREDICTED}, memory by {basis}"
    else:
        figures = checked.seen.figures
        how = "probes" if figures.fidelity is Fidelity.MEASURED else f"{figures.fidelity} probes"
        numbers = ", ".join(f"#{number}" for number in figures.probes)
        yield "known from", f"{how} {numbers} of study {checked.seen.study_id}"
