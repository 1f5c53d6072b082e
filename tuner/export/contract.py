"""What a launcher's module must offer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuner.quantity import Provenance
from tuner.settings import Settings
from tuner.study import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Where exported settings come from; shown at the top of the file."""

    study_id: str
    """The study."""
    date: str
    """When the file was written, ISO 8601."""
    provenance: Provenance
    """The weakest that stands behind the figures."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that the figures were found with."""
    figures: tuple[str, ...] = ()
    """What was found, one line each, such as ``3425 tokens/s per GPU (3390 to 3460)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One launcher's file. Both functions are pure."""

    name: str
    """As the user writes it."""
    file_name: str
    """Usual name of the file."""
    why_not: Callable[[Question, Settings], str | None]
    """Why the launcher cannot run the settings and what to do about it; ``None`` if it can."""
    media_type: str = "application/yaml"
    """What the file is, as HTTP says it."""
    render: Callable[[Question, Settings, About], str]
    """The file's text. Only for settings with no ``why_not``."""
