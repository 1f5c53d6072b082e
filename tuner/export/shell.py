"""Lines of POSIX shell scripts, safely quoted."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from tuner.export.header import comments
from tuner.export.ranks import torchrun
from tuner.study import Question

MEDIA_TYPE = "text/x-shellscript"


def exports(values: Mapping[str, str]) -> Iterator[str]:
    """Variables for all that is started afterwards."""
    for name, value in values.items():
        yield f"export {name}={shlex.quote(value)}"


def usage(question: Question, file_name: str) -> Iterator[str]:
    """Comments: how the script is started."""
    nodes = question.cluster.nodes
    if nodes == 1:
        yield f"# sh {file_name} SCRIPT.py ARGUMENTS"
        return
    yield from comments(f"On each of the {nodes} nodes, with the address of one of them:")
    yield f"#     MASTER_ADDR=ADDRESS sh {file_name} SCRIPT.py ARGUMENTS"


def checks(question: Question, file_name: str) -> Iterator[str]:
    """Ends with what is missing: the training script, or a place for several nodes to meet."""
    yield f': "${{1:?usage: sh {file_name} SCRIPT.py ARGUMENTS}}"'
    if question.cluster.nodes > 1:
        yield ': "${MASTER_ADDR:?set it to the address of one of the nodes, the same on all}"'


def command(question: Question, flags: Sequence[str] = ()) -> str:
    """torchrun with the script's own arguments, and lines of flags after them."""
    start = shlex.join(torchrun(question)).replace("HOST:", '"$MASTER_ADDR":')
    return " \\\n    ".join([f'{start} "$@"', *flags])


def argv(question: Question, path: str) -> tuple[str, ...]:
    """The command that starts a script of this kind."""
    host = ("env", "MASTER_ADDR=HOST") if question.cluster.nodes > 1 else ()
    return (*host, "sh", path, "SCRIPT.py")
