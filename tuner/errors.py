"""Every error that the product raises for its users, in one small tree.

TunerError                  something the user can act on; shown as one line
├── UsageError              a field of the question is wrong: field, given, allowed (exit 2)
│   ├── RefusedError        the same, found by a service: what it says of the field
│   ├── SeveralFieldsError       several fields are wrong: ``errors`` has each
│   ├── UnknownNameError    a catalogue name that does not exist, with the nearest names
│   └── ModelConfigError    a config.json that cannot be read as data
├── NothingFitsError        no settings fit in memory: what would be needed (exit 3)
├── TrainsWronglyError      settings fit, and all of them train something else (exit 4)
├── SpeedUnknownError       settings fit, but nothing says which is the fastest (exit 1)
├── OtherLimitsError         a study has other limits than those asked for (exit 1)
├── StoreError              the database cannot be used (exit 1)
│   ├── AwayError           it may be usable again: not reached, busy, or its disk is full
│   └── UnreadableStudyError  another version wrote it; the rest of the database is fine
├── ServiceError            the service cannot be reached, or refused (exit 1)
├── ProbeError              the probes could not be run at all (exit 1)
└── StoppedError            a signal asked the command to end (exit 128 and its number)

Programming mistakes of our own are ``AssertionError``; they are never caught.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.core.answer import Suggestion


# Characters of a value that an error repeats.
LONGEST_GIVEN = 120


class TunerError(Exception):
    """Base of the tree. ``str(error)`` is one line, fit to be shown."""

    exit_code = 1
    kind = "no_result"  # why a study has no answer, as services say it
    suggestion: "Suggestion | None" = None
    """What is known nevertheless, where a study was answered and has no best settings."""

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it comes out of another process as it was: arguments of errors differ."""
        return _made_again, (type(self), self.args, self.__dict__)


# How errors begin that tell of a field which nothing was given for.
REQUIRED = "is required"


class UsageError(TunerError, ValueError):
    """A field of the question is wrong; nothing was written. pydantic passes it on, as a
    ``ValueError``.

    Args:
        field: the field's name as the user wrote it, such as ``global_batch_size``.
        given: the value that was given.
        allowed: what would have been accepted, in words.
    """

    exit_code = 2

    def __init__(self, field: str, given: object, allowed: str) -> None:
        self.field = field
        self.given = given
        self.allowed = allowed
        super().__init__(f"{field}: {self.detail}")

    @property
    def detail(self) -> str:
        """Message without the field, for those who show the field beside it."""
        return f"got {_shown(self.given)}; {self.allowed}"

    @property
    def is_missing(self) -> bool:
        """Whether the field was not given at all."""
        return self.given is None and self.allowed.startswith(REQUIRED)

    @property
    def errors(self) -> tuple["UsageError", ...]:
        """All errors of one input; one unless several fields are wrong."""
        return (self,)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values of one error."""
        given = self.given
        is_plain = isinstance(given, str | int) or (isinstance(given, float) and isfinite(given))
        value = given if is_plain and len(str(given)) <= LONGEST_GIVEN else None
        if given is not None and value is None:
            value = _shown(given)
        return {"field": self.field, "value": value, "allowed": self.allowed}

    def at(self, field: str, given: object = None) -> "UsageError":
        """The same error of a field's path, or of the whole value that has the wrong part."""
        found = copy(self)
        found.field, found.given = field, self.given if given is None else given
        found.args = (f"{field}: {found.detail}",)
        return found


def why_unreadable(error: Exception) -> str:
    """Says why a file cannot be read, the same at every door."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


class SeveralFieldsError(UsageError):
    """Several fields of one input are wrong; its own field is the first one's."""

    def __init__(self, errors: Sequence[UsageError]) -> None:
        super().__init__(errors[0].field, errors[0].given, errors[0].allowed)
        self._all = tuple(errors)
        self.args = ("; ".join(map(str, errors)),)

    @property
    def errors(self) -> tuple[UsageError, ...]:
        """All errors, in the order of the fields."""
        return self._all


