"""Sentences about a study, with its probes a click away."""

import re
from collections.abc import Collection

from markupsafe import Markup, escape

_COMMA = re.compile(r",(?=\w+=)")
_NUMBER = re.compile(r"#(\d{1,18})")
_CODE = re.compile(r"`([^`]+)`")
_CONTROLS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What turns the direction of all text that follows: a stranger's words may hold it."""
REPLACEMENT = "\ufffd"


def linked(text: str, study_id: str, probes: Collection[int]) -> Markup:
    """A sentence as HTML: settings may be wrapped, and the numbers of probes are links.

    Args:
        text: in plain words, in which ``#7`` is a probe.
        study_id: whose.
        probes: the numbers that its probes have; others, of other studies, are left as they are.
    """
    parts = _NUMBER.split(_CONTROLS.sub(REPLACEMENT, spaced(text)))
    shown = [_marked_up(parts[0])]
    for number, rest in zip(parts[1::2], parts[2::2], strict=True):
        shown.append(_link(study_id, number) if int(number) in probes else escape(f"#{number}"))
        shown.append(_marked_up(rest))
    return Markup("").join(shown)


def spaced(text: str) -> str:
    """A sentence in which settings, which have no spaces, can be wrapped."""
    return _COMMA.sub(", ", text)


def sentence(text: str) -> str:
    """The same, with a capital at its beginning."""
    return spaced(text[:1].upper() + text[1:])


def probe_path(study_id: str, probe_id: int | str) -> str:
    """Where the evidence of a probe is."""
    return f"/studies/{study_id}/probes/{probe_id}"


def _marked_up(text: str) -> Markup:
    """Escaped, with what stands between backticks as code."""
    parts = _CODE.split(text)
    shown = [escape(parts[0])]
    for code, rest in zip(parts[1::2], parts[2::2], strict=True):
        shown += [Markup("<code>{}</code>").format(code), escape(rest)]
    return Markup("").join(shown)


def _link(study_id: str, number: str) -> Markup:
    return Markup('<a href="{}">#{}</a>').format(probe_path(study_id, number), number)
