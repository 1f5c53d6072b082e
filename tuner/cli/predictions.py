"""One prediction, for people: whether it fits, where the memory goes, and how fast it is."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tuner.cli.candidates import sizes_text, spare_text
from tuner.cli.columns import Column, table_of
from tuner.cli.console import TEXT_WIDTH, facts_grid
from tuner.client.cases import Case, Finding, notes_of, prediction_of
from tuner.core.configuration import Settings
from tuner.core.evaluation import GIB
from tuner.core.measurement import Basis
from tuner.core.quantity import Quantity
from tuner.core.words import range_text, rank_word, speed_text
from tuner.cost.prediction import Prediction
from tuner.dryrun import Profile
from tuner.explain.english import say
from tuner.explain.memory import memory_facts
from tuner.results.points import question_text
from tuner.space.inactive import show
from tuner.text import size_number, size_text, size_unit, time_text

# What stands behind allocated memory.
BASES: Mapping[Basis, str] = {
    Basis.DRY_RUN: "by dry run: the step itself, run on tensors without memory",
    Basis.ARITHMETIC: "by arithmetic: these settings were not dry-run",
}


def show_prediction(
    console: Console, case: Case, finding: Finding, profiles: Mapping[Settings, Profile]
) -> None:
    """All that is predicted of a case whose dry run did not fail.

    Args:
        console: where to.
        case: the case.
        finding: what its own dry run says.
        profiles: what dry runs say of its class and of others, which it is compared with.
    """
    found = prediction_of(case, finding)
    console.print(Text(question_text(case.question), style="bold"), soft_wrap=True)
    width = min(console.width, TEXT_WIDTH)
    console.print(facts_grid(_facts(case, found)), width=width)
    console.print()
    console.print(_sizes_table(console, found))
    _show_lines(console, "Memory", _explained(case, profiles))
    _show_lines(console, "Notes", notes_of(case, finding, found))


def _facts(case: Case, found: Prediction) -> Iterator[tuple[str, str]]:
    per = rank_word(case.question)
    settings = case.settings.as_dict().items()
    yield "settings", ", ".join(f"{knob} {show(value)}" for knob, value in settings)
    yield "fits", "yes" if found.fits else f"no: {found.why}"
    limit = size_text(found.limit_bytes)
    yield "needed", f"{_gib_text(found.needed_bytes)} per {per}, of {limit}"
    yield "allocated", _gib_text(found.allocated_bytes)
    yield "reserved", f"{_gib_text(found.reserved_bytes)}{_spare(found)}"
    outside = found.context_bytes + found.communicator_bytes
    beside = f", {size_text(outside)} of it outside the allocator" if outside else ""
    yield "on the device", f"{_gib_text(found.device_bytes)}{beside}"
    yield "memory is", BASES[found.basis]
    speed, step = found.tokens_per_s_per_gpu, found.step_time_s
    if step.value is None:
        yield "speed", found.why if found.fits else "unknown"
    else:
        yield "speed", f"{speed_text(speed.value)} tokens/s per {per} ({range_text(speed)})"
        yield "step", f"{time_text(step.value)} s ({time_text(step.low)} to {time_text(step.high)})"


def _spare(found: Prediction) -> str:
    allocated, reserved = found.allocated_bytes.value or 0.0, found.reserved_bytes.value or 0.0
    return spare_text(allocated, reserved, found.limit_bytes) if found.fits else ""


def _gib_text(size_bytes: Quantity) -> str:
    return sizes_text(size_bytes.scaled(1 / GIB))


def _sizes_table(console: Console, found: Prediction) -> Table:
    """Memory by category at the peak, and beside it the peak of each phase."""
    unit, divisor = size_unit(max(found.by_phase.values()))
    columns = []
    height = max(len(found.breakdown), len(found.by_phase))
    for title, sizes in (("at the peak", found.breakdown), ("peak of", found.by_phase)):
        blank = [""] * (height - len(sizes))
        names = [name.replace("_", " ") for name in sizes]
        numbers = [size_number(size, divisor) for size in sizes.values()]
        columns.append(Column(title, [*names, *blank]))
        columns.append(Column(unit, [*numbers, *blank], is_number=True))
    return table_of(columns, console.width)


def _explained(case: Case, profiles: Mapping[Settings, Profile]) -> tuple[str, ...]:
    return tuple(map(say, memory_facts(case.question, case.settings, profiles)))


def _show_lines(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print()
        console.print(Text(title, style="bold"))
        for line in lines:
            paragraph = Padding(Text(line), (0, 0, 0, 2))
            console.print(paragraph, width=min(console.width, TEXT_WIDTH))
