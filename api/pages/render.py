"""Templates made into pages, by one environment, which escapes everything; and the files that pages
load, ``/static/{version}/{name}``, whose address changes with their content.
"""

import re
from collections.abc import Collection
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from api.pages.charts import tick_words
from api.problems import ProblemError
from api.sessions import LazyField
from tuner.core.configuration import ACCUMULATION, KNOBS, Settings
from tuner.core.evaluation import GIB
from tuner.core.measurement import Outcome
from tuner.core.words import number_text, share_text, speed_text
from tuner.text import count_text, duration_text, show, size_text, time_text

# Media types by how a file's name ends. Other files are not served.
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FAVICON = "icon.svg"
# A year, of what never changes at its address.
FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "public, no-cache"

router = APIRouter(include_in_schema=False)


class Asset(NamedTuple):
    """A file of the folder ``static``."""

    content: bytes
    media_type: str
    version: str
    """Beginning of its SHA-256, in hex."""


@cache
def assets() -> dict[str, Asset]:
    """All of them by name, read once: a name that is asked for is looked up, and no path opened."""
    found = {}
    for file in (files("api.pages") / "static").iterdir():
        media_type = MEDIA_TYPES.get(f".{file.name.rpartition('.')[2]}")
        if media_type is not None:
            content = file.read_bytes()
            found[file.name] = Asset(content, media_type, sha256(content).hexdigest()[:16])
    return found


def asset_url(name: str) -> str:
    return f"/static/{assets()[name].version}/{name}"


