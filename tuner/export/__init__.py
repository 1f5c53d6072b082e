"""Settings as the file that the user's launcher reads, one module per launcher."""

from collections.abc import Mapping

from tuner.errors import UnknownNameError, UsageError
from tuner.export import accelerate
from tuner.export.contract import About, Format
from tuner.settings import Settings
from tuner.study import Question

__all__ = ["FORMATS", "About", "Format", "export", "why_not"]

FORMATS: Mapping[str, Format] = {known.name: known for known in (accelerate.FORMAT,)}
"""Every format by its name."""


def export(format_name: str, question: Question, settings: Settings, about: About) -> str:
    """The text of the launcher's file for ``settings``.

    Raises:
        UnknownNameError: there is no such format.
        UsageError: the format cannot express the settings; with the reason.
    """
    reason = why_not(format_name, question, settings)
    if reason is not None:
        raise UsageError("format", format_name, reason)
    return FORMATS[format_name].render(question, settings, about)


def why_not(format_name: str, question: Question, settings: Settings) -> str | None:
    """Why the format cannot express ``settings`` and what to do about it; ``None`` if it can.

    Raises:
        UnknownNameError: there is no such format.
    """
    if format_name not in FORMATS:
        raise UnknownNameError("format", format_name, FORMATS)
    return FORMATS[format_name].why_not(question, settings)
