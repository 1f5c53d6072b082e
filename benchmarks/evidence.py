"""The tables and the picture of ``docs/evidence.md``: from result files, and from nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median, mode
from typing import Any

import markdown
from gpu.goals import (
    GIB,
    NOT_RUN,
    WAYS,
    allocated,
    computing_errors,
    emulated_right,
    errors,
    goals,
    measured_share,
    of_part,
    predicted_right,
    recompute_pairs,
    step_s,
    warm_over_cold,
)
from markdown import number, percent, table
from plot import BLUE, GREEN, ORANGE, PURPLE, Panel, Series, svg

Result = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]

NOTHING = (
    "No card has been measured yet (no result of `make bench-gpu` is in `benchmarks/results/`):"
    " the {} goals of `benchmarks/gpu/goals.py` are open."
)
COLORS = (BLUE, ORANGE, GREEN, PURPLE)


def is_card(result: Result) -> bool:
    """Whether a result is one of ``bench_gpu.py``."""
    return "runs" in result


def overview(results: Sequence[Result]) -> list[str]:
    """Each benchmark's date and goals; where it was run, if not where most were."""
    places = [f"{one['device']}, torch {one['versions'].get('torch', '')}" for one in results]
    usual = mode(places)
    rows = [
        (one["name"], one["date"], one["commit"],
         f"{sum(goal['met'] for goal in one['goals'])} of {len(one['goals'])}",
         "" if place == usual else place)
        for one, place in zip(results, places, strict=True)
    ]  # fmt: skip
    head = ("benchmark", "date", "commit", "goals met", "elsewhere")
    return [f"On {usual}, if not said otherwise:", "", *table(head, rows)]


def allocator(results: Iterable[Result]) -> list[str]:
    """Predicted against torch's CUDA allocator, without a GPU; its goals, and kinds of sharding.

    Reserved memory is shown over the allocated peak of the same settings.
    """
    for one in results:
        if one["name"] == "cuda-allocator":
            return [*markdown.goals(one), "", *_allocator_table(one["rows"])]
    return ["Not run."]


def _allocator_table(rows: Rows) -> list[str]:
    by_sharing: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["outcome"] == "ok":
            by_sharing.setdefault(_sharing(row), []).append(row)
    head = ("ranks split", "models", "settings", "allocated, GiB", "dry run off by, at most",
            "arithmetic", "reserved over allocated")  # fmt: skip
    return table(head, [
        (shared, len({row["model"] for row in own}), len(own),
         _range([row["allocated_bytes"] / GIB for row in own]),
         *(_most(own, way) for way in WAYS),
         _range([row["reserved_bytes"] / row["allocated_bytes"] for row in own]))
        for shared, own in sorted(by_sharing.items())
    ])  # fmt: skip


def _most(rows: Rows, way: str) -> str:
    """How far off the worst prediction of a way is."""
    off = [abs(row[way]["error"]) for row in rows if row[way]]
    return f"{max(off):.2%}" if off else "none"


def _sharing(row: Mapping[str, Any]) -> str:
    """How ranks share the model, and whether layers are checkpointed."""
    words = [row["sharding"]]
    if row["tp_size"] > 1:
        words.append(f"tp {row['tp_size']}")
    if row["cpu_offload"]:
        words.append("offloaded")
    if row["activation_checkpointing"] != "none":
        words.append("checkpointing")
    return ", ".join(words)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def cards(results: Sequence[Result]) -> list[str]:
    """All that cards have shown; what is missing, where none has."""
    if not results:
        return [NOTHING.format(len(goals([], [])))]
    return [line for result in results for line in _card(result)]


def _card(result: Result) -> list[str]:
    rows = result["rows"]
    sections = {
        "Predicted against emulated peaks": _memory(of_part(rows, "memory")),
        "transformers issue 29425, under the 80 GiB of its cards": _seed(
            [row for row in rows if row["part"] == "seed"]
        ),
        "tp_recompute_allgather": _recompute(rows),
        "Computing, predicted against measured": _time(of_part(rows, "time")),
        "All settings of one question": _grid(of_part(rows, "grid")),
        "Warm against cold probes": _warm(of_part(rows, "warm")),
    }
    lines = [f"### {result['device']} (`{result['name']}`)", "", *markdown.goals(result)]
    if picture(result):
        lines += ["", f"![Predicted against emulated]({picture_name(result)})"]
    for title, found in sections.items():
        lines += ["", f"#### {title}", "", *(found or ["Not measured."])]
    return [*lines, ""]


