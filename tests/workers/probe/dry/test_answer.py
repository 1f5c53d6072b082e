"""What an error of a dry run says: of the stack, of the machine, or of the program itself."""

from types import SimpleNamespace
from typing import Any

import pytest

from workers.probe.dry import answer
from workers.probe.dry.answer import _dry_run


def raised(code: str, path: str) -> Exception:
    """The error of running ``code`` as if it stood in the file ``path``."""
    with pytest.raises(Exception) as caught:
        exec(compile(code, path, "exec"), {})
    return caught.value


OURS = str(answer.OURS / "dry" / "ledger.py")
THEIRS = "/site-packages/transformers/models/some/modeling_some.py"


@pytest.mark.parametrize(
    ("code", "path", "rule"),
    [
        ("{}['missing']", THEIRS, "stack"),
        ("assert not 1", THEIRS, "stack"),
        ("raise ValueError('no such value')", THEIRS, "stack"),
        ("{}['missing']", OURS, ""),
        ("None.shape", OURS, ""),
        ("raise ValueError('refused')", OURS, "stack"),
        ("raise RuntimeError('of anything')", THEIRS, ""),
    ],
)
def test_mistakes_of_the_program_refuse_no_settings(
    code: str, path: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(raised(code, path), monkeypatch)["rule"] == rule


@pytest.mark.parametrize(("path", "operator"), [(THEIRS, "aten.mm.default"), (OURS, "")])
def test_nor_do_they_within_an_operator(
    path: str, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "operator_of", lambda _: "aten.mm.default")
    assert told(raised("assert not 1", path), monkeypatch)["operator"] == operator


def told(error: Exception, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is answered where a dry run ends with ``error``."""

    class Broken:
        phase = SimpleNamespace(name="forward")

        def __init__(self, *_: object) -> None:
            pass

        def run(self) -> None:
            raise error

    monkeypatch.setattr(answer, "DryRun", Broken)
    monkeypatch.setattr(answer, "join_fake_group", lambda _: None)
    request: Any = SimpleNamespace(spec=SimpleNamespace(world_size=1))
    progress: Any = None
    found: dict[str, Any] = _dry_run(request, progress)["error"]
    return found
