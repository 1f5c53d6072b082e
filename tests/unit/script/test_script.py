"""A script as a part of a question: its files, its identity, and what it may not be."""

from dataclasses import replace

import pytest

from tests.unit.script.conftest import BATCH
from tuner.core.script import read_script
from tuner.core.study import Question
from tuner.errors import UsageError


def test_a_question_comes_back_from_json(ask, tmp_path):
    (tmp_path / "config.yaml").write_text("batch: {micro_batch_size}\n")
    question = ask(
        ("--config", "{template}"), environment=["STEPS={gradient_accumulation_steps}"],
        template="config.yaml",
    )  # fmt: skip
    again = Question.from_dict(question.as_dict())
    assert again == question
    assert again.identity == question.identity
    assert question.script.knobs == {"micro_batch_size", "gradient_accumulation_steps"}


def test_a_question_without_a_script_is_the_same_as_ever(ask):
    plain = replace(ask(), script=None)
    assert "script" not in plain.as_dict()
    assert plain.identity != ask().identity
    assert plain.kind != ask().kind
    assert Question.from_dict(plain.as_dict()).script is None


def test_an_edited_script_is_another_question(ask, tmp_path):
    before = ask()
    assert before.script.why_other == ""
    (tmp_path / "train.py").write_text("print('other steps')\n")
    assert "was edited since it was asked about" in before.script.why_other
    assert ask().identity != before.identity
    (tmp_path / "train.py").unlink()
    assert "cannot be read" in before.script.why_other


REFUSED = [
    ({"path": "missing.py"}, "script: got 'missing.py'; there is no such file"),
    ({"path": "large.py"}, "at most 1 MiB"),
    ({"template": "plain.yaml"}, "template: got 'plain.yaml'; has no placeholder"),
    ({"template": "binary"}, "must be text in UTF-8"),
    ({"template": "config.yaml"}, "no argument or --script-env says where it is"),
    ({"arguments": ("{template}",)}, "template: got nothing; {template} is used"),
    ({"environment": ["X"]}, "script_env: got 'X'; must look like"),
    ({"environment": ["X=1", "X=2"]}, "script_env: got 'X'; is given twice"),
    ({"environment": ["RANK={tp_size}"]}, "script_env: got 'RANK'; is not a name that may be"),
    ({"environment": ["PET_NNODES=2"]}, "is not a name that may be set"),
    ({"arguments": "--mb {micro_batch_size}"}, "arguments: got '--mb {micro_batch_size}'; must"),
    ({"path": "a\0b"}, "cannot be read"),
    ({"path": "~nobody-of-this-name/a.py"}, "is not a usable path"),
]


def test_what_is_refused(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "large.py").write_bytes(b"#" * ((1 << 20) + 1))
    (tmp_path / "plain.yaml").write_text("batch: 2\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe{micro_batch_size}")
    (tmp_path / "config.yaml").write_text("batch: {micro_batch_size}\n")
    for given, said in REFUSED:
        with pytest.raises(UsageError) as error:
            read_script(**{"path": "train.py", "arguments": BATCH, **given}, folder=tmp_path)
        assert said in str(error.value)