def _memory(rows: Rows) -> list[str]:
    """By model; then the settings that are furthest off."""
    if not rows:
        return []
    found = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        off = [errors(own, way) for way in WAYS]
        each = [percent(take(one)) if one else "" for one in off for take in (median, max)]
        ended = sum(row["outcome"] == "ok" for row in own)
        found.append((model, len(own), ended, *each))
    head = ("model", "settings", "ended well", "dry run, median error", "largest",
            "arithmetic, median error", "largest")  # fmt: skip
    return [*table(head, found), "", "The five furthest off:", "", *_furthest(rows)]


def _furthest(rows: Rows) -> list[str]:
    done = [row for row in rows if row["outcome"] == "ok" and row["predicted"]["dry_run"]]
    done = sorted(done, key=lambda row: -abs(row["predicted"]["dry_run"]["error"]))[:5]
    found = [
        (_name(row), _gib(allocated(row)), percent(row["predicted"]["dry_run"]["error"]))
        for row in done
    ]
    return table(("settings", "emulated, GiB", "dry run off by"), found)


def _seed(rows: Rows) -> list[str]:
    """A row that was not run has its predictions, and the reason below."""
    if not rows:
        return []
    lines = table(
        ("row", "published, GiB", "emulated", "allocated, GiB", "predicted, dry run",
         "predicted, arithmetic"),
        [(_seed_name(row), _published(row), _marked(row["outcome"], emulated_right(row)),
          _found(row), *(_verdict(row, way) for way in WAYS)) for row in rows],
    )  # fmt: skip
    for row in rows:
        if row["outcome"] == NOT_RUN:
            lines += ["", f"Predicted only: {_seed_name(row)}: {row['detail']}."]
    return lines


def _seed_name(row: Mapping[str, Any]) -> str:
    return str(row["key"]).removeprefix("seed cold ").removesuffix(" #0")


def _published(row: Mapping[str, Any]) -> str:
    published = row["published"]
    if not published["fits"]:
        return "out of memory"
    return number(published["gib"]) or "fits"


def _found(row: Mapping[str, Any]) -> str:
    """Of what ran out of memory: what it would have held with what it asked for, at least."""
    if row["outcome"] == "ok":
        return _gib(allocated(row))
    oom = (row["measurement"] or {}).get("oom")
    return f"> {_gib(oom['allocated_bytes'] + oom['requested_bytes'])} in {oom['phase']}" if oom \
        else ""  # fmt: skip


def _verdict(row: Mapping[str, Any], way: str) -> str:
    told = row["predicted"][way]
    if told is None:
        return "unknown"
    text = f"{_gib(told['allocated_bytes']['value'])}, {'fits' if told['fits'] else 'does not fit'}"
    return _marked(text, predicted_right(row, way))


def _marked(text: str, right: bool) -> str:
    return text if right else f"**{text}**"


def _recompute(rows: Rows) -> list[str]:
    found = recompute_pairs(rows)
    head = ("tp", "repetitions", "kept, GiB", "gathered again, GiB", "saved, GiB",
            "computing longer by", "step longer by")  # fmt: skip
    if not found:
        return []
    return table(head, [
        (one["tp_size"], one["repetitions"],
         *(f"{one[name]:.2f}" for name in ("kept_gib", "recomputed_gib", "saved_gib")),
         percent(one["computing_paid"]), percent(one["step_paid"])) for one in found
    ])  # fmt: skip


def _time(rows: Rows) -> list[str]:
    if not rows:
        return []
    found = []
    for row in rows:
        seen = row["computing"]
        off = [seen[rate] and seen["measured_s"] and seen[rate] / seen["measured_s"] - 1
               for rate in ("catalogue_s", "calibrated_s")]  # fmt: skip
        found.append((_name(row), number(seen["measured_s"]), *map(percent, off)))
    middle = [
        percent(median(one)) if (one := computing_errors(rows, rate)) else "not measured"
        for rate in ("catalogue_s", "calibrated_s")
    ]
    said = f"Median error: {middle[0]} with the catalogue's rates, {middle[1]} after calibration."
    head = ("settings", "measured, s a step", "catalogue's rates off by", "calibrated off by")
    return [said, "", *table(head, found)]


