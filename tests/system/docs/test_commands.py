"""Every shell command that a page shows is run as it stands there, or is known not to be, and why.

Names that stand for a reader's own (a study's id, an address, a folder) are put in. All are run in
one folder, over one database: by a shell, or in this process where a shell has nothing to do.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from api.app import create_app
from api.settings import Settings
from tests.models import TINY
from tests.process.api.live import serving
from tests.questions import question_about
from tests.system.docs.command_line import command_of, parsed
from tests.system.docs.not_run import NOT_RUN, why_not
from tests.system.docs.pages import PAGES, ROOT, blocks, commands, name_of, text
from tests.unit.made import ok, stored
from tuner.cli import main
from tuner.cli.app import COMMANDS
from tuner.store import open_store
from tuner.store.access import Keys
from tuner.store.tables import Scope

SHOWN = [command for page in PAGES for command in commands(name_of(page))]
# Once each.
RUN = [*{one.text: one for one in SHOWN if why_not(one) is None}.values()]
# They import torch: they dry-run, or train.
SLOW = re.compile(r"tuner (suggest|predict) (?!.*nanotron).*|accelerate launch .*", re.S)
# Exit codes that are not 0: there is no worker.
ENDS = {"tuner workers": 1, "tuner workers --here": 1}
SHOW = "accelerate launch --config_file accelerate.yaml show.py"
# What a page shows that a command prints.
SAID = {SHOW: "DistributedType.MULTI_CPU 2 processes, 2 micro-batches"}
LONGEST_S = 240.0  # for any of them: a machine may be busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where commands are run."""

    folder: Path
    environment: Mapping[str, str]
    own: Mapping[str, str]
    """What is put in, by a pattern of what stands there."""

    def run(self, shown):
        """Run a command, with what is one's own put in; its exit code, and what it said."""
        for pattern, own in self.own.items():
            shown = re.sub(pattern, own, shown)
        program, *words = shlex.split(shown)
        if program == "tuner" and not re.search(r"[<>|&;$`*]", shown):
            with chdir(self.folder), patch.dict(os.environ, self.environment, clear=True):
                return main(words), ""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", shown], cwd=self.folder, env=dict(self.environment),
            capture_output=True, text=True, check=False, timeout=LONGEST_S,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_database):
    """A folder with what pages take to be there, and a service over its database."""
    folder = tmp_path_factory.mktemp("shown")
    url = make_database(folder / "studies.db")
    environment = _environment(folder, url)
    _fill(folder)
    with open_store(url) as store, patch.dict(os.environ, environment, clear=True):
        found = "sharding=ddp,micro_batch_size=1,sync_each_batch=false"
        study = stored(store, _question(folder), (found, ok(0.5, 100.0)))
        config = f"{folder}/accelerate.yaml"
        assert main(["export", study.id, "accelerate", "--write", config]) == 0
        nanotron = _nanotron(folder)
        key, _ = Keys(store.transactions).create("shown", Scope.SUBMIT, by="somebody")
    with open_store(url) as store, serving(create_app(store, Settings(_env_file=None))) as address:
        yield Place(
            folder=folder,
            environment=environment,
            own={
                r"\bst-[0-9a-f]{4}\b(?= nanotron| kubernetes)": nanotron,
                r"\bst-[0-9a-f]{4}\b|(?<=/tune/)ID\b": study.id,
                r"(?<=keys revoke )(ID|5c1f)": key.id,
                r"(http://)?(127\.0\.0\.1|localhost):8765": address,
                r"/backup/": f"{folder}/backup/",
            },
        )


def _fill(folder):
    """Put files there that pages tell the reader to make."""
    (folder / "backup").mkdir()
    (case,) = [one.text for one in blocks("docs/quickstart.md") if one.language == "json"]
    (folder / "cases.jsonl").write_text(case)
    (script,) = [one.text for one in blocks("docs/quickstart.md") if one.language == "python"]
    (folder / "show.py").write_text(script)
    (zero,) = [one.text for one in blocks("docs/prediction.md") if one.language == "json"]
    (folder / "ds.json").write_text(zero)
    (own,) = [one.text for one in blocks("docs/exports.md") if one.language == "yml"]
    (folder / "train.yml").write_text(own)


def _question(folder):
    """Of a tiny model on two CPU ranks."""
    path = folder / "tiny.json"
    path.write_text(json.dumps(TINY))
    return question_about(str(path), "cpu:2", "accelerate", tokens=32, batch=8)


def _environment(folder, url):
    """That of a user of one's own, who has nothing but what is installed here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    return {
        **kept,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")]),
        "PYTHONPATH": str(ROOT),
        "TUNER_DB": url,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_DATA_HOME": str(folder / "share"),
        "TMPDIR": str(folder),
    }


def _nanotron(folder):
    """The id of a study for GPUs, whose answer is predicted without a dry run, and its file."""
    argv = ["suggest", "--model", "llama-3.1-8b", "--cluster", "8xh100-80gb", "--framework",
            "nanotron", "--fidelity", "predicted", "--global-batch-size", "64",
            "--sequence-length", "4096", "--write", f"nanotron={folder}/config.yaml"]  # fmt: skip
    assert main(argv) == 0
    with open_store() as store:
        return store.studies()[0].id


def check_names(words):
    """A command of which some words are left out exists, and so do the options that are not."""
    names = [words[0]] if words[0] in COMMANDS or len(words) == 1 else words[:2]
    context = command_of(names)
    options = {name for one in context.command.get_params(context) for name in one.opts}
    own = [word for word in words if word.startswith("--") and " " not in word]
    named = {word.partition("=")[0] for word in own}
    assert named <= options, named - options


def check(shown, place):
    if shown.startswith("curl") and shutil.which("curl") is None:
        return
    code, said = place.run(shown)
    assert code == ENDS.get(shown, 0), (shown, said)
    assert SAID.get(shown, "") in said, shown
    if shown.startswith("curl"):
        assert '"status":4' not in said.replace(" ", ""), (shown, said)


@pytest.mark.xdist_group("docs")
def test_what_is_shown_runs(place):
    for command in RUN:
        if not SLOW.fullmatch(command.text):
            check(command.text, place)


@pytest.mark.long
@pytest.mark.xdist_group("docs")
@pytest.mark.parametrize(
    "shown", [one.text for one in RUN if SLOW.fullmatch(one.text)], ids=lambda text: text[:60]
)
def test_what_imports_torch_runs(shown, place):
    check(shown, place)


def test_commands_have_the_options_that_are_shown():
    for command in SHOWN:
        words = command.words
        if words[0] == "tuner":
            ends = (i for i, word in enumerate(words) if word in (">", "&", "|"))
            words = words[1 : next(ends, None)]
            if "..." in words:
                check_names(words)
            else:
                parsed(words)
    for page in PAGES:  # what is said of the command line in sentences and tables
        for shown in re.findall(r"`tuner ([^`]+)`", text(name_of(page))):
            if not shown[0].isupper():
                check_names(shlex.split(shown.split(" -- ")[0]))


def test_every_reason_is_one_of_a_command():
    assert set(NOT_RUN) == {why_not(one) for one in SHOWN} - {None}