@router.get("/static/{version}/{name}")
def serve_file(
    version: str, name: str, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """A file; of another version than was asked for, it is not to be kept."""
    found = assets().get(name)
    if found is None:
        raise ProblemError(404, "there is nothing at this path")
    etag = f'"{found.version}"'
    keep = FOR_EVER if found.version == version else ASK_AGAIN
    headers = {"Cache-Control": keep, "ETag": etag}
    if if_none_match is not None and etag in if_none_match:
        return Response(None, 304, headers)
    return Response(found.content, 200, headers, found.media_type)


@router.get("/favicon.ico")
def serve_favicon(if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """The icon for browsers that ask without having been told of one."""
    return serve_file("", FAVICON, if_none_match)


# What is written in the place of a figure that nobody knows.
UNKNOWN = "unknown"
_COMMA = re.compile(r",(?=\w+=)")
_PROBE = re.compile(r"#(d?\d{1,18})")
_BREAK = re.compile("([=_,])")
_CODE = re.compile(r"`([^`]+)`")
# They turn the direction of all text that follows, and a stranger's words may hold them.
_CONTROLS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
REPLACEMENT = "\ufffd"
_AGO = ((86_400.0, "day", "d"), (3600.0, "hour", "h"), (60.0, "minute", "min"))


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page: a file of ``templates/`` with values, ``caller``, ``csrf_field`` and ``path``."""
    shown = {
        "caller": getattr(request.state, "caller", None),
        "csrf_field": LazyField(request),
        "path": request.url.path,
    }
    text = environment().get_template(template).render(shown | values)
    return HTMLResponse(text, status_code=status)


def render_part(template: str, **values: Any) -> Markup:
    """A piece of a page that is the same for all who see it."""
    return Markup(environment().get_template(template).render(values))  # noqa: S704 (escaped)


@cache
def environment() -> Environment:
    found = Environment(
        loader=PackageLoader("api.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"asset": asset_url, "knobs": KNOBS}
    written = (
        ago,
        between,
        breakable,
        gib,
        moment,
        outcome,
        per_s,
        seconds,
        sentence,
        since,
        spaced,
        words,
    )
    found.filters.update({one.__name__: one for one in written})
    found.filters.update(
        commas="{:,.0f}".format,
        count=count_text,
        duration=duration_text,
        knob=show,
        number=number_text,
        parts=settings_words,
        tick=tick_words,
        percent=share_text,
        size=size_text,
    )
    return found


# -- sentences --------------------------------------------------------------------------------


def linked(text: str, study_id: str, probes: Collection[int]) -> Markup:
    """A sentence of an explanation as HTML: ``#7`` is a link, if the study has such a probe."""

    def marked_up(text: str) -> Markup:
        """Text escaped, with what stands between backticks as code."""
        plain, *rest = _CODE.split(text)
        shown = [escape(plain)]
        for code, after in zip(rest[::2], rest[1::2], strict=True):
            shown += [Markup("<code>{}</code>").format(code), escape(after)]
        return Markup("").join(shown)

    names = {number_text(one) for one in probes}
    # An explanation is sentences alone, so the probes that it names can be found only in its text.
    parts = _PROBE.split(_CONTROLS.sub(REPLACEMENT, spaced(text)))
    shown = [marked_up(parts[0])]
    for number, rest in zip(parts[1::2], parts[2::2], strict=True):
        link = Markup('<a href="/studies/{}/probes/{}">#{}</a>').format(study_id, number, number)
        shown += [link if number in names else escape(f"#{number}"), marked_up(rest)]
    return Markup("").join(shown)


def settings_words(settings: Settings) -> tuple[str, ...]:
    """A configuration in its knobs' own names: ``full_shard``, ``micro_batch_size=2 × 4``, and what
    is off its default. No part should be broken over two lines."""
    count = settings.gradient_accumulation_steps
    parts = [str(settings.sharding)]
    parts.append(f"micro_batch_size={settings.micro_batch_size}" + f" × {count}" * (count > 1))
    plain = Settings()
    return (
        *parts,
        *(
            f"{name}={show(getattr(settings, name))}"
            for name in KNOBS
            if name not in ("sharding", "micro_batch_size", ACCUMULATION)
            and getattr(settings, name) != getattr(plain, name)
        ),
    )


def settings_path(study_id: str, settings: Settings) -> str:
    values = {name: show(value) for name, value in settings.as_dict().items()}
    return f"/studies/{study_id}/settings?{urlencode(values)}"


def spaced(text: str) -> str:
    """A sentence in which configurations, which have no spaces, can be wrapped."""
    return _COMMA.sub(", ", text)


def breakable(text: str) -> Markup:
    """Names and values that may be broken after ``=``, ``_`` and commas, where a line ends."""
    return Markup(_BREAK.sub(r"\1<wbr>", str(escape(text))))  # noqa: S704 (escaped)


def sentence(text: str) -> str:
    """The same, with a capital at its beginning."""
    return spaced(text[:1].upper() + text[1:])


# -- figures as they are written --------------------------------------------------------------


def gib(value: float | None) -> str:
    """``61.2 GiB`` or ``612 MiB`` of a number of GiB."""
    return UNKNOWN if value is None else size_text(value * GIB)


def per_s(value: float | None) -> str:
    return UNKNOWN if value is None else speed_text(value)


def seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{time_text(value)} s"


def words(value: object) -> str:
    """A name of ours as words: ``full shard`` of ``full_shard``."""
    return str(value).replace("_", " ")


_OUTCOMES = {str(one): one.words for one in Outcome}


def outcome(name: object) -> str:
    """How a probe ended, or where it stands, as words."""
    return _OUTCOMES.get(str(name)) or words(name)


def moment(iso: str | None) -> Markup:
    """A moment of UTC, to the minute."""
    if not iso:
        return escape(UNKNOWN)
    text = f"{datetime.fromisoformat(iso):%Y-%m-%d %H:%M} UTC"
    return Markup('<time datetime="{}">{}</time>').format(iso, text)


def ago(iso: str | None, now: datetime | None = None, *, is_short: bool = False) -> Markup:
    """How long ago a moment was, with the moment itself behind it; short: ``3 h``."""
    if not iso:
        return escape(UNKNOWN)
    at = datetime.fromisoformat(iso)
    passed_s = ((now or datetime.now(UTC)) - at).total_seconds()
    known = ((int(passed_s // one_s), unit, short) for one_s, unit, short in _AGO)
    count, unit, short = next((one for one in known if one[0] > 0), (0, "", ""))
    text = f"{count_text(count, unit)} ago" if count else "just now"
    if is_short:
        text = f"{count} {short}" if count else "now"
    shown = Markup('<time datetime="{}" title="{:%Y-%m-%d %H:%M} UTC">{}</time>')
    return shown.format(iso, at, text)


def since(iso: str) -> str:
    return between(iso, datetime.now(UTC).isoformat())


def between(begin: str, end: str) -> str:
    passed = datetime.fromisoformat(end) - datetime.fromisoformat(begin)
    # Clocks of machines differ a little, and nothing takes less than no time.
    return duration_text(max(0.0, passed.total_seconds()))


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
