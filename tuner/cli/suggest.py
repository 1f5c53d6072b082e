"""``tuner suggest``: probe, and answer."""

from tuner.asking.suggesting import Place, answer_at
from tuner.cli.answers import show_answered
from tuner.cli.asked import read_budget, read_wanted
from tuner.cli.options import SuggestAsked
from tuner.cli.terminal import Terminal


def run(asked: SuggestAsked) -> int:
    """Answer the question; the exit code.

    Raises:
        UsageError: something about the question is wrong; nothing was written then.
        TunerError: it could not be answered.
    """
    place = Place(server=asked.server, replaces=asked.replace, db=asked.db)
    wanted = read_wanted(asked, **read_budget(asked))
    answered = answer_at(place, wanted, Terminal(), asked.write or ())
    return show_answered(answered, as_json=asked.json)
