"""The system's Chromium, driven by Playwright."""

import shutil
from contextlib import contextmanager

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # root has none, as in containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WITHIN_MS = 120_000


def find_chromium():
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def chromium(path):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=list(FLAGS), timeout=WITHIN_MS
        )
        try:
            yield browser
        finally:
            browser.close()