def all_of(errors: Iterable[UsageError]) -> UsageError:
    """One error for several; each field is told of once."""
    first: dict[str, UsageError] = {}
    for error in errors:
        for one in error.errors:
            first.setdefault(one.field, one)
    found = list(first.values())
    return found[0] if len(found) == 1 else SeveralFieldsError(found)


class RefusedError(UsageError):
    """A field of the question that a service has found wrong."""

    def __init__(self, field: str, said: str) -> None:
        self._said = said.removeprefix(f"{field}: ")
        super().__init__(field, None, self._said)

    @property
    def detail(self) -> str:
        """Message as the service says it."""
        return self._said


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """`` (did you mean sharding?)`` of the name that is most like a mistyped one; or nothing."""
    text, known = str(given)[:80].lower(), [*names]
    near = [one for one in known if text and one.startswith(text)]
    near = near or get_close_matches(text, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


class UnknownNameError(UsageError):
    """A name that is not in a catalogue; ``nearest`` holds at most three like it."""

    def __init__(
        self,
        field: str,
        given: str,
        names: Iterable[str],
        also: str = "",
        *,
        what: str = "no such name",
    ) -> None:
        known = sorted(names)
        self.nearest = get_close_matches(given.lower(), known, n=3, cutoff=0.4)
        some = f"known names are {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
        hint = f"did you mean {', '.join(self.nearest)}?" if self.nearest else some
        super().__init__(field, given, f"{what}; {hint}{f' {also}' if also else ''}")


class ModelConfigError(UsageError):
    """A model configuration that is not readable as data, or out of bounds."""


class NothingFitsError(TunerError):
    """No settings of the space fit; the message says what would be needed."""

    exit_code = 3
    kind = "nothing_fits"


class TrainsWronglyError(TunerError):
    """Memory suffices for settings, and all of them are known to train something else."""

    exit_code = 4
    kind = "trains_wrongly"


class SpeedUnknownError(TunerError):
    """Settings fit, but no speed is known of any; the message says what is missing."""

    kind = "speed_unknown"


class OtherLimitsError(TunerError):
    """A study has other limits than those asked for; nothing was written.

    Args:
        study_id: the study's id.
        apart: the limits that differ, by name: what the study has, and what was asked for.
        why: what that means, put after the study's name.
        what_now: what can be done about it.
    """

    def __init__(
        self,
        study_id: str,
        apart: Mapping[str, tuple[object, object]],
        why: str = "is open with other limits",
        what_now: str = 'wait for its end, ask within its limits, or send "replace": true',
    ) -> None:
        self.study_id = study_id
        self.apart = apart
        said = {
            name: ["none" if one is None else str(one) or "any" for one in pair]
            for name, pair in apart.items()
        }
        limits = ", ".join(f"{name} {there}, not {asked}" for name, (there, asked) in said.items())
        self.in_short = f"study {study_id} {why} ({limits})"
        super().__init__(f"{self.in_short}; {what_now}")


class StoreError(TunerError):
    """The database cannot be opened, is not up to date, or refused a write."""


class AwayError(StoreError):
    """The database cannot be used at this moment; it may be later, without anybody's doing."""


class UnreadableStudyError(StoreError):
    """A study that this version cannot read, now or later; others it can."""


class ServiceError(TunerError):
    """A service of studies cannot be reached, or does not do what was asked."""


class ProbeError(TunerError):
    """No probe could be run: the worker ended, or its stack is missing."""


class StoppedError(TunerError):
    """A signal asked the command to end. Not an error of anybody's, but no answer either."""

    def __init__(self, number: signal.Signals, kept: str) -> None:
        """``kept`` says what is left of the work, in one line."""
        super().__init__(f"stopped by {number.name}; {kept}")
        self.exit_code = 128 + number


def _made_again(
    kind: type[TunerError], said: tuple[object, ...], fields: dict[str, Any]
) -> TunerError:
    error = kind.__new__(kind, *said)
    error.__dict__.update(fields)
    return error


def _shown(given: object, most: int = LONGEST_GIVEN) -> str:
    if given is None:
        return "nothing"
    if isinstance(given, bool):
        return str(given).lower()
    text = repr(str(given)) if isinstance(given, str) else str(given)
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 3] + "..."
