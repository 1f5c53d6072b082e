"""What every format keeps, over questions and settings of all kinds.

``TUNER_WRITE_GOLDEN=1`` writes the golden files of the formats instead of comparing.
"""

import ast
import json
import os
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.launchfiles.conftest import CASES, EXAMPLES, grid_parts
from tests.unit.launchfiles.readers import READERS, header_of, settings_in
from tuner.core.configuration import Settings, Sharding
from tuner.core.framework import FrameworkName
from tuner.core.quantity import Provenance
from tuner.core.script import is_sharded
from tuner.core.study import Question
from tuner.errors import UsageError
from tuner.launchfiles import FORMATS, About, Stack, export, why_not
from tuner.launchfiles.contract import sync_acts

GOLDEN = Path(__file__).parent / "golden" / "formats"
WITHOUT_COMMENTS = {"trainer", "deepspeed", "json"}
PARSERS = {
    ".yaml": yaml.safe_load,
    ".json": json.loads,
    ".toml": tomllib.loads,
    ".py": lambda text: ast.dump(ast.parse(text)),
    ".sh": lambda text: _statements(text),
    ".sbatch": lambda text: _statements(text),
    ".env": lambda text: _statements(text),
}


def _statements(text: str) -> list[str]:
    """Lines that a shell or Slurm looks at."""
    comments = (
        line.startswith("#") and not line.startswith(("#!", "#SBATCH")) for line in _l(text)
    )
    return [line for line, is_comment in zip(_l(text), comments, strict=True) if not is_comment]


def _l(text: str) -> list[str]:
    return text.split("\n")


def canonical(question: Question, settings: Settings) -> Settings:
    """The settings with dead knobs at one value."""
    ranks = settings.data_parallel_size(question.cluster.world_size)
    sharded = is_sharded(question, settings) or settings.sharding is Sharding.ZERO1
    if settings.sharding is Sharding.HYBRID_SHARD and question.cluster.nodes == 1:
        settings = replace(settings, sharding=Sharding.FULL_SHARD)  # within the only node
    return replace(
        settings,
        sharding=settings.sharding if sharded and ranks > 1 else Sharding.DDP,
        sync_each_batch=settings.sync_each_batch if sync_acts(question, settings) else True,
        tp_recompute_allgather=settings.tp_recompute_allgather and settings.tp_size > 1,
    )


@pytest.mark.parametrize("name", FORMATS)
def test_each_settings_is_refused_with_a_way_out_or_can_be_read_back(
    name: str, about: About
) -> None:
    """Of every class of settings on every kind of question, or the reason."""
    written = 0
    for question, chosen in (*(case.parts() for case in CASES.values()), *grid_parts()):
        reason = why_not(name, question, chosen)
        if reason is not None:
            assert "ask " in reason or "launch the" in reason, reason
            assert "\n" not in reason
            with pytest.raises(UsageError, match=r"^format: got "):
                export(name, question, chosen, about)
            continue
        written += 1
        text = export(name, question, chosen, about)
        found = settings_in(name, text, question)
        assert canonical(question, found) == canonical(question, chosen), text
    assert written > 5


@pytest.mark.parametrize("name", FORMATS)
def test_the_file_says_where_it_is_from(name: str, about: About) -> None:
    for question, chosen in (EXAMPLES[name].parts(), *grid_parts()[::17]):
        if why_not(name, question, chosen) is not None:
            continue
        text = export(name, question, chosen, about)
        assert text == export(name, question, chosen, about)
        assert text.endswith("\n")
        said = header_of(text) if name not in WITHOUT_COMMENTS else text
        for word in (about.study_id, about.date, str(about.provenance), *about.versions.values()):
            assert word in said, word
        if name != "trainer":  # a run's name has no room for more
            assert question.workload.model.name in said
            assert all(figure in said for figure in about.figures)
            assert name == "json" or str(chosen).replace(",", ", ") in said.replace(
                ",", ", "
            ).replace(",  ", ", ")


