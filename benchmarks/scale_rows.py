"""What looks at the database cost as finished studies pile up: part of ``make bench-scale``.

A study with finished probes is copied until there are as many rows of studies as wanted, on both
databases; of every hundredth its probes are copied too. Copies are of a hundred stacks. Then what
workers, callers and the list of studies ask all day is timed.
"""

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from time import perf_counter
from typing import Any

from claims import DATABASES, database, new_study
from common import Goal, show
from service_writer import measured
from sqlalchemy import insert, select, text

from tuner.core.study import StudyState
from tuner.store import Store, WorkerIdentity, open_store
from tuner.store.tables import EventRow, MeasurementRow, ProbeRow, StudyRow

COUNTS = (10, 10_000, 1_000_000)
"""Rows of studies."""
PROBES = 8
"""Of the study that is copied."""
WITH_PROBES = 100
"""One in so many copies has them."""
STACKS = 100
"""Kinds of studies that teach each other something."""
BATCH = 10_000
"""Rows of one INSERT."""
FIRST_ID = 1000
"""Of the copies' probes."""
CALLS = 11
"""Of which the median is taken."""


def rows() -> list[dict[str, Any]]:
    """A row for each database and number of studies: medians in milliseconds."""
    return [row for name in DATABASES for row in _of(name)]


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """None: the figures are a sheet."""
    return []


def _of(name: str) -> Iterator[dict[str, Any]]:
    with database(name) as url, open_store(url) as store:
        first = _finished(store)
        have = 1
        for count in COUNTS:
            _copy(store, first, have, count)
            have = count
            yield {
                "database": name,
                "studies": count,
                **_timed(store, first),
                "load": os.getloadavg()[0],
            }


def _finished(store: Store) -> str:
    """Id of a study that is done."""
    study_id = new_study(store, 0, PROBES)
    worker = WorkerIdentity.of_this_process()
    store.move(study_id, StudyState.RUNNING)
    while claim := store.claim(study_id, worker):
        store.record(claim, measured(claim.probe.row_id))
    store.move(study_id, StudyState.DONE, "nothing more is expected to help")
    return study_id


def _copy(store: Store, first: str, have: int, count: int) -> None:
    """Add copies of the study until there are ``count``."""
    whole = _read(store, first)
    for begin in range(have, count, BATCH):
        numbers = range(begin, min(count, begin + BATCH))
        with store.transactions.write() as session:
            for table, rows in _copies(whole, numbers).items():
                if rows:
                    session.execute(insert(table), rows)
    if store.url.startswith("postgresql"):  # its server does that by itself after a while
        with store.transactions.write() as session:
            session.execute(text("ANALYZE"))


def _read(store: Store, study_id: str) -> dict[type, list[dict[str, Any]]]:
    """What there is of a study, by table."""
    found = {
        StudyRow: select(StudyRow.__table__).where(StudyRow.id == study_id),
        ProbeRow: select(ProbeRow.__table__).where(ProbeRow.study_id == study_id),
        EventRow: select(EventRow.__table__).where(EventRow.study_id == study_id),
        MeasurementRow: select(MeasurementRow.__table__)
        .join(ProbeRow, ProbeRow.id == MeasurementRow.probe_id)
        .where(ProbeRow.study_id == study_id),
    }
    with store.transactions.read() as session:
        return {
            table: [dict(row) for row in session.execute(wanted).mappings()]
            for table, wanted in found.items()
        }


def _copies(
    whole: Mapping[type, list[dict[str, Any]]], numbers: Iterable[int]
) -> dict[type, list[dict[str, Any]]]:
    """Rows of copies, by table, each with the number that it is known by."""
    [study] = whole[StudyRow]
    made: dict[type, list[dict[str, Any]]] = {table: [] for table in whole}
    for number in numbers:
        asked_at = study["asked_at"] - timedelta(minutes=number)
        own = {
            "id": f"st-{number:012x}",
            "identity": f"{number:064x}",
            "kind": f"{number % STACKS}" if number % STACKS else study["kind"],
            "asked_at": asked_at,
        }
        made[StudyRow].append({**study, **own})
        if number % WITH_PROBES == 0:
            _add_probes(made, whole, number, own["id"])
    return made


def _add_probes(
    made: dict[type, list[dict[str, Any]]],
    whole: Mapping[type, list[dict[str, Any]]],
    number: int,
    study_id: str,
) -> None:
    for probe, measurement in zip(whole[ProbeRow], whole[MeasurementRow], strict=True):
        probe_id = FIRST_ID + number * PROBES + probe["id"]
        made[ProbeRow].append({**probe, "id": probe_id, "study_id": study_id})
        lasting = {"probe_id": probe_id, "attempt_id": None}
        made[MeasurementRow].append({**measurement, **lasting})
    for event in whole[EventRow]:
        values = {name: value for name, value in event.items() if name != "id"}
        made[EventRow].append({**values, "study_id": study_id})


def _timed(store: Store, first: str) -> dict[str, float]:
    """Medians of what is asked all day, in milliseconds."""
    question = store.study(first).question
    oldest = store.studies(limit=1)[-1]
    calls: dict[str, Callable[[], object]] = {
        "worker_looks": store.open_studies,
        "leases_are_looked_at": store.reap,
        "study_read": lambda: store.study(first),
        "asked_again": lambda: store.find(question),
        "similar_studies": lambda: store.similar(question),
        "newest_page": lambda: store.studies(limit=50),
        "page_by_model": lambda: store.studies(limit=50, model=oldest.model_name),
        "page_by_rare_word": lambda: store.studies(limit=50, query="no such word"),
    }
    return {f"{name}_ms": _median_ms(call) for name, call in calls.items()}


def _median_ms(call: Callable[[], object]) -> float:
    took_s = []
    for _ in range(CALLS):
        began = perf_counter()
        call()
        took_s.append(perf_counter() - began)
    return statistics.median(took_s) * 1e3


if __name__ == "__main__":
    show("rows", rows())
