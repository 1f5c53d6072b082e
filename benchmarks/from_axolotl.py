"""axolotl's own example configurations as questions: what is read, answered and put back.

    python benchmarks/from_axolotl.py FOLDER [--dry N] [--keep FILE] [--unknown PAGE]

FOLDER is ``examples/`` of a checkout of github.com/axolotl-ai-cloud/axolotl, which is not part of
this project. Answers are by arithmetic, of every legal configuration. What only dry runs know is
dry-run in N files, the first of each model and kind of training; others of the same are counted by
it. ``--keep`` adds what each showed to FILE, and takes what is there as it is: dry runs of half an
hour can be made in several runs. Where axolotl can be imported, what was put back is read by its
own schema.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from common import Goal, report

from tuner.client.from_file import FileQuestion, patched, read_question
from tuner.client.local import Caller
from tuner.client.place import place_here
from tuner.client.suggest import answer_at
from tuner.client.values import silent
from tuner.core.configuration import Settings
from tuner.core.study import Question
from tuner.cost.prediction import predict
from tuner.errors import TunerError, UsageError
from tuner.launchfiles.files import open_file
from tuner.space import enumerate_space

CLUSTER = "8xa100-80gb"
# What an answer may change.
TUNED = frozenset({
    "micro_batch_size", "gradient_accumulation_steps", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "activation_offloading", "accelerator_config", "plugins",
    "liger_fused_linear_cross_entropy", "fsdp", "fsdp_version", "fsdp_config", "batch_size",
})  # fmt: skip


@dataclass(kw_only=True)
class Row:
    """What came of one file."""

    file: str
    read: bool = False
    model: str = ""
    answer: str = ""  # fits, nothing fits, needs dry runs; else empty
    why: str = ""
    dry_run_s: float | None = None
    """Wall seconds until its dry run had an answer or none; of files that another's stands for,
    as of those that arithmetic answers, ``None``."""
    kept: bool | None = None
    """Whether only tuned keys were changed; ``None`` where nothing is put back."""


def files(folder: Path) -> Iterator[Path]:
    """Configurations of training: those of a cloud's machines have no model."""
    for path in sorted((*folder.rglob("*.yml"), *folder.rglob("*.yaml"))):
        if "base_model" in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}):
            yield path


def best_of(question: Question) -> Settings | None:
    """The fastest configuration that fits by arithmetic; ``None`` where none fits."""
    asked = question.workload, question.cluster, question.framework
    found = [(predict(*asked, one), one) for one in enumerate_space(question).legal]
    fast = [(p.step_time_s.value, str(one), one) for p, one in found if p.fits]
    known = [one for one in fast if one[0] is not None]
    if not known and any(p.fits is None for p, _ in found):
        raise TunerError(next(p.reason for p, _ in found if p.fits is None))
    return min(known)[2] if known else None


class DryRuns:
    """The dry runs of the first file of each model and kind of training."""

    def __init__(self, most: int, kept: Path | None) -> None:
        self._left, self._kept = most, kept
        self.found: dict[str, Row] = {}
        if kept is not None and kept.exists():
            for line in kept.read_text(encoding="utf-8").splitlines():
                row = Row(**json.loads(line))
                self.found[row.model] = row

    def of(self, name: str, row: Row, path: Path) -> Row | None:
        """What is known of a model, dry-run now where it may be; ``None`` where it may not."""
        if name not in self.found and self._left > 0:
            self._left -= 1
            made = self.found[name] = Row(file=row.file, model=name, read=True)
            started = time.monotonic()
            try:
                made.answer = "nothing fits" if _dry_run(path) is None else "fits"
            except TunerError as error:
                made.why = str(error)
            made.dry_run_s = round(time.monotonic() - started, 1)
            if self._kept is not None:
                with self._kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(vars(made)) + "\n")
        return self.found.get(name)


def asks(path: Path, probes: int = 1) -> FileQuestion:
    more = {"fidelity": "predicted", "max_probes": probes, "wall_s": 600.0}
    return read_question(str(path), None, {"cluster": CLUSTER, **more})


def _dry_run(path: Path) -> Settings | None:
    """The best by dry runs, of which no study before this one tells anything."""
    with TemporaryDirectory() as folder:
        db = f"sqlite:///{folder}/studies.db"
        for most in (1, 3):  # one is enough where its layout fits
            answered = answer_at(asks(path, most).request, Caller(note=silent), (), db=db)
            if (best := answered.suggestion.best) is not None:
                return best.settings
    if best is None and answered.why_none is not None and answered.why_none.exit_code != 3:
        ended = (p.measurement.detail for p in answered.study.probes if p.measurement)
        raise TunerError(next(filter(None, ended), str(answered.why_none)))
    return None if best is None else best.settings


def keeps(question: FileQuestion, asked: Question, best: Settings, schema: Any) -> bool:
    """Tells whether what was put back differs in tuned keys alone, and is read by axolotl."""
    text, _ = patched(question, asked, best)
    before, after = yaml.safe_load(question.opened.text), yaml.safe_load(text)
    differ = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    comments = [line for line in question.opened.text.splitlines() if line.startswith("#")]
    same = [line for line in text.splitlines() if line.startswith("#")] == comments
    if schema is not None and not valid(schema, before):
        schema = None  # nor was it before
    return differ <= TUNED and same and (schema is None or valid(schema, after))


