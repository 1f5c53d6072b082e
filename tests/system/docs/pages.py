"""The pages, and what is in them: headings, links, fenced blocks, shell commands."""

import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
# Languages of blocks in which every line is a command.
SHELLS = ("sh", "bash", "shell", "console")
# First words of commands in blocks of no language, which may also show what is printed.
PROGRAMS = frozenset({
    "tuner", "make", "git", "cd", "pip", "python", "python3", "curl", "docker", "kubectl",
    "accelerate", "torchrun", "sbatch", "srun", "salloc", "squeue", "scancel", "ray", "export",
    "cp", "mkdir", "chmod", "cat",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: where it begins, from 1, and its language, empty where it says none."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A shell command that a page shows, in one line if it was continued, without a comment at its
    end, a prompt before it, and the folder of a program that this project installs."""

    page: str
    line: int
    text: str

    @property
    def words(self):
        """As a shell reads them, after variables that are set; a substitution is one word."""
        return shlex.split(re.sub(r"\$\([^)]*\)", "X", _unset(self.text)))


@cache
def text(page):
    """A page, by its path from the repository's root."""
    return (ROOT / page).read_text(encoding="utf-8")


def name_of(path):
    """A page's path from the repository's root."""
    return path.relative_to(ROOT).as_posix()


@cache
def blocks(page):
    """All fenced blocks of a page."""
    return tuple(
        Block(
            page=page,
            line=token.map[0] + 2 if token.map else 0,
            language=token.info.strip().partition(" ")[0],
            text=token.content,
        )
        for token in MarkdownIt("commonmark").parse(text(page))
        if token.type == "fence"
    )


@cache
def anchors(path):
    """Where links into a page may lead: its headings as GitHub names them."""
    tokens = MarkdownIt("commonmark").parse(path.read_text(encoding="utf-8"))
    found = []
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            words = re.sub(r"[`*]|\]\([^)]*\)|\[", "", tokens[place + 1].content).lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


def commands(page):
    """Shell commands in the blocks of a page, in order; scripts are for their own tests."""
    for block in blocks(page):
        if block.language in ("", *SHELLS) and not block.text.startswith("#!"):
            for whole in _whole_lines(block.text):
                plain = _plain(whole)
                if plain and (
                    block.language in SHELLS
                    or _unset(plain).split(maxsplit=1)[0] in {"./ask-tuner.sh", *PROGRAMS}
                ):
                    yield Command(page=page, line=block.line, text=plain)


def _unset(line):
    """A command without the variables that are set for it."""
    return re.sub(r"^([A-Z_]+=\S*\s+)+", "", line)


def _whole_lines(shown):
    """Lines with those that continue them: after a backslash, within quotes, of a here-document."""
    waiting, ends = "", ""
    for line in shown.splitlines():
        waiting = f"{waiting}\n{line}" if waiting else line
        if ends and line != ends:
            continue
        if not ends and (found := re.search(r"<<-?\s*['\"]?(\w+)", line)):
            ends = found[1]
            continue
        ends = ""
        with suppress(ValueError):  # of an open quote
            shlex.split(waiting, comments=True)
            if line.endswith("\\"):
                continue
            yield re.sub(r"\s*\\\n\s*", " ", waiting)
            waiting = ""
    if waiting:
        yield waiting


def _plain(line):
    """Without a prompt, the folder of the program, and a comment at the end."""
    quote, end = "", len(line)
    for place, letter in enumerate(line):
        if letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
        elif letter == "#" and not quote and (place == 0 or line[place - 1].isspace()):
            end = place
            break
    return line[:end].strip().removeprefix("$ ").removeprefix(".venv/bin/")
