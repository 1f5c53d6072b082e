"""Settings of the service: ``TUNER_*`` variables of the environment or of a file ``.env``."""

from typing import Annotated, Any, get_args

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tuner.errors import UsageError

PREFIX = "TUNER_"

# How bounds are told, by what they are called in a field.
BOUNDS = {"ge": "from", "gt": "above", "le": "up to"}

# Written with commas between them.
Words = Annotated[tuple[str, ...], NoDecode]


class Settings(BaseSettings):
    """How the service runs. Each field is a variable: ``port`` is ``TUNER_PORT``."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", extra="ignore", frozen=True, env_ignore_empty=True
    )

    db: str | None = None
    """Address of the database; by default the user's own SQLite file."""
    host: str = "127.0.0.1"
    """Address to bind to."""
    port: int = Field(default=8765, ge=0, le=65535)
    """Port to bind to; 0 for any that is free."""
    require_keys: bool | None = None
    """Whether every caller needs a key; by default unless ``host`` is a loopback address."""
    allowed_hosts: Words = ()
    """Names that callers may use for this service, beside those of this machine."""
    proxies: Words = ()
    """Addresses of proxies whose ``X-Forwarded-*`` headers are believed."""
    max_body_bytes: int = Field(default=256 * 1024, ge=1024, le=2**24)
    """Bytes of a request's body; a published ``config.json`` has a few thousand."""
    max_header_bytes: int = Field(default=32 * 1024, ge=1024, le=2**20)
    """Bytes of a request's headers, names included."""
    max_headers: int = Field(default=100, ge=10, le=1000)
    """Headers of a request."""
    rate_per_s: float = Field(default=100.0, gt=0, le=1_000_000)
    """Requests per second that one key or address may send for long."""
    rate_burst: int = Field(default=200, ge=1, le=10**6)
    """Requests that it may send at once."""
    max_concurrent: int = Field(default=500, ge=10, le=10**6)
    """Requests of one key or address that may be open at once, event streams and long polls among
    them."""
    max_open_studies: int = Field(default=1000, ge=1, le=10**6)
    """Studies that may be queued or running before new ones are refused."""
    max_open_studies_per_key: int | None = Field(default=None, ge=1, le=10**6)
    """How many of them one key may have asked; by default half."""
    keep_days: int | None = Field(default=None, ge=1, le=36500)
    """Days after which studies at their end and entries of the audit are deleted; by default
    never."""
    threads: int = Field(default=8, ge=2, le=9)
    """Requests that are worked at side by side. Each may hold one of the database's 15 connections,
    and six are for keys and events; the few that look at it beside these wait for a free one."""
    poll_s: float = Field(default=0.25, ge=0.01, le=10)
    """Seconds between two looks at the database for those who wait for events."""

    @field_validator("allowed_hosts", "proxies", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(filter(None, (word.strip() for word in value.split(","))))
        return value


def read_settings(**given: Any) -> Settings:
    """The settings of this process's environment; those of the command line win."""
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
    name = str(first["loc"][0])
    field = Settings.model_fields[name]
    kinds = set(get_args(field.annotation)) or {field.annotation}
    bounds = " ".join(
        f"{words} {getattr(one, key)}"
        for one in field.metadata
        for key, words in BOUNDS.items()
        if hasattr(one, key)
    )
    if bool in kinds:
        allowed = "must be true or false"
    elif kinds & {int, float}:
        allowed = f"must be {'a whole number' if int in kinds else 'a number'} {bounds}"
    else:
        allowed = "must be text"
    shown = name if name in given else f"{PREFIX}{name.upper()}"
    raise UsageError(shown, first.get("input"), allowed)