def valid(schema: Any, values: Mapping[str, Any]) -> bool:
    try:
        schema(**values)
    except Exception:  # noqa: BLE001  (of any kind: its validators read files, and devices)
        return False
    return True


def look(path: Path, folder: Path, dry: DryRuns, schema: Any) -> Row:
    row = Row(file=str(path.relative_to(folder)))
    try:
        open_file(str(path))
        row.read = True
        question = asks(path)
        asked = place_here(question.request, None).question
        work = asked.workload
        row.model = f"{work.model.name} {work.adapter.method if work.adapter else 'whole'}"
        row.model += "" if work.model.is_causal_lm else f" {work.model.task}"
        best: Settings | None = None
        if work.is_traced:
            best = enumerate_space(asked).legal[-1]  # to be put back: any is read alike
            known = dry.of(row.model, row, path)
            if known is None:
                row.answer = "needs dry runs"
            elif known.why:
                raise TunerError(known.why)
            else:
                row.answer = known.answer
                row.dry_run_s = known.dry_run_s if known.file == row.file else None
                best = best if row.answer == "fits" else None
        else:
            best = best_of(asked)
            row.answer = "nothing fits" if best is None else "fits"
        if best is not None:
            row.kept = keeps(question, asked, best, schema)
    except UsageError as error:
        row.why = f"{error.field}: {error.allowed}"
    except TunerError as error:
        row.why = str(error)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dry", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--unknown", type=Path)
    options = parser.parse_args()
    try:
        schema = import_module("axolotl.utils.schemas.config").AxolotlInputConfig
    except ImportError:
        schema = None
    dry = DryRuns(options.dry, options.keep)
    paths = [*files(options.folder)]
    rows = [look(path, options.folder, dry, schema) for path in paths]
    count = len(rows)
    answered = sum(row.answer in ("fits", "nothing fits") for row in rows)
    waiting = sum(row.answer == "needs dry runs" for row in rows)
    put = [row.kept for row in rows if row.kept is not None]
    goals = [
        Goal(name="read without an error", goal=">= 0.9",
             value=sum(row.read for row in rows) / count),
        Goal(name=f"answered on {CLUSTER}", goal=">= 0.7", value=answered / count),
        Goal(name="put back with tuned keys changed alone", goal=">= 1",
             value=sum(put) / max(1, len(put))),
    ]  # fmt: skip
    kinds = Counter(row.answer or f"no: {_short(row.why)}" for row in rows)
    table = [{"answer": kind, "files": number} for kind, number in kinds.most_common()]
    more = {
        "files": count, "answered": answered, "needs dry runs": waiting,
        "dry runs": len(dry.found), "of which answered": sum(not r.why for r in dry.found.values()),
        "schema": "axolotl's own" if schema else "not importable here",
        "rows": [vars(row) for row in rows],
    }  # fmt: skip
    report("from_axolotl", goals, table, more)
    if options.unknown:
        options.unknown.write_text(_page(rows, paths), encoding="utf-8")


def _short(why: str) -> str:
    """A reason without the names in it."""
    if "has no answer" in why:
        return "dry runs gave no answer"
    for word in ("is not in the catalogue", "is not covered", "not predicted"):
        if word in why:
            return f"{why.partition(':')[0]}: {word}"
    return why[:80]


def _page(rows: list[Row], paths: list[Path]) -> str:
    """What no figure takes into account, and why there was no answer, by count."""
    uncounted: Counter[tuple[str, str]] = Counter()
    for path in paths:
        try:
            found = open_file(str(path)).found
        except UsageError:
            continue
        uncounted.update({(one.key, one.effect) for one in found.uncounted})
    models = Counter(
        yaml.safe_load(path.read_text(encoding="utf-8"))["base_model"]
        for path, row in zip(paths, rows, strict=True)
        if "is not in the catalogue" in row.why
    )
    several = [one for one in models.most_common() if one[1] > 1]
    whys = Counter(_short(row.why) for row in rows if row.why)
    by_effect: dict[str, list[str]] = {}
    rare: dict[str, None] = {}
    for (key, effect), number in sorted(uncounted.items(), key=lambda i: (-i[1], i[0])):
        if number > 2 or effect in by_effect:
            by_effect.setdefault(effect, []).append(f"`{key}` {number}")
        else:
            rare[f"`{key}`"] = None
    lines = [
        "# What is not understood of axolotl's examples",
        "",
        f"Of {len(rows)} configurations that axolotl ships, made by `make bench-from-axolotl"
        " FOLDER=...` (`benchmarks/from_axolotl.py`).",
        "",
        "## No answer",
        "",
        "| why | files |",
        "|---|---|",
        *(f"| {why} | {number} |" for why, number in whys.most_common()),
        "",
        "Models that are not in the catalogue, for which `--model` names one of the same shape: "
        + ", ".join(f"{name} ({number})" for name, number in several)
        + f", and {len(models) - len(several)} in one file each.",
        "",
        "## Not counted",
        "",
        "| what it may change | fields, with the files that have each |",
        "|---|---|",
        *(f"| {effect} | {', '.join(fields)} |" for effect, fields in by_effect.items()),
        "",
        f"One or two files each have {', '.join(rare)}; an answer says what these may change.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
