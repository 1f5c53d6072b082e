"""What an error of a dry run says: of the stack, of the machine, or of the program itself."""

import pytest

from workers.probe.dry import answer
from workers.probe.dry.answer import _rule


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
def test_mistakes_of_the_program_refuse_no_settings(code: str, path: str, rule: str) -> None:
    assert _rule(raised(code, path)) == rule
