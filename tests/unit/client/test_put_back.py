"""What an answer writes into files of the user's own: both or none, as they were otherwise."""

import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.launchfiles.cases import ABOUT, EXAMPLES
from tuner.client.from_file import (
    AsFast,
    Written,
    as_fast,
    changed_files,
    patched,
    put_back,
    put_into,
)
from tuner.client.from_file import read_question as question_of
from tuner.core.configuration import parse_settings
from tuner.core.framework import installed_versions
from tuner.core.quantity import Provenance, Quantity
from tuner.errors import TunerError, UsageError
from tuner.launchfiles import export
from tuner.launchfiles.files import open_file, read_text

MARK = b"\xef\xbb\xbf"


@pytest.fixture
def two(tmp_path):
    """Two files, of which the first is reached by a link and only its owner's."""
    (tmp_path / "real.json").write_bytes(MARK + b"one\r\n")
    (tmp_path / "real.json").chmod(0o600)
    (tmp_path / "ta.json").symlink_to("real.json")
    (tmp_path / "ds.json").write_bytes(b"two\n")
    changes = (("ta.json", "one\r\n", "ONE\r\n"), ("ds.json", "two\n", "TWO\n"))
    return [Written(path=tmp_path / name, was=was, text=new) for name, was, new in changes]


def there(folder):
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def test_links_marks_and_modes_stay_and_copies_are_as_private(two, tmp_path):
    (tmp_path / "ta.json.bak").write_bytes(b"of before")
    copies = put_back(two, backup=True)
    assert [one.name for one in copies] == ["ta.json.bak1", "ds.json.bak"]
    assert (tmp_path / "ta.json").is_symlink()
    one = MARK + b"one\r\n"
    assert there(tmp_path) == {
        "ta.json": MARK + b"ONE\r\n", "real.json": MARK + b"ONE\r\n", "ds.json": b"TWO\n",
        "ta.json.bak": b"of before", "ta.json.bak1": one, "ds.json.bak": b"two\n",
    }  # fmt: skip
    for name in ("real.json", "ta.json.bak1"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("backup", [True, False])
def test_where_one_cannot_be_written_both_stay(two, tmp_path, monkeypatch, backup):
    before, renamed = there(tmp_path), Path.replace

    def refused(path, target):
        if target.name == "ds.json":
            raise PermissionError(13, "Permission denied")
        return renamed(path, target)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refused)
    with pytest.raises(TunerError, match=r"ds.json cannot .*denied; every file is as it was"):
        put_back(two, backup=backup)
    assert there(tmp_path) == before
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TunerError, match=r"ta.json cannot .*No space left.*as it was"):
        put_back(two, backup=backup)
    assert there(tmp_path) == before


@pytest.mark.parametrize("backup", [True, False])
def test_what_could_not_be_put_back_is_named_and_kept(two, tmp_path, monkeypatch, backup):
    renamed, done = Path.replace, []

    def once(path, target):
        if done:
            raise OSError(5, "Input/output error")
        done.append(target)
        return renamed(path, target)

    monkeypatch.setattr(Path, "replace", once)
    with pytest.raises(TunerError, match=r"output error; \S+real.json has the answer") as said:
        put_back(two, backup=backup)
    (kept,) = tmp_path.glob(".*.tuner")
    assert str(kept) in str(said.value)
    assert kept.read_bytes() == MARK + b"one\r\n"
    assert (tmp_path / "ta.json.bak").exists() is backup


def test_what_was_changed_meanwhile_is_left(two, tmp_path):
    (tmp_path / "ds.json").write_bytes(b"\xe9\n")
    before = there(tmp_path)
    with pytest.raises(TunerError, match=r"ds.json was changed meanwhile: nothing is written"):
        put_back(two, backup=True)
    assert there(tmp_path) == before


ENGINE = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}
ARGUMENTS = {
    "output_dir": "out",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 4,
    "bf16": True,
    "deepspeed": "ds.json",
}


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """The Trainer's arguments in a folder, and another folder that is the current one."""
    (tmp_path / "here").mkdir()
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "own" / "args.json"
    path.write_text(json.dumps(ARGUMENTS), encoding="utf-8")
    return path


