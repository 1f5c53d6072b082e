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
WORKLOAD = "What is trained"
"""The title of many options that the largest commands have in common."""
ASKING = ("tuner suggest", "tuner predict", "tuner check")
MANY = 12
"""Options of one command that need titles."""
COMMON = ("json", "db")
"""Options that nearly all commands have; they are told once, before all commands."""


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
    top = command_of(())
    found = {name: command_of((name,)) for name in top.command.list_commands(top)}
    shown = {}
    lines = ["## Commands", "", *_common(found, shown), ""]
    for name, context in sorted(found.items(), key=lambda item: _is_group(item[1])):
        lines += [
            f"## tuner {name}",
            "",
            *(_group if _is_group(context) else _alone)(context, shown),
        ]
    return "\n".join(lines)


def _is_group(context):
    return hasattr(context.command, "list_commands")


def _common(found, shown):
    """The options of nearly all commands, each with those that have it not."""
    alone = {name: context for name, context in found.items() if not _is_group(context)}
    for option in _options(alone["suggest"]):
        if option.name in COMMON:
            line = _item(option)
            shown[line] = "", ""
            others = [
                f"`{name}`"
                for name, of in alone.items()
                if option.name not in [one.name for one in _options(of)]
            ]
            yield f"{line} Every command has it but {', '.join(others)}."


def _alone(context, shown):
    """Describes a command that is in no group.

    Args:
        context: its own.
        shown: the command and the panel in which an option is told already, by its line; those of
            this one are added.
    """
    command, whole = context.command, f"tuner {context.info_name}"
    text, examples = _help(command)
    yield from (text, "", "```sh", *examples, "```", "")
    arguments = [line for one in _arguments(context) if (line := _item(one)) not in shown]
    shown.update(dict.fromkeys(arguments, (whole, "")))
    panels = {"": arguments}
    again = {}
    for one in _options(context):
        line, panel = _item(one), getattr(one, "rich_help_panel", None) or ""
        # What a case says is what tuner suggest is asked: these three have one meaning of a name.
        key = one.opts[0] if whole in ASKING else line
        if before := shown.get(line) or shown.get(key):
            again.setdefault(before[0], []).append((before[1], one.opts[0]))
            continue
        shown[line] = shown[key] = whole, panel
        panels.setdefault(panel, []).append(line)
    titled = sum(map(len, panels.values())) > MANY
    for panel, lines in panels.items():
        if lines:
            yield from ((f"{panel}:", "") if panel and titled else ())
            yield from (*lines, *([""] if titled else []))
    if not titled and any(panels.values()):
        yield ""
    again.pop("", None)
    for other, options in again.items():
        yield f"As for [`{other}`](#{other.replace(' ', '-')}): {_named(options)}."
        yield ""


def _named(options):
    """Options told before; those of what is trained, which are many, in a word."""
    whole = [panel for panel, _ in options].count(WORKLOAD)
    named = [f"*{WORKLOAD[0].lower()}{WORKLOAD[1:]}*"] if whole else []
    return ", ".join(named + [f"`{name}`" for panel, name in options if panel != WORKLOAD])


def _group(context, shown):
    """Describes the commands of a group: their examples, and an item for each with its options."""
    children = [
        command_of((context.info_name, name)) for name in context.command.list_commands(context)
    ]
    texts = [_help(child.command) for child in children]
    yield from ("```sh", *(line for _, examples in texts for line in examples), "```", "")
    group = f"tuner {context.info_name}", ""
    for child, (text, _) in zip(children, texts, strict=True):
        words = [child.info_name, *(one.metavar or one.name for one in _arguments(child))]
        yield f"- `tuner {context.info_name} {' '.join(words)}`: {' '.join(text.split())}"
        for one in (*_arguments(child), *_options(child)):
            line = _item(one)
            if shown.get(line) not in (group, ("", "")):
                shown[line] = group
                yield f"  {line}"
    yield ""


def _arguments(context):
    return [one for one in context.command.get_params(context) if one.param_type_name == "argument"]


def _options(context):
    """Those of a command, but its help."""
    return [
        one
        for one in context.command.get_params(context)
        if one.param_type_name == "option" and one.name != "help"
    ]


def _help(command):
    """A command's help: what it does, in one paragraph for each of its own, and its examples."""
    text, _, examples = command.help.partition("\b\n")
    _, *shown = examples.rstrip().splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in shown)
    paragraphs = [" ".join(one.split()) for one in text.strip().split("\n\n")]
    return "\n\n".join(paragraphs), [line[indent:] for line in shown]


def _item(parameter):
    """An argument or option: its name, its values, and what is said of it."""
    if parameter.param_type_name == "argument":
        return f"- `{parameter.metavar or parameter.name}`: {_cell(parameter.help)}"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.metavar and not parameter.is_flag:
        names = f"{names[:-1]} {parameter.metavar}`"
    if parameter.required:
        more = " Required."
    else:
        more = "" if parameter.default in (None, "", False) else f" By default {parameter.default}."
    return f"- {names}: {_cell(parameter.help)}{more}"


def _cell(text):
    return re.sub(r"\s+", " ", text or "").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
