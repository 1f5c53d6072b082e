"""What is imported before any dry run."""

import subprocess
import sys

PRELOAD = """
import sys
from workers.probe.dry.__main__ import preload
preload()
assert "workers.probe.dry.run" in sys.modules
print(sorted({"torchao", "tuner", "pandas", "scipy"} & set(sys.modules)))
"""


def test_nothing_is_imported_that_few_dry_runs_need() -> None:
    """torchao, which transformers imports where it is installed, among them."""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", PRELOAD], capture_output=True, text=True, timeout=600,
        check=True,
    )  # fmt: skip
    assert ended.stdout == "[]\n"
    assert ended.stderr == ""
