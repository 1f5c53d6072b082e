"""Examples of the OpenAPI document: requests that are accepted, and answers, shortened."""

import json
from importlib.resources import files
from typing import Any

EXAMPLES: dict[str, Any] = json.loads((files("api") / "examples.json").read_text("utf-8"))
