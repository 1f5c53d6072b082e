"""Studies of every kind that a page shows, in one database."""

from dataclasses import dataclass

from tests.unit.api.studies import MEASURED, PREDICTED, question_of
from tests.unit.api.studies import probe as probed
from tests.unit.pages.made import crashed, ok, oom, question, stored, study
from tuner.core.study import Limits, StudyState

GIB = 2**30
NAMES = {
    "markup": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "long": "m" * 90 + "/" + "W" * 100,
    "right_to_left": "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET} \N{ARABIC LETTER BEH} 7b",
    "emoji": "\N{LLAMA}\N{FIRE} 7b {{ 7 * 7 }}",
}
TURNED = "\N{RIGHT-TO-LEFT OVERRIDE}desrever <b>bold</b> " + "x" * 300


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Ids of the studies."""

    done: str
    other: str
    many: str
    failed: str
    running: str
    hostile: dict[str, str]


def prepare(store):
    names = enumerate(NAMES.items(), start=3)
    return Prepared(
        done=_done(store, question(batch=256)),
        other=_done(store, question(batch=512, cluster="2x8xh100-80gb", tp_size=[1])),
        many=_many(store),
        failed=_failed(store),
        running=running(store, batch=16),
        hostile={bad: _done(store, question(batch=96 * n, name=name)) for n, (bad, name) in names},
    )


def running(store, *, batch):
    workload = {**MEASURED["workload"], "global_batch_size": batch}
    asked = store.ask(question_of({**MEASURED, "workload": workload}), Limits(max_probes=4))
    probed(store, asked.id)
    return asked.id


def _done(store, asked):
    found = [
        ok(1.0, 1, 30 * GIB),
        oom(log="<b>CUDA</b> out of memory\n" + "y" * 400),
        crashed(detail=TURNED),
        ok(0.5, 1, 60 * GIB),
        ok(0.7, 1, 20 * GIB),
    ]
    return stored(store, study(asked, found))


def _many(store):
    found = [
        oom() if n % 5 == 4 else ok(0.5 + (n * 37 % 100) / 50, 1, (8 + n * 13 % 60) * GIB)
        for n in range(120)
    ]
    return stored(store, study(question(batch=1024), found))


def _failed(store):
    asked = store.ask(question_of(PREDICTED), Limits())
    store.move(asked.id, StudyState.RUNNING)
    reason = "no settings are predicted to fit: the smallest need is 658 GiB on one device"
    assert store.move(asked.id, StudyState.FAILED, reason)
    return asked.id
