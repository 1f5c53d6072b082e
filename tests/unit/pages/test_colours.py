"""Contrast of what the style sheets paint, by WCAG 2.2: 3 to 1 for marks, 4.5 to 1 for words."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

import api.pages

STATIC = Path(api.pages.__file__).parent / "static"
DARK = re.compile(r"@media screen and \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", re.S)
TONES = [f"--chart-tone-{n}" for n in range(1, 10)]
MARKS = ["--chart-mark", "--chart-ink", "--chart-accent", "--chart-bad", *TONES]
WORDS = ["--chart-ink", "--chart-soft", "--chart-accent"]
GROUNDS = ["--chart-ground"]


def sheet(name):
    return re.sub(r"/\*.*?\*/", "", (STATIC / name).read_text(encoding="utf-8"), flags=re.S)


def declared(css):
    return dict(re.findall(r"(--[\w-]+):\s*([^;]+);", css))


def colours(scheme):
    """Custom properties of pages with charts; dark ones replace light ones."""
    found = {}
    for css in (sheet("style.css"), sheet("charts.css")):
        found |= declared(DARK.sub("", css))
    for css in (sheet("style.css"), sheet("charts.css")) if scheme == "dark" else ():
        (dark,) = DARK.findall(css)
        found |= declared(dark)
    return found


def colour(found, name):
    value = found[name]
    while reference := re.fullmatch(r"var\((--[\w-]+)\)", value):
        value = found[reference.group(1)]
    assert re.fullmatch("#[0-9a-f]{6}", value), (name, value)
    return tuple(int(value[at : at + 2], 16) / 255 for at in (1, 3, 5))


def luminance(rgb):
    """https://www.w3.org/TR/WCAG22/#dfn-relative-luminance"""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(found, one, other):
    light, dark = sorted((luminance(colour(found, n)) for n in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_words_and_letters_stand_out(scheme):
    found = colours(scheme)
    least = {**dict.fromkeys(MARKS, 3.0), **dict.fromkeys(WORDS, 4.5)}
    for ground in GROUNDS:
        weak = {n: c for n, most in least.items() if (c := contrast(found, n, ground)) < most}
        assert not weak
    assert min(contrast(found, tone, "--chart-letter") for tone in TONES) >= 4.5
    # Neighbours of a stack differ in lightness.
    assert min(contrast(found, *pair) for pair in pairwise(TONES[:-1])) >= 1.4