def _grid(rows: Rows) -> list[str]:
    if not rows:
        return []
    outcomes = [row["outcome"] for row in rows]
    counted = ", ".join(f"{outcomes.count(one)} {one}" for one in dict.fromkeys(outcomes))
    timed = [(step_s(row), row) for row in rows if row["outcome"] == "ok"]
    fastest = sorted(((s, row) for s, row in timed if s), key=lambda pair: pair[0])[:5]
    found = [(_knobs(row["settings"]), number(s), _gib(allocated(row))) for s, row in fastest]
    said = f"{rows[0]['model']} on {rows[0]['cluster']}, {len(rows)} settings: {counted}."
    if not found:
        return [said]
    return [said, "", *table(("the fastest", "s a step", "allocated, GiB"), found)]


def _warm(rows: Rows) -> list[str]:
    done = [row for row in rows if row["outcome"] == "ok"]
    found = []
    for model in dict.fromkeys(row["model"] for row in done):
        for way in ("cold", "warm"):
            own = [row for row in done if row["model"] == model and row["way"] == way]
            if own:
                wall = median(row["measurement"]["wall_s"] for row in own)
                share = median(map(measured_share, own))
                found.append((model, way, len(own), number(wall), percent(share)))
    if not found:
        return []
    head = ("model", "way", "probes", "s each", "measured steps")
    pairs = warm_over_cold(done).values()
    off = [max((abs(pair[i] - 1) for pair in pairs), default=None) for i in (0, 1)]
    said = (
        f"Largest difference of a warm probe from its cold one: {percent(off[0]) or 'none'} of peak"
        f" allocated, {percent(off[1]) or 'none'} of computing."
    )
    return [*table(head, found), "", said]


def picture_name(result: Result) -> str:
    """Of a card's picture, seen from the page."""
    return f"images/evidence-{result['name']}.svg"


def picture(result: Result) -> str:
    """Predicted against emulated: peaks and computing; empty where there is nothing to show."""
    memory = [row for row in of_part(result["rows"], "memory") if row["outcome"] == "ok"]
    peaks = [
        (row["model"], (allocated(row) / GIB, told["allocated_bytes"]["value"] / GIB))
        for row in memory
        if (told := row["predicted"]["dry_run"])
    ]
    times = [
        (row["model"], (seen["measured_s"], seen["calibrated_s"] or seen["catalogue_s"]))
        for row in of_part(result["rows"], "time")
        if row["outcome"] == "ok" and (seen := row["computing"])["measured_s"]
        and seen["catalogue_s"]
    ]  # fmt: skip
    panels = [
        Panel(title=title, unit=unit, series=_series(points))
        for title, unit, points in (
            ("Peak allocated, dry run", "GiB", peaks),
            ("Computing of a step", "s", times),
        )
        if points
    ]
    return svg(panels) if panels else ""


def _series(points: Sequence[tuple[str, tuple[float, float]]]) -> list[Series]:
    models = dict.fromkeys(model for model, _ in points)
    return [
        Series(name=model, color=color, points=[at for name, at in points if name == model],
               radius=4.0)
        for model, color in zip(models, COLORS, strict=False)
    ]  # fmt: skip


def _name(row: Mapping[str, Any]) -> str:
    workload = row["workload"]
    words = [row["model"], row["cluster"], _knobs(row["settings"]), workload["precision"]]
    if workload["optimizer"] != "adamw":
        words.append(workload["optimizer"])
    return ", ".join([*words, f"{workload['sequence_length']} tokens"])


def _knobs(settings: Mapping[str, Any]) -> str:
    """What is not as it mostly is."""
    words = [f"{settings['sharding']}, micro {settings['micro_batch_size']}"]
    if (count := settings["gradient_accumulation_steps"]) > 1:
        synced = "each" if settings["sync_each_batch"] else "the last"
        words.append(f"accumulation {count}, sync on {synced}")
    if settings["tp_size"] > 1:
        gathered = "gathered again" if settings["tp_recompute_allgather"] else "kept gathered"
        words.append(f"tp {settings['tp_size']}, {gathered}")
    if settings["activation_checkpointing"] != "none":
        words.append("checkpointing")
    return ", ".join(words)


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f}"
