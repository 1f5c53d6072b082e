"""Models and clusters as people and programs name them.

Nothing of the planner is imported here: answering a file of cases needs none of it.
"""

import json
import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from tuner.catalog import models
from tuner.client.cases.reading import default_note
from tuner.core.cluster import Cluster, parse_cluster
from tuner.errors import UsageError
from tuner.model import ModelConfig, load_model, read_model_config

# Is given a line to show; what it returns is not looked at.
Say = Callable[[str], object]


# A model: a name of the catalogue, the path of a ``config.json``, its fields, or as it was read.
ModelLike = str | os.PathLike[str] | Mapping[str, Any] | ModelConfig


# A cluster: as it is spelled, its fields, or as it was read.
ClusterLike = str | Mapping[str, Any] | Cluster


def read_model(value: ModelLike) -> ModelConfig:
    """The model of a name, a file, or a configuration's fields.

    Raises:
        UsageError: as :func:`tuner.model.load_model`.
    """
    if isinstance(value, ModelConfig):
        return value
    if isinstance(value, Mapping):
        return read_model_config(value, name=str(value.get("_name_or_path") or "the model"))
    if not isinstance(value, str | os.PathLike):
        raise UsageError("model", value, "must be a name, a path, or the fields of a config.json")
    return load_model(os.fspath(value))


def model_note(value: ModelLike) -> str:
    """A sentence on sizes that a configuration leaves out; empty where none is, or it is known."""
    if isinstance(value, ModelConfig):
        return ""
    if isinstance(value, Mapping):
        return default_note(value)
    spec = os.fspath(value)
    if models.find(spec) is not None:
        return ""
    # a file, which load_model has found to be small and readable
    note = default_note(json.loads(Path(os.path.expanduser(spec)).read_bytes()))  # noqa: PTH111
    return note and f"{load_model(spec).name}: {note}"


def read_cluster(value: ClusterLike) -> Cluster:
    """The cluster of a spelling, a file's path, or its fields.

    Raises:
        UsageError: as :func:`tuner.core.cluster.parse_cluster`.
    """
    if isinstance(value, Cluster):
        return value
    if isinstance(value, Mapping):
        return Cluster.from_dict(value)
    if not isinstance(value, str):
        raise UsageError("cluster", value, "must be a spelling such as 8xa100-80gb, or its fields")
    return parse_cluster(value)


def plain(value: object) -> Any:
    """The value with numbers as Python has them: a notebook's are often NumPy's."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def check_mapping(field: str, value: object) -> Mapping[str, Any]:
    """The value, which must be a mapping.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(value, Mapping):
        raise UsageError(field, value, "must be a mapping, of values by name")
    return value


def silent(text: str) -> None:
    """Shows nothing."""
