"""A study from the form to its file, with a real worker that runs a real model's steps."""

import json
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import expect

from tests.system.browser.conftest import OpenTab, Service
from tests.system.browser.test_new import fill, start
from tests.system.browser.working import working

MEASURED_MS = 240_000
"""Milliseconds for two probes and small replicas, each in own processes, on a busy machine."""


@pytest.mark.long
def test_a_study_is_started_watched_and_taken_home(
    open_tab: OpenTab, service: Service, tmp_path: Path
) -> None:
    tab = open_tab("/new", permissions=["clipboard-read", "clipboard-write"])
    page = tab.page
    fill(page, **{"Global batch size": "4", "Sequence length": "64", "Probes at most": "2"})
    page.get_by_label("Framework").select_option("accelerate")
    page.get_by_label("How probes are run").select_option("measured")
    page.get_by_text("Restrict knobs, limits and versions").click()
    page.locator('input[name="knobs.activation_checkpointing"][value="none"]').check()
    start(page)
    expect(page.locator(".state").first).to_have_text("queued")
    with working(service.database, tmp_path):
        expect(page.locator(".state-running").first).to_be_visible(timeout=MEASURED_MS)
        expect(page.locator("#answer-title")).to_have_text("Best so far", timeout=MEASURED_MS)
        expect(page.locator("#answer-title")).to_have_text("Run this", timeout=MEASURED_MS)
    expect(page.locator(".marks .provenance-measured")).to_be_visible()
    assert page.locator("#probes-table tbody tr .o-ok").count() >= 1

    page.locator("label[for=tab-accelerate]").click()
    with page.expect_download() as waited:
        page.locator(".tab", has=page.locator("#text-accelerate")).get_by_role(
            "link", name="Download"
        ).click()
    written = yaml.safe_load(waited.value.path().read_text())
    assert written["num_processes"] == 2
    page.locator("label[for=tab-settings]").click()
    settings = json.loads(page.locator("#text-settings").text_content() or "")
    best = service.store.study(tab.path.split("/")[2].partition("?")[0])
    assert settings in [probe.request.settings.as_dict() for probe in best.probes]