def rewritten(path):
    work = {"cluster": "8xh100-80gb", "model": "qwen2.5-0.5b", "sequence_length": 1024}
    question = question_of(str(path), None, {**work, "fidelity": "predicted"})
    asked = question.request.question(installed_versions())
    wanted = "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2"
    text, changes = patched(question, asked, parse_settings(f"{wanted},sync_each_batch=true"))
    files = changed_files(question, text, changes)
    put_back(files, backup=False)
    return [one.path.name for one in files]


def test_a_named_json_keeps_its_mark_and_its_line_ends(trainer):
    engine = trainer.with_name("ds.json")
    text = json.dumps({"train_micro_batch_size_per_gpu": 1, **ENGINE}, indent=2)
    engine.write_bytes(MARK + text.replace("\n", "\r\n").encode())
    assert rewritten(trainer) == ["args.json", "ds.json"]
    data = engine.read_bytes()
    assert data.startswith(MARK)
    assert data.count(b"\n") == data.count(b"\r\n")
    assert json.loads(data.decode("utf-8-sig"))["zero_optimization"] == {"stage": 3}


def test_json_in_the_place_of_a_name_is_read_and_changed(trainer):
    trainer.write_text(json.dumps({**ARGUMENTS, "deepspeed": json.dumps(ENGINE)}))
    assert rewritten(trainer) == ["args.json"]
    engine = json.loads(json.loads(trainer.read_text())["deepspeed"])
    assert (engine["zero_optimization"], engine["bf16"]) == ({"stage": 3}, ENGINE["bf16"])


def test_a_named_json_that_cannot_be_read_is_refused(trainer):
    trainer.with_name("ds.json").write_bytes('{"a": "é"}'.encode("latin-1"))
    with pytest.raises(UsageError, match=r"deepspeed: got 'ds.json'; cannot be read: .*utf-8"):
        open_file(str(trainer))
    trainer.write_text(json.dumps({**ARGUMENTS, "deepspeed": "d" * 300}))
    with pytest.raises(UsageError, match=r"deepspeed: .*cannot be read: File name too long"):
        open_file(str(trainer))


def test_a_named_json_is_the_one_that_launchers_open(trainer, monkeypatch):
    own, here = trainer.with_name("ds.json"), Path("ds.json")
    own.write_text(json.dumps(ENGINE))
    assert open_file(str(trainer)).other.path == own
    here.write_text(json.dumps(ENGINE))
    assert open_file(str(trainer)).other.path == here
    here.write_text(json.dumps({**ENGINE, "zero_optimization": {"stage": 3}}))
    with pytest.raises(UsageError, match=r"could be \S+/here/ds.json, .* or \S+/own/ds.json, and"):
        open_file(str(trainer))
    monkeypatch.setenv("HOME", str(own.parent))
    trainer.write_text(json.dumps({**ARGUMENTS, "deepspeed": "~/ds.json"}))
    assert open_file("~/args.json").other.path == own


@pytest.mark.parametrize(
    ("rate", "spread", "why"),
    [(101, 0.001, AsFast.WITHIN), (110, 0.2, AsFast.UNTOLD), (110, 0.001, None)],
)
def test_why_a_file_is_kept(rate, spread, why):
    def figures(rate):
        def about(value):
            low, high = value * (1 - spread), value * (1 + spread)
            return Quantity(value=value, low=low, high=high, provenance=Provenance.MEASURED)

        time = about(100 / rate)
        speed = about(float(rate))
        return SimpleNamespace(seconds=time.value, spread_s=time, tokens_per_s_per_gpu=speed)

    own = figures(100)
    now = SimpleNamespace(
        fits_surely=True, trains_wrongly="", tokens_per_s_per_gpu=own.tokens_per_s_per_gpu,
        seen=SimpleNamespace(figures=own),
    )  # fmt: skip
    assert as_fast(now, figures(rate), 0.01) is why


def test_a_file_for_programs_is_exported_anew():
    question, settings = EXAMPLES["json"].parts()
    opened = read_text(export("json", question, settings, ABOUT), "tuned.json")
    with pytest.raises(UsageError, match="is of json, which is not changed: export the answer"):
        put_into(opened, "tuned.json", settings.as_dict(), question, settings)
