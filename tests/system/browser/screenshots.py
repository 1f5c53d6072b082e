"""Pictures of the pages, of studies that are run for them, for the documentation.

    python -m tests.system.browser.screenshots docs/images

It takes some minutes: a real model is trained on two CPU processes, and again under a memory limit
that some of its settings exceed.
"""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from api.app import create_app
from api.settings import Settings
from tests.process.api.live import serving
from tests.system.browser.chromium import WITHIN_MS, chromium, find_chromium
from tests.system.browser.tabs import NARROW, WIDE
from tests.system.browser.working import working
from tuner.store import open_store

MOST_BYTES = 250_000
ENDS_WITHIN_S = 1200
PAPER_PX = 32
MEASURED = {
    "workload": {
        "model": "stories15m",
        "sequence_length": 128,
        "global_batch_size": 8,
        "precision": "fp32",
    },
    "cluster": "cpu:2",
    "framework": "torch",
    "fidelity": "measured",
    "budget": {"max_probes": 6},
    "tolerance": 0.001,
}
LIMITED = {**MEASURED, "memory_limit_gib": 0.28, "budget": {"max_probes": 12}}
"""The same question once more, under a limit that some of what was measured then exceeds."""
PREDICTED = (
    {
        "workload": {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 256},
        "cluster": "8xh100-80gb",
        "fidelity": "predicted",
    },
    {
        "workload": {"model": "mixtral-8x7b", "sequence_length": 4096, "global_batch_size": 1024},
        "cluster": "8x8xh100-80gb",
        "fidelity": "predicted",
    },
    {
        "workload": {"model": "llama-3.1-70b", "sequence_length": 8192, "global_batch_size": 512},
        "cluster": "1xh100-80gb",
        "fidelity": "predicted",
    },
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One of them."""

    name: str
    path: str
    width: int = WIDE
    height: int = 900
    theme: str = "light"
    of: str = ""


def main():
    found = find_chromium()
    if found is None:
        print("there is no Chromium on this machine: install Debian's chromium", file=sys.stderr)
        return 1
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    with tempfile.TemporaryDirectory() as made:
        database = f"sqlite:///{made}/studies.db"
        with open_store(database) as store:
            app = create_app(store, Settings(_env_file=None))
            with serving(app) as url, chromium(found) as browser:
                for picture in _pictures(browser, url, database, Path(made), folder):
                    print(picture)
    return 0


def _pictures(browser, url, database, made, folder):
    with working(database, made):
        ids = [_asked(browser, url, body) for body in (*PREDICTED, MEASURED)]
        live = _until(browser, url, ids[-1], "Best so far")
        written = [_taken(live, Picture(name="live", path=""), folder)]
        _until(browser, url, ids[-1], "")
        assert _asked(browser, url, LIMITED) == ids[-1]
        for study in ids:
            _until(browser, url, study, "")
    for picture in (*_wanted(*ids), _evidence(browser, url, ids[-1])):
        page = _opened(browser, picture)
        page.goto(url + picture.path)
        written.append(_taken(page, picture, folder))
        page.context.close()
    return written


def _wanted(llama, mixtral, large, measured):
    return (
        Picture(name="studies", path="/", height=720),
        Picture(name="study", path=f"/studies/{llama}", height=1290),
        Picture(name="study-dark", path=f"/studies/{llama}", height=980, theme="dark"),
        Picture(name="study-narrow", path=f"/studies/{llama}", width=NARROW, height=980),
        Picture(name="scatter", path=f"/studies/{measured}", of="#scatter"),
        Picture(name="changes", path=f"/studies/{llama}", of="#changes", theme="dark"),
        Picture(name="nothing-fits", path=f"/studies/{large}", height=620),
        Picture(name="what-if", path=f"/studies/{llama}/settings", height=960, theme="dark"),
        Picture(name="compare", path=f"/compare?ids={llama},{mixtral}", height=1100),
    )


def _evidence(browser, url, study):
    found = _got(browser, f"{url}/tune/{study}")
    best = found["suggestion"]["best"]["settings"]
    probes = _got(browser, f"{url}/tune/{study}/probes")["probes"]
    number = next(one["number"] for one in probes if one["settings"] == best)
    return Picture(name="evidence", path=f"/studies/{study}?probe={number}", height=980)


def _opened(browser, picture):
    viewport = {"width": picture.width, "height": picture.height}
    page = browser.new_context(viewport=viewport, color_scheme=picture.theme).new_page()
    page.set_default_timeout(WITHIN_MS)
    return page


def _taken(page, picture, folder):
    path = folder / f"page-{picture.name}.png"
    page.evaluate("document.activeElement.blur()")
    clip = _around(page, picture.of) if picture.of else None
    page.screenshot(path=path, animations="disabled", clip=clip, full_page=clip is not None)
    size = path.stat().st_size
    assert size <= MOST_BYTES, (path, size)
    return path


def _around(page, selector):
    box = page.locator(selector).bounding_box()
    assert box is not None, selector
    return {
        "x": box["x"] - PAPER_PX,
        "y": box["y"] + 2,  # below the line that divides it from the part above
        "width": box["width"] + 2 * PAPER_PX,
        "height": box["height"] - 2,
    }


def _asked(browser, url, body):
    return str(_got(browser, f"{url}/tune", method="POST", data=body)["study_id"])


def _got(browser, address, **more):
    context = browser.new_context()
    answer = context.request.fetch(address, **more)
    assert answer.ok, answer.text()
    found = answer.json()
    context.close()
    return found


def _until(browser, url, study, title):
    """The study's page once its answer is so titled, or the study has ended."""
    page = _opened(browser, Picture(name="", path=""))
    page.goto(f"{url}/studies/{study}")
    answer, is_open = page.locator("#answer-title"), page.locator("#study[data-live]")
    until = time.monotonic() + ENDS_WITHIN_S
    while is_open.count() and answer.all_inner_texts() != [title]:
        assert time.monotonic() < until, page.locator(".status-line").all_inner_texts()
        page.wait_for_timeout(500)
    return page


if __name__ == "__main__":
    sys.exit(main())
