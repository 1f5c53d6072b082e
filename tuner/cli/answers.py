"""An answer shown, and its files written."""

from tuner.asking.answered import Answered
from tuner.cli.console import stdout_console
from tuner.cli.errors import print_json, report
from tuner.cli.render import show_answer, show_end, show_evidence


def show_answered(answered: Answered, *, as_json: bool) -> int:
    """Show an answer, and write its files; the exit code.

    Raises:
        TunerError: a file cannot be written after all.
    """
    if as_json:
        print_json(answered.as_json)
        answered.write()
    else:
        console = stdout_console()
        show_evidence(console, answered.study, answered.suggestion)
        show_answer(console, answered.study, answered.suggestion)
        answered.write()
        show_end(console, answered.suggestion, tuple(answered.files))
    return 0 if answered.why_none is None else report(answered.why_none, as_json=False)
