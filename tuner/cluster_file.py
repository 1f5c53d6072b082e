"""A file that describes a cluster, read as plain values."""

import json
import tomllib
from pathlib import Path
from typing import Any

from tuner.errors import UsageError

LARGEST_FILE_BYTES = 64 * 1024


def read_cluster_file(path: Path) -> Any:
    """What a TOML or JSON file says, by the ending of its name; its fields are not looked at.

    Raises:
        UsageError: it cannot be read, is too large, or is not what its name says.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # a ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("cluster", str(path), f"cannot be read: {reason}") from error
    if len(data) > LARGEST_FILE_BYTES:
        raise UsageError("cluster", str(path), f"must be at most {LARGEST_FILE_BYTES} bytes")
    loads = tomllib.loads if path.suffix.lower() == ".toml" else json.loads
    try:
        return loads(data.decode())
    except (ValueError, RecursionError) as error:
        reason = str(error) or "nested too deeply"
        raise UsageError("cluster", str(path), f"is not {path.suffix[1:]}: {reason}") from error
