"""Transcripts of answers without a device, in pages, are what the command prints."""

import re
import shlex

import pytest

from tests.system.docs.pages import blocks
from tuner.cli import main


def masked(text):
    """Without figures, which change with releases, and with the breaks of lines that follow."""
    return " ".join(re.sub(r"\d[\d,.]*", "N", text).split())


@pytest.mark.long
def test_what_is_shown_of_a_file_is_what_is_printed(tmp_path, monkeypatch, capsys):
    shown = [one for one in blocks("docs/exports.md") if one.language in ("yml", "sh", "text")]
    own, command, said = (one.text for one in shown[:3])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "train.yml").write_text(own)
    words = [*shlex.split(command)[1:], "--db", f"sqlite:///{tmp_path}/studies.db"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert masked(printed[printed.index("Your file:") :]) == masked(said)
    assert (tmp_path / "train.yml").read_text() == own  # --diff shows only
    assert main([*words, "--in-place"]) == 0
    assert (tmp_path / "train.yml.bak").read_text() == own
    changed = (tmp_path / "train.yml").read_text()
    added = {line[1:] for line in said.splitlines() if re.match(r"\+[^+]", line)}
    new = set(changed.splitlines()) - set(own.splitlines())
    assert {masked(one) for one in new} == {masked(one) for one in added}


def test_changes_shown_of_a_deepspeed_file_are_printed(tmp_path, monkeypatch, capsys):
    page = [one for one in blocks("docs/prediction.md") if one.language in ("json", "sh", "text")]
    first = next(place for place, one in enumerate(page) if one.language == "json")
    own, command, said = (one.text for one in page[first : first + 3])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "ds.json").write_text(own)
    assert main([*shlex.split(command)[1:], "--db", f"sqlite:///{tmp_path}/studies.db"]) == 0
    printed = capsys.readouterr().out
    assert masked(printed[printed.index("--- ds.json") :]) == masked(said)


def test_sizes_shown_are_printed(tmp_path, monkeypatch, capsys):
    page = blocks("docs/cli.md")
    shown = next(place for place, one in enumerate(page) if one.language == "text")
    command, said = (one.text for one in page[shown - 1 : shown + 1])
    monkeypatch.setenv("COLUMNS", "100")
    words = shlex.split(command.replace("\\\n", " "))
    assert main([*words[1:], "--db", f"sqlite:///{tmp_path}/studies.db"]) == 0
    assert capsys.readouterr().out.split() == said.split()
