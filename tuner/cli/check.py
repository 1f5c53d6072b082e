"""``tuner check``: does this configuration still fit?"""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from tuner.cli.console import paragraphs, print_facts, stdout_console, watch_of
from tuner.cli.errors import print_json, report
from tuner.cli.options import CheckAsked
from tuner.cli.predict import why_not
from tuner.cli.tables import seconds_text
from tuner.cli.values import Texts
from tuner.client.cases import NotCoveredError, Policy
from tuner.client.cases.reading import CaseGiven, said_knobs
from tuner.client.check import Checked, check_file
from tuner.core.bounds import choice
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Provenance
from tuner.core.words import describe, probes_text, rank_word, rate_text, sizes_text
from tuner.errors import ProbeError, all_of
from tuner.launchfiles.files import open_file
from tuner.results.points import question_text


def run(asked: CheckAsked) -> int:
    """Answer; the exit code: 0 it fits, 3 it does not, 4 it trains something else, 1 nothing is
    known of it.
    """
    policy = choice("dry_runs", Policy, asked.dry_runs)
    opened, texts = open_file(asked.file, asked.format_name), Texts()
    given: dict[str, Any] = texts.arguments(asked, CaseGiven)
    given["settings"] = texts.made(lambda: said_knobs(asked.settings or ""))
    if texts.wrong:
        raise all_of(texts.wrong)
    with watch_of(as_json=asked.json) as watch:
        try:
            known = check_file(opened, asked.file, given, asked.db, policy, watch)
        except NotCoveredError as error:
            raise ProbeError(f"nothing is known of it: {error.allowed}") from error
    if asked.json:
        print_json({"file": asked.file, **known.as_dict()})
    elif known.fits is not None:
        console = stdout_console()
        console.print(Text(question_text(known.case.question), style="bold"), soft_wrap=True)
        print_facts(console, _facts(asked.file, known))
        paragraphs(console, known.notes, "Notes", further=2)
    why = why_not("this", known.fits, known.trains_wrongly, known.reason)
    return 0 if why is None else report(why, as_json=False)


def _facts(path: str, checked: Checked) -> Iterator[tuple[str, str]]:
    per, prediction = rank_word(checked.case.question), checked.prediction
    yield "file", f"{path}, of {checked.format_name}"
    yield "settings", describe(checked.case.settings).replace(",", ", ")
    fits = "yes" if checked.fits_surely else "perhaps: it may run out of memory; measure it"
    yield "fits", fits if checked.fits else f"no: {checked.reason}"
    limit = f", of {prediction.limit_gib:.2f} GiB" if prediction.limit_gib is not None else ""
    memory = checked.needed_gib
    yield "memory", f"{sizes_text(memory)} needed per {per}{limit}, {memory.provenance}"
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
        numbers = probes_text(figures.probe_ids)
        yield "known from", f"{how} {numbers} of study {checked.seen.study_id}"
