"""A tab of somebody's browser in which nothing may go wrong unnoticed."""

from dataclasses import dataclass, field

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

ABORTED = "net::ERR_ABORTED"
"""Of what a page does not want any more, such as its stream of events when it is left."""
LOADING = "Failed to load resource"
AXE = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
WIDE, NARROW, HUGE = 1440, 360, 2560
THEMES = ("light", "dark")


@dataclass(kw_only=True)
class Tab:
    """A page with what went wrong in it."""

    page: Page
    base: str
    troubles: list[str] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)

    def __post_init__(self):
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.troubles.append(f"script: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._answered)

    def go(self, path):
        self.page.goto(self.base + path)
        return self.page

    @property
    def path(self):
        return self.page.url.removeprefix(self.base)

    @property
    def overflow_px(self):
        self.page.wait_for_load_state()
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def violations(self):
        self.page.wait_for_load_state()
        found = Axe().run(self.page, options=AXE).response["violations"]
        return [f"{one['id']}: {one['help']}: {_places(one)}" for one in found]

    def _said(self, message):
        if message.type in ("error", "warning") and not message.text.startswith(LOADING):
            self.troubles.append(f"console: {message.text}")

    def _failed(self, request):
        if request.failure != ABORTED:
            self.troubles.append(f"failed: {request.url}: {request.failure}")

    def _answered(self, response):
        if response.status >= 400 and response.status not in self.expected:
            self.troubles.append(f"{response.status}: {response.url}")


def _places(violation):
    return " | ".join(node["html"][:120] for node in violation["nodes"][:4])


def opened(context, base):
    return Tab(page=context.new_page(), base=base)
