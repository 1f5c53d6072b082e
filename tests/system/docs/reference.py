"""docs/cli.md: what the command line says of itself.

    python -m tests.system.docs.reference

writes it anew; ``make docs`` does that too.
"""

import re

from tests.system.docs.command_line import command_of
from tests.system.docs.pages import ROOT

PAGE = ROOT / "docs" / "cli.md"
BEGIN, END = "<!-- commands: begin -->\n", "<!-- commands: end -->\n"
"""Around what is made; the rest of the page is written by hand."""
ASKING = ("tuner suggest", "tuner predict", "tuner check")


def page():
    """The whole page, as it has to be.

    Raises:
        ValueError: a marker is missing, or there twice.
    """
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n" + commands() + END + after


def commands():
    """What is said of every command."""
    context = command_of(())
    sections = list(_sections(context, "tuner"))
    shown: dict[str, str] = {}
    listed = ", ".join(f"[`{name}`](#{name.replace(' ', '-')})" for name, _ in sections)
    return "\n".join(
        ["## Commands", "", f"{listed}.", "", *(_section(*one, shown) for one in sections), ""]
    )


def _sections(group, name):
    """Every command with its whole name; those of groups after the others."""
    children = [
        command_of([*name.split()[1:], child]) for child in group.command.list_commands(group)
    ]
    for child in sorted(children, key=_is_group):
        whole = f"{name} {child.info_name}"
        if _is_group(child):
            yield from _sections(child, whole)
        else:
            yield whole, child


def _is_group(context):
    return hasattr(context.command, "list_commands")


def _section(name, context, shown):
    """Describes a command.

    Args:
        name: its whole name.
        context: its own.
        shown: the command under which a row of an option stands already; rows of this one are
            added.
    """
    command = context.command
    parameters = [one for one in command.get_params(context) if one.name != "help"]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    lines = [f"## {name}", "", *_text(command.help)]
    if arguments:
        rows = [f"| `{one.metavar or one.name}` | {_cell(one.help or '')} |" for one in arguments]
        lines += ["| argument | what it is |", "|---|---|", *rows, ""]
    by_panel: dict[str, list[str]] = {}
    again: dict[str, list[str]] = {}
    for one in parameters:
        if one.param_type_name != "option":
            continue
        row = _row(one)
        # What a case says is what tuner suggest is asked: these three have one meaning of a name.
        key = row.partition(" |")[0] if name in ASKING else row
        if before := shown.get(row) or shown.get(key):
            again.setdefault(before, []).append(f"`{one.opts[0]}`")
            continue
        shown[row] = shown[key] = name
        by_panel.setdefault(getattr(one, "rich_help_panel", None) or "", []).append(row)
    for panel, rows in by_panel.items():
        title = panel if len(by_panel) > 1 else ""
        lines += [f"{title}:", ""] if title else []
        lines += ["| option | default | what it is |", "|---|---|---|", *rows, ""]
    for other, names in again.items():
        lines += [f"As for [`{other}`](#{other.replace(' ', '-')}): {', '.join(names)}.", ""]
    return "\n".join(lines)


def _text(text):
    """Paragraphs of a help text; examples become a block."""
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.strip("\b\n").splitlines()
        if not paragraph.lstrip().startswith("\b"):
            yield from (" ".join(line.strip() for line in lines), "")
            continue
        head, *shown = lines
        indent = min((len(line) - len(line.lstrip()) for line in shown if line.strip()), default=0)
        yield from (head.strip(), "", "```sh", *(line[indent:] for line in shown), "```", "")


def _row(option):
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.metavar and not option.is_flag:
        names = names[:-1] + f" {option.metavar}`"
    if option.required:
        default = "required"
    else:
        default = "" if option.default in (None, "", False) else f"`{option.default}`"
    return f"| {names.replace('|', chr(92) + '|')} | {default} | {_cell(option.help or '')} |"


def _cell(text):
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
