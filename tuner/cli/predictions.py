"""One prediction, for people: whether it fits, where the memory goes, and how fast it is."""

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.text import Text

from tuner.cli.console import Column, paragraphs, print_facts, table_of
from tuner.cli.tables import seconds_text, spare_text
from tuner.client.cases import Case, Finding, notes_of, prediction_of
from tuner.core.configuration import Settings
from tuner.core.evaluation import GIB, Evaluation
from tuner.core.measurement import Basis
from tuner.core.quantity import Quantity
from tuner.core.words import rank_word, rate_text, sizes_text
from tuner.dryrun import Profile
from tuner.explain.memory import memory_facts
from tuner.results.points import question_text
from tuner.text import show, size_number, size_text, size_unit

# What stands behind allocated memory.
BASES: Mapping[Basis, str] = {
    Basis.REHEARSED: "rehearsed: torch's CUDA allocator counted it, on no GPU",
    Basis.DRY_RUN: "by dry run: the step itself, run on tensors without memory",
    Basis.ARITHMETIC: "by arithmetic: these settings were not dry-run",
}


def show_prediction(
    console: Console, case: Case, finding: Finding, profiles: Mapping[Settings, Profile]
) -> None:
    """All that is predicted of a case whose dry run did not fail.

    ``finding`` is what its own dry run says, and ``profiles`` what dry runs say of its layout and
    of others, which it is compared with.
    """
    found = prediction_of(case, finding)
    assert found.basis is not None  # it is covered
    console.print(Text(question_text(case.question), style="bold"), soft_wrap=True)
    print_facts(console, _facts(case, found, found.basis))
    console.print()
    # memory by category at the peak, and beside it the peak of each phase
    unit, divisor = size_unit(max(found.by_phase.values()))
    columns = []
    height = max(len(found.breakdown), len(found.by_phase))
    for title, sizes in (("at the peak", found.breakdown), ("peak of", found.by_phase)):
        blank = [""] * (height - len(sizes))
        names = [name.replace("_", " ") for name in sizes]
        numbers = [size_number(size, divisor) for size in sizes.values()]
        columns.append(Column(title, [*names, *blank]))
        columns.append(Column(unit, [*numbers, *blank], is_number=True))
    console.print(table_of(columns, console.width))
    explained = list(map(str, memory_facts(case.question, case.settings, profiles)))
    paragraphs(console, explained, "Memory", further=2)
    paragraphs(console, notes_of(case, finding, found), "Notes", further=2)


def _facts(case: Case, found: Evaluation, basis: Basis) -> Iterator[tuple[str, str]]:
    def gib(size_bytes: Quantity) -> str:
        return sizes_text(size_bytes.scaled(1 / GIB))

    per = rank_word(case.question)
    settings = case.settings.as_dict().items()
    yield "settings", ", ".join(f"{knob} {show(value)}" for knob, value in settings)
    yield "fits", "yes" if found.fits else f"no: {found.why}"
    limit = size_text(found.limit_bytes)
    yield "needed", f"{gib(found.needed_bytes)} per {per}, of {limit}"
    yield "allocated", gib(found.allocated_bytes)
    allocated, reserved = found.allocated_bytes.value or 0.0, found.reserved_bytes.value or 0.0
    spare = spare_text(allocated, reserved, found.limit_bytes) if found.fits else ""
    yield "reserved", f"{gib(found.reserved_bytes)}{spare}"
    outside = found.outside_bytes
    beside = f", {size_text(outside)} of it outside the allocator" if outside else ""
    yield "on the device", f"{gib(found.device_bytes)}{beside}"
    yield "memory is", BASES[basis]
    speed, step = found.tokens_per_s_per_gpu, found.step_time_s
    if step.value is None:
        yield "speed", found.why if found.fits else "unknown"
    else:
        yield "speed", rate_text(speed, per)
        yield "step", seconds_text(step)
