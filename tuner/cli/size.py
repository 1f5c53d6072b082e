"""``tuner size``: a row for each cluster, and what each can do."""

from collections.abc import Callable, Iterator

import typer
from rich.console import Console

from tuner.cli.console import Column, paragraphs, print_facts, print_rows, stdout_console, watch_of
from tuner.cli.errors import print_json, report
from tuner.cli.options import SizeAsked
from tuner.cli.values import Texts
from tuner.client.request import SizeRequest, read_arguments
from tuner.client.size import Sizes, sizes_here
from tuner.core.quantity import Quantity
from tuner.core.words import describe, range_text, rough_duration_text, speed_text
from tuner.errors import NothingFitsError, ProbeError, TunerError
from tuner.explain.brief import tokens_text
from tuner.explain.facts import batch_divides_badly
from tuner.planner.sizing import Sized, SizedCluster

BILLION = 1_000_000_000


def run(asked: SizeAsked) -> int:
    texts = Texts()
    request = read_arguments(SizeRequest, texts.arguments(asked, SizeRequest), texts.wrong)
    with watch_of(as_json=asked.json) as watch:
        found = sizes_here(request, verify=asked.verify, db=asked.db, say=watch.waiting)
        watch.waiting("")
    for note in found.notes:
        typer.echo(note, err=True)
    if asked.json:
        print_json(found.as_dict())
    else:
        show(stdout_console(), found)
    if found.best is not None:
        return 0
    whys = "; ".join(f"{row.cluster.name}: {row.why}" for row in found.rows)
    why: TunerError = ProbeError(f"the goal is not reached: {whys}")
    if all(row.fewest is None for row in found.rows):
        why = NothingFitsError(f"it fits on none of these: {whys}")
    return report(why, as_json=False)


def show(console: Console, found: Sizes) -> None:
    wanted = found.goal.wanted_per_s
    costs = any(row.cluster.price_per_gpu_hour is not None for row in found.rows)
    columns = ["cluster", "fits on", *["reached by"] * bool(wanted), "total tokens/s"]
    columns += ["80% interval"]
    columns += [f"cost of {tokens_text(found.goal.tokens or BILLION)} tokens"] * costs
    if tokens := found.goal.tokens:
        columns.append(f"{tokens_text(tokens)} tokens take")
    rows = [list(_cells(row, found, costs=costs)) for row in found.rows]
    whole = [Column(title, cells) for title, *cells in zip(columns, *rows, strict=True)]
    # What has no room in the table is said of each cluster.
    told = len(columns)
    while sum(column.width + 1 for column in whole[:told]) > console.width + 1:
        told -= 1
    print_rows(columns[:told], [cells[:told] for cells in rows], "total tokens/s")
    for row, cells in zip(found.rows, rows, strict=True):
        console.print()
        console.print(f"{row.cluster.name}, {row.model}" if row.model else row.cluster.name)
        beside = zip(columns[told:], cells[told:], strict=True)
        print_facts(console, (*_of_row(row), *beside), indent=2)
        sentences = [row.why] if row.why else []
        sentences += [str(batch_divides_badly(one)) for one in row.awkward]
        paragraphs(console, [*sentences, *row.notes])
    console.print()
    if found.verified is None:
        typer.echo("All figures are predicted by arithmetic; --verify dry-runs the best.")
        return
    best, real = found.best, found.verified
    assert best is not None
    is_right = "fits" if real.fits else f"does not fit: {real.reason}"
    dry = real.allocated_gib.value
    size = "" if dry is None else f", {dry:.1f} GiB allocated ({real.basis})"
    typer.echo(f"Verified on {best.gpus} GPUs: it {is_right}{size}. Speeds are arithmetic.")


def _cells(row: SizedCluster, found: Sizes, *, costs: bool) -> Iterator[str]:
    chosen = row.chosen
    yield row.cluster.name
    yield "nothing" if row.fewest is None else _gpus(row.fewest)
    if found.goal.wanted_per_s:
        yield "-" if row.reaching is None else _gpus(row.reaching)
    speed = None if chosen is None else chosen.tokens_per_s
    yield "-" if speed is None else speed_text(speed.value)
    yield "-" if speed is None or speed.value is None else range_text(speed)
    if costs:
        each = chosen.cost_per_billion_tokens if chosen else None
        cost = each and each.scaled((found.goal.tokens or BILLION) / BILLION)
        yield _ranged(cost, lambda price: f"{price:,.{0 if price >= 1000 else 2}f}")
    if found.goal.tokens:
        yield _ranged(chosen.finish_s if chosen else None, rough_duration_text)


def _ranged(found: Quantity | None, text: Callable[[float], str]) -> str:
    if found is None or found.value is None or found.low is None or found.high is None:
        return "-"
    return f"{text(found.value)} ({text(found.low)} to {text(found.high)})"


def _gpus(sized: Sized) -> str:
    return f"{sized.gpus} GPU{'s' * (sized.gpus > 1)}"


def _of_row(row: SizedCluster) -> Iterator[tuple[str, str]]:
    if row.reaching is not None:
        yield "the fewest that reach it", _line(row.reaching)
    if row.fewest is not None:
        yield "the fewest that fit it", _line(row.fewest)
    if row.whole is not None:
        yield "on all its GPUs", _line(row.whole)
    if (longest := row.longest_sequence) is not None:
        length = longest.question.workload.sequence_length
        most = longest.question.workload.model.max_sequence_length
        also = ", the model's own limit" if length == most else ""
        yield "longest sequence", f"{length:,} tokens{also}; {_line(longest)}"
    if (micro := row.largest_micro_batch) is not None:
        yield "largest micro-batch", f"{micro.best.settings.micro_batch_size}; {_line(micro)}"
    if (model := row.largest_model) is not None:
        yield "largest model", f"{model.question.workload.model.name}; {_line(model)}"


def _line(sized: Sized) -> str:
    """A size in one line: GPUs, configuration, speed, memory."""
    best = sized.best
    needs = _ranged(best.needed_gib, "{:.1f}".format)
    settings = describe(best.settings).replace(",", ", ")
    surely = "" if best.fits_surely else ", which may not fit"
    return (
        f"{_gpus(sized)}: {settings}; {speed_text(sized.tokens_per_s.value)} tokens/s"
        f" in total; needs {needs} of {best.limit_gib:.1f} GiB per GPU{surely}"
    )
