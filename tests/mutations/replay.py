"""Plants mistakes in a copy of the product, one after another, and sees the tests fail.

    python -m tests.mutations.replay [--whole] [NAME...]

``mutations.toml`` has the mistakes, each with the tests that catch it: all of them are planted, or
those that are named. First the tests must pass in the unchanged copy. With ``--whole`` each mistake
meets all that ``make test`` runs. The exit code is 1 if one is missed.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Of one run of tests: a mistake may make them wait for ever.
LONGEST_S = 3600
# Tests of the text of sources, which see any mutation and say nothing of it.
OF_SOURCES = ("tests/unit/test_mutations.py", "tests/unit/dryrun/test_format.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    name: str
    kind: str
    """The mistake, in words."""
    file: str
    old: str
    """Text that is once in the file."""
    new: str
    tests: list[str]
    """Files of which one must fail."""


def mutations():
    values = tomllib.loads(Path(__file__).with_name("mutations.toml").read_text(encoding="utf-8"))
    return [Mutation(**each) for each in values["mutation"]]


def copy_of(root, to):
    """Copies what git knows, or does not ignore, as it is in the working tree."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def whole_selection(root):
    """The arguments of pytest in ``make test``."""
    recipe = re.search(r"^test:.*\n((?:\t.*\n)+)", (root / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None, "there is no make test"
    words = shlex.split(recipe[1].replace("\\\n", " "))
    return words[words.index("pytest") + 1 :]


def passes(root, arguments):
    """Runs tests in a copy: all passed, and the last lines of what was said."""
    environment = {
        **os.environ,
        # the copy, and not what is installed; bytecode of one second may be of another mutation
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    try:
        ended = subprocess.run(
            [*command, *arguments], cwd=root, env=environment, capture_output=True, text=True,
            check=False, timeout=LONGEST_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"ERROR (it does not end in {LONGEST_S} s)"
    said = ended.stdout + ended.stderr
    assert ended.returncode in (0, 1), said[-3000:]  # else it ran no tests
    return ended.returncode == 0, said


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--whole", action="store_true", help="run what make test runs")
    options = parser.parse_args()
    chosen = [m for m in mutations() if not options.names or m.name in options.names]
    if unknown := set(options.names) - {m.name for m in chosen}:
        parser.error(f"there is no mutation {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="mutated-") as folder:
        root = Path(folder)
        copy_of(ROOT, root)
        whole = [*whole_selection(ROOT), *(f"--ignore={name}" for name in OF_SOURCES)]
        named = sorted({test for mutation in chosen for test in mutation.tests})
        unchanged, said = passes(root, whole if options.whole else named)
        if not unchanged:
            print(f"the unchanged product fails:\n{said[-3000:]}")
            return 1
        missed = 0
        for mutation in chosen:
            started, path = time.monotonic(), root / mutation.file
            text = path.read_text(encoding="utf-8")
            assert text.count(mutation.old) == 1, f"{mutation.name}: {mutation.file} has changed"
            path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
            survived, said = passes(root, whole if options.whole else mutation.tests)
            path.write_text(text, encoding="utf-8")
            missed += survived
            by = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
            what = "MISSED" if survived else f"caught by {by[1] if by else 'an error'}"
            print(f"{mutation.name:28} {time.monotonic() - started:5.0f} s  {what}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
