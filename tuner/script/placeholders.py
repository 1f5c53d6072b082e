"""Placeholders in the command of a user's script, and in the template of its configuration file.

``{micro_batch_size}`` becomes the knob's value, and ``{activation_checkpointing=full?--recompute}``
becomes ``--recompute`` where the knob has that value, and nothing elsewhere. ``{{name}}`` stands
for ``{name}`` itself. Other braces, such as those of JSON, stay as they are.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuner.errors import UsageError
from tuner.settings import KNOBS, knob_value

OTHERS = ("global_batch_size", "sequence_length", "world_size", "data_parallel_size")
"""What a placeholder may name beside knobs and the rendered template."""
TEMPLATE = "template"
"""The placeholder of the rendered template's path."""
NAMES = (*KNOBS, *OTHERS, TEMPLATE)
"""All that a placeholder may name."""

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_TOKEN = re.compile(
    rf"\{{\{{(?P<literal>{_NAME}[^{{}}]*)\}}\}}|\{{(?P<name>{_NAME})(?P<rest>=[^{{}}]*)?\}}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placeholder:
    """One placeholder of a text."""

    name: str
    """What it names."""
    value: str | None
    """The value at which its own text stands; ``None`` where it becomes the value itself."""
    text: str
    """That text."""


def used_in(field: str, text: str) -> frozenset[str]:
    """The names of the placeholders in a text.

    Args:
        field: what an error calls the text.
        text: which may hold placeholders.

    Raises:
        UsageError: one names nothing that there is, or a value that its knob cannot have.
    """
    return frozenset(found.name for found in _placeholders(field, text))


def render(text: str, values: Mapping[str, str]) -> str:
    """A text with its placeholders filled.

    Args:
        text: as :func:`used_in` has checked it.
        values: of all that it names.
    """

    def filled(match: re.Match[str]) -> str:
        if literal := match["literal"]:
            return "{" + literal + "}"
        found = _placeholder("", match)
        if found.value is None:
            return values[found.name]
        return found.text if values[found.name] == found.value else ""

    return _TOKEN.sub(filled, text)


def is_optional(text: str) -> bool:
    """Whether a text is nothing but one placeholder that may become nothing."""
    match = _TOKEN.fullmatch(text)
    return match is not None and match["rest"] is not None


def _placeholders(field: str, text: str) -> Iterator[_Placeholder]:
    for match in _TOKEN.finditer(text):
        if not match["literal"]:
            yield _placeholder(field, match)


def _placeholder(field: str, match: re.Match[str]) -> _Placeholder:
    name, rest = match["name"], match["rest"]
    if name not in NAMES:
        raise UsageError(
            field,
            match[0],
            f"no such placeholder; there are {', '.join(f'{{{known}}}' for known in NAMES)}."
            f" Write {{{match[0]}}} for {match[0]} itself",
        )
    if rest is None:
        return _Placeholder(name=name, value=None, text="")
    value, question_mark, text = rest[1:].partition("?")
    if not question_mark or name not in KNOBS:
        allowed = "must look like {KNOB}, or {KNOB=VALUE?TEXT} for a text at one value of a knob"
        raise UsageError(field, match[0], allowed)
    return _Placeholder(name=name, value=shown(knob_value(name, value)), text=text)


def shown(value: object) -> str:
    """A value as it is put in the place of a placeholder: true and false are lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)
