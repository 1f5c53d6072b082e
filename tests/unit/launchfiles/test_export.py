"""The way in to all formats; what each of them keeps is in test_contract.py."""

from collections.abc import Mapping
from typing import Any

import pytest

from tuner.errors import UnknownNameError, UsageError
from tuner.launchfiles import About, export, why_not


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
