"""The service of studies: what has been asked, what was found, what to run."""

import json
from importlib.resources import files
from typing import Any

# Examples of the OpenAPI document: requests that are accepted, and answers, shortened.
EXAMPLES: dict[str, Any] = json.loads((files(__name__) / "examples.json").read_text("utf-8"))
