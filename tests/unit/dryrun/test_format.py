"""Dry runs that are kept are those of the program as it is.

When a test here fails, the code that decides a dry run's figures has changed. Do the figures change
with it? Then raise ``FORMAT`` in tuner/dryrun/plan.py, so that no kept dry run is taken for a new
one. In both cases put the new values, which the failure shows, into ``PINNED``.
"""

import ast
import hashlib
from pathlib import Path

import tuner
from tuner.dryrun.plan import DRY_RUN_FORMAT as FORMAT

PINNED = (4, "bcc2bfe9e45eb00879608c60871d93b6fbf97dbff08e4b87c1750130c763769f")
"""``FORMAT``, and the digest of the sources that it stands for."""
ROOT = Path(tuner.__file__).parent.parent
PROGRAM = ROOT / "workers" / "probe" / "dry" / "run.py"
"""From here on all that the dry-run program imports of ours decides figures. What starts dry runs
and ends them does not."""
DEPTHS = ROOT / "tuner" / "dryrun" / "plan.py"
"""Which shallow models are run."""


def test_figures_that_change_raise_the_format():
    found = (FORMAT, digest([*sources(PROGRAM), DEPTHS]))
    assert found == PINNED, f"see the docstring of {Path(__file__).name}: PINNED = {found}"


def test_words_and_layout_decide_nothing():
    same = '"""Doc."""\nA = 1  # why\n"""Unit."""\ndef f(x):\n    """More."""\n    return (x + A)\n'
    assert tokens_of(same) == tokens_of("A = 1\ndef f(x): return x+A")
    assert tokens_of(same) != tokens_of("A = 2\ndef f(x): return x+A")
    assert tokens_of("f'{a} b'") != tokens_of("f'{a} c'")


def sources(path):
    """A file and all of workers.probe that it imports, directly or not."""
    found, left = set[Path](), [path]
    while left:
        here = left.pop()
        if here not in found:
            found.add(here)
            left += imported(here)
    return sorted(found)


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workers.probe"):
            module = ROOT.joinpath(*str(node.module).split("."))
            for place in (module, *(module / name.name for name in node.names)):
                known = (place.with_suffix(".py"), place / "__init__.py")
                yield from (found for found in known if found.is_file())


def digest(paths):
    found = hashlib.sha256()
    for path in paths:
        found.update(f"{path.relative_to(ROOT).as_posix()}\n".encode())
        found.update("\n".join(tokens_of(path.read_text())).encode())
    return found.hexdigest()


def tokens_of(text):
    """Code without comments, layout and docstrings, alike in all versions of Python."""
    return list(tokens(ast.parse(text)))


def tokens(value):
    """Of syntax; what a node does not have is left out, as versions differ in naming it."""
    if isinstance(value, ast.AST):
        yield type(value).__name__
        for name, inner in ast.iter_fields(value):
            if inner not in (None, []) and name != "kind":
                yield from (name, *tokens(inner), ".")
    elif isinstance(value, list):
        for inner in value:
            if not is_text(inner):
                yield from tokens(inner)
    else:
        yield repr(value)


def is_text(node):
    """A statement that is nothing but text."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