@pytest.mark.parametrize("name", FORMATS)
def test_the_file_says_that_its_figures_are_of_another_stack(name: str, about: About) -> None:
    """In its first lines; what has none says it beside itself."""
    known, seen = FORMATS[name], set()
    for question, chosen in (EXAMPLES[name].parts(), *grid_parts()):
        if why_not(name, question, chosen) is not None:
            continue
        text = export(name, question, chosen, about)
        said = header_of(text) if name not in WITHOUT_COMMENTS else text
        said = " ".join((said, *known.beside(question, chosen)))
        is_nanotron = question.framework.name is FrameworkName.NANOTRON
        own = {Stack.NANOTRON} if is_nanotron else {Stack.TORCH}
        differs = known.stack not in {Stack.ANY, *own}
        of = "nanotron" if is_nanotron else "torch's own sharding (FSDP2 or DDP)"
        assert (f"The figures are of {of}; " in said) is differs, said
        numbers = is_nanotron and differs and known.stack is not Stack.DEEPSPEED
        assert ("with this file both are in bf16" in said) is numbers
        seen.add((is_nanotron, differs))
    assert (True, known.stack not in {Stack.ANY, Stack.NANOTRON}) in seen


@pytest.mark.parametrize("name", FORMATS)
def test_golden_file(name: str, about: About) -> None:
    golden = GOLDEN / name / FORMATS[name].file_name
    text = export(name, *EXAMPLES[name].parts(), about)
    if os.environ.get("TUNER_WRITE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_there_are_no_other_golden_files() -> None:
    names = {path.parent.name for path in GOLDEN.rglob("*") if path.is_file()}
    assert names == set(FORMATS) == set(EXAMPLES) == set(READERS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_known_by_its_name_and_names_a_file(name: str) -> None:
    known = FORMATS[name]
    assert known.name == name
    assert PurePath(known.file_name).name == known.file_name
    assert "/" in known.media_type
    assert len({one.file_name for one in FORMATS.values()}) == len(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_the_command_that_starts_a_file_names_it(name: str) -> None:
    known, question = FORMATS[name], EXAMPLES[name].parts()[0]
    if known.argv is not None:
        argv = known.argv(question, "a file.x")
        assert name == "torch" or "a file.x" in argv  # torch's is imported
        assert all(argv)


HOSTILE = st.text(
    st.one_of(st.characters(), st.sampled_from("\n\r\x00\x85\u2028\u2029`'\"$\\#{}[]:;|&<>()!%"))
).map(lambda text: f"x{text}")


@pytest.mark.parametrize("name", FORMATS)
@given(hostile=HOSTILE)
@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
def test_nothing_can_leave_a_comment_or_a_quote(name: str, hostile: str) -> None:
    """Names of others change what a parser reads where they are values, and nowhere else."""
    question, chosen = EXAMPLES[name].parts()
    plain = _about("harmless")
    told = _about(hostile)
    model = replace(question.workload.model)
    object.__setattr__(model, "name", hostile)  # past its own checks
    named = replace(question, workload=replace(question.workload, model=model))
    parse = PARSERS[PurePath(FORMATS[name].file_name).suffix]
    before = parse(export(name, question, chosen, plain))
    after = parse(export(name, named, chosen, told))
    assert _structure(before) == _structure(after)
    text = export(name, named, chosen, told)
    assert canonical(question, settings_in(name, text, named)) == canonical(question, chosen)


def _about(text: str) -> About:
    return About(
        study_id=text, date=text, provenance=Provenance.UNKNOWN, versions={"torch": text},
        figures=(text,),
    )  # fmt: skip


TOLD = (
    "export TUNED_STUDY_ID=",
    "export TUNED_DATE=",
    "export TUNED_MODEL=",
    "#SBATCH --job-name=tuned",
    "    --run_name ",
)
"""Lines of shell scripts with values of others."""


def _structure(value: Any) -> Any:
    """A document without the values that are told of others: a study, a date, a model's name."""
    if isinstance(value, dict):
        own = {
            "run_name",
            "tuner",
            "study_id",
            "date",
            "versions",
            "figures",
            "model_name",
            "metadata",
        }
        return {key: None if key in own else _structure(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_structure(item) for item in value]
    if isinstance(value, str):
        return next((start for start in TOLD if value.startswith(start)), value)
    return value


@pytest.mark.parametrize("name", ["env", "torchrun", "sbatch", "trainer-flags"])
def test_a_shell_takes_hostile_names_for_what_they_are(name: str, tmp_path: Path) -> None:
    hostile = "x'; touch broken; echo '$(touch broken) `touch broken` \"\n touch broken #"
    question, chosen = EXAMPLES[name].parts()
    text = export(name, question, chosen, _about(hostile))
    checked = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    if name == "env":
        (tmp_path / "tuned.env").write_text(text, encoding="utf-8")
        command = '. ./tuned.env && printf %s "$TUNED_STUDY_ID"'
        found = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
        assert found.stdout == hostile.replace("\n", " ").replace("`", "'")
        assert not (tmp_path / "broken").exists()
