"""What is kept is of the program as it is.

When a test here fails, the code has changed that decides a dry run's figures, a replica's verdict
or a device's rates. May these change with it, because a fault is mended or was made? Then raise the
format, so that nothing that was kept is taken for new. In both cases put the new values, which the
failure shows, into ``PINNED``.
"""

import ast
import hashlib
from pathlib import Path

import tuner
from tuner.cost.calibration import FORMAT
from tuner.dryrun.plan import DRY_RUN_FORMAT
from tuner.guard.replica import GUARD_FORMAT

PINNED = {
    "dry run": (5, "9c3ec0b2dfbfaa95e5bbc140a3b23af858d673238ab9f7acb394f6f54a0d00a6"),
    "verdict": (5, "4782d79f9dca374194894d47e2a87c781e0ed0ba45e073e34da1ce8028867bee"),
    "rates": (3, "290425f2ae68dab9b23f7e0e6719639a8c5d2afc5790fc13aa687e6434d117d8"),
}
"""The format, and the digest of the sources that it stands for."""
ROOT = Path(tuner.__file__).parent.parent
PROBE, COST = ROOT / "workers" / "probe", ROOT / "tuner" / "cost"


def test_what_may_change_raises_its_format():
    """Of the program all that it imports of ours decides; what starts and ends it does not."""
    depths = ROOT / "tuner" / "dryrun" / "plan.py"
    judges = [
        *sorted((ROOT / "tuner" / "guard").glob("*.py")),
        depths,
        COST / "time" / "collectives.py",
        COST / "memory" / "step.py",
        COST / "memory" / "shards.py",
        ROOT / "workers" / "replicas.py",
        ROOT / "workers" / "measuring" / "merge.py",
        ROOT / "workers" / "measuring" / "records.py",
    ]
    timed = [PROBE / "calibrate.py", ROOT / "workers" / "calibrate.py"]
    fitted = [COST / "calibration_fit.py", COST / "calibration.py"]
    found = {
        "dry run": (DRY_RUN_FORMAT, digest([*sources(PROBE / "dry" / "run.py"), depths])),
        "verdict": (GUARD_FORMAT, digest([*sources(PROBE / "run.py"), *judges])),
        "rates": (FORMAT, digest([*timed, *fitted])),
    }
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
