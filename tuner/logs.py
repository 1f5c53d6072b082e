"""Logs of our processes: one line each on stderr, with the study, probe and attempt it is about.

Code logs with :mod:`logging`, as libraries do; fields go into ``extra``. What a process is at is
bound once, by :func:`bound`, and stands in every line until then, also in those of libraries.
"""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TextIO

from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.dev import Column, ConsoleRenderer, KeyValueColumnFormatter, plain_traceback
from structlog.processors import EventRenamer, JSONRenderer, TimeStamper, format_exc_info
from structlog.stdlib import ExtraAdder, ProcessorFormatter, add_log_level, add_logger_name
from structlog.typing import EventDict, Processor

from tuner.errors import UsageError

# Values of ``TUNER_LOG``.
FORMATS = ("json", "text")
# Loggers of which everything from INFO up is shown; of others from WARNING up.
OURS = ("tuner", "workers", "api", "__main__")

# What a JSON line begins with; the other fields follow by name.
FIRST = ("timestamp", "level", "process", "logger", "message")


def set_up_logs(
    process: str, *, is_service: bool = True, stream: TextIO | None = None
) -> logging.Handler:
    """Sends all logs of this process, and Python's warnings, to one stream; ``main`` calls it once.

    ``TUNER_LOG`` says whether lines are ``json`` (one object each) or ``text``. By default they
    are text, but JSON of a service whose stderr is no terminal.

    Raises:
        UsageError: ``TUNER_LOG`` is something else.
    """
    stream, said = stream or sys.stderr, os.environ.get("TUNER_LOG", "")
    if said and said not in FORMATS:
        raise UsageError("TUNER_LOG", said, f"must be one of {', '.join(FORMATS)}")
    as_json = said == "json" or (not said and is_service and not stream.isatty())
    processors: list[Processor] = [
        merge_contextvars,
        ExtraAdder(),
        _without("_ray_timestamp_ns"),  # Ray puts it on every record once it is imported
        add_log_level,
        add_logger_name,
        lambda logger, method, line: {**line, "process": process},
        TimeStamper(fmt="iso" if as_json else "%Y-%m-%d %H:%M:%S", utc=as_json),
    ]
    shown: list[Processor] = _text()
    if as_json:
        shown = [format_exc_info, EventRenamer("message"), _in_order, JSONRenderer(default=str)]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=processors,
            processors=[ProcessorFormatter.remove_processors_meta, *shown],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    return handler


def bound(**fields: object) -> AbstractContextManager[None]:
    """While entered, these fields stand in every line of this thread, or asynchronous task.

    Their usual names are ``study``, ``probe``, ``attempt``, ``worker`` and ``request``.
    """
    return bound_contextvars(**fields)


def _in_order(logger: Any, method: str, line: EventDict) -> EventDict:
    first = {name: line.pop(name) for name in FIRST}
    return {**first, **dict(sorted(line.items()))}


def _text() -> list[Processor]:
    """``DATE TIME PROCESS: MESSAGE  name=value ...``; a traceback comes after it."""
    columns = [
        Column("timestamp", _column()),
        Column("process", _column(postfix=":")),
        Column("event", _column(_indented)),
        Column("", _column(_quoted, key="")),
    ]
    renderer = ConsoleRenderer(columns=columns, exception_formatter=plain_traceback)
    return [_without("level", "logger"), renderer]


def _column(
    shown: Callable[[object], str] = str, *, key: str | None = None, postfix: str = ""
) -> KeyValueColumnFormatter:
    return KeyValueColumnFormatter(
        key_style=key, value_style="", reset_style="", value_repr=shown, postfix=postfix
    )


def _indented(value: object) -> str:
    """A message of which only the first line begins where lines begin, without control codes."""
    lines = str(value).strip().splitlines()
    return "\n    ".join("".join(c if c.isprintable() else repr(c)[1:-1] for c in x) for x in lines)


def _quoted(value: object) -> str:
    """A value in one word, or in quotes: nobody's input looks like another line."""
    text = str(value)
    return text if text.isprintable() and not set(text) & set(" ='\"") else repr(text)


def _without(*names: str) -> Processor:
    def drop(logger: Any, method: str, line: EventDict) -> EventDict:
        for name in names:
            line.pop(name, None)
        return line

    return drop
