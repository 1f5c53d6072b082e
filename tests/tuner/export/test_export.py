"""The contract that every launcher's module keeps, and the way in to all of them."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import pytest

from tuner.errors import UnknownNameError, UsageError
from tuner.export import FORMATS, About, export, why_not


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_renders_what_it_can_express(
    name: str, cases: Mapping[str, Any], about: About
) -> None:
    for case in cases.values():
        question, settings = case.parts()
        assert why_not(name, question, settings) is None
        text = export(name, question, settings, about)
        assert text == export(name, question, settings, about)
        assert text.endswith("\n")
        assert about.study_id in text
        assert about.date in text
        assert str(about.provenance) in text
        assert all(figure in text for figure in about.figures)
        assert question.workload.model.name in text


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_known_by_its_name_and_names_a_file(name: str) -> None:
    assert FORMATS[name].name == name
    assert PurePath(FORMATS[name].file_name).name == FORMATS[name].file_name


@pytest.mark.parametrize("function", [why_not, lambda *a: export(*a, None)])
def test_an_unknown_format_is_refused_with_the_nearest_names(
    function: Any, cases: Mapping[str, Any]
) -> None:
    with pytest.raises(UnknownNameError, match=r"format: got 'acelerate'; .*accelerate"):
        function("acelerate", *cases["full_shard"].parts())


def test_settings_that_a_format_cannot_express_are_refused(case: Any, about: About) -> None:
    question, settings = case(
        model="llama-3.1-8b", cluster="8xa100-80gb", settings="sharding=ddp,tp_size=4"
    ).parts()
    with pytest.raises(UsageError, match=r"^format: got 'accelerate'; .*--knob tp_size=1"):
        export("accelerate", question, settings, about)
