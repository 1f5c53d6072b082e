import os
from pathlib import Path

import pytest

from tuner.client.answered import Target, check_path, read_path, read_targets, write_text
from tuner.core.study import Question
from tuner.errors import TunerError, UsageError
from tuner.space import enumerate_space


def test_targets_are_read(question: Question, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    targets = read_targets([f"accelerate={path}"], question, enumerate_space(question))
    assert targets == (Target(format_name="accelerate", path=path),)


def test_one_file_for_two_targets_is_refused(question: Question, tmp_path: Path) -> None:
    texts = [f"accelerate={tmp_path}/a.yaml", f"accelerate={tmp_path}/./a.yaml"]
    with pytest.raises(UsageError, match=r"names one file twice"):
        read_targets(texts, question, enumerate_space(question))


def test_a_path_that_may_not_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as root, everything may be
    with pytest.raises(UsageError, match=r"^write: .*; cannot be written: permission denied"):
        check_path("write", tmp_path / "a.yaml")


@pytest.mark.parametrize("name", ["z" * 300, "~nobody-of-this-name/a.yaml", "."])
def test_what_is_no_path_of_a_file_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"^write: got "):
        read_path("write", name)


def test_a_write_that_fails_after_all_is_no_usage_error(tmp_path: Path) -> None:
    with pytest.raises(TunerError, match=r"cannot be written: No such file") as caught:
        write_text(tmp_path / "gone" / "a.yaml", "")
    assert caught.value.exit_code == 1
