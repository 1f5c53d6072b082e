"""What ``tuner export STUDY json`` writes, which says all."""

from collections.abc import Mapping
from typing import Any

from tuner.checking.fields import Fields
from tuner.checking.found import Found
from tuner.settings import Settings

NAME = "json"
MARKS = frozenset({"written_by"})
"""Fields that other files do not have."""


def read(values: Mapping[str, Any]) -> Found:
    """What the file says.

    Raises:
        UsageError: a field is wrong.
    """
    fields = Fields(values)
    fields.choice("written_by", {"tuner": True})
    fields.refuse("script", "is a study of a script of your own, which is not predicted")
    work, framework = fields.part("workload"), fields.part("framework")
    if "name" not in framework:
        raise framework.error("name", "is required")
    may = {name: (value,) for name, value in work.values.items()}
    may |= {"framework": (framework.values["name"],), "cluster": (fields.part("cluster").values,)}
    may["framework_versions"] = (framework.part("versions").values,)
    knobs = Settings.from_dict(fields.part("settings").values).as_dict()
    return Found(format_name=NAME, knobs=knobs, may=may)
