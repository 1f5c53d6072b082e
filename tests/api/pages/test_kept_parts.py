"""What is kept of a page for the next one: it changes nothing of what is shown."""

import functools
import gc
from collections.abc import Iterator

from tests.api.pages.made import GIB, crashed, ok, oom, question, shown, study
from tuner.measurement import Measurement
from tuner.study import Study, Terms

FOUND: list[Measurement | None] = [
    ok(2.0, 1, 20 * GIB),
    oom(),
    ok(1.0, 1, 30 * GIB),
    crashed(),
    ok(1.5, 1, 25 * GIB),
]


def forget() -> None:
    """As in a process that has just started: nothing is kept of any study."""
    kept = [one for one in gc.get_objects() if type(one) is functools._lru_cache_wrapper]
    ours = [one for one in kept if one.__module__.startswith(("api.", "tuner."))]
    assert len(ours) > 10
    for one in ours:
        if one.cache_parameters()["maxsize"] is not None:  # others hold templates, and such
            one.cache_clear()


def studies() -> Iterator[Study]:
    """Each much like the one before it, and other in something that a page is made of."""
    asked = question()
    for count in (2, 3, 4, 5):
        yield study(asked, FOUND[:count])
    yield study(asked, FOUND, terms=Terms(memory_limit_bytes=26 * GIB))
    yield study(asked, FOUND, id="st-aaaaaaaaaaaa")
    yield study(asked, [*FOUND[2:], *FOUND[:2]])
    yield study(question(tp_size=[1]), FOUND)
    yield study(question("8xh100-80gb"), FOUND)
    yield study(asked, FOUND[:3])


def test_a_page_is_the_same_whatever_was_shown_before() -> None:
    warm = [shown(one).parts for one in studies()]
    for one, parts in zip(studies(), warm, strict=True):
        forget()
        assert shown(one).parts == parts
