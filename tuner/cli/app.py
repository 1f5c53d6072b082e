"""The commands put together, and how their help is laid out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tuner.cli import administration, catalogue, options, studies
from tuner.cli.options import command_of, words

# ``tuner NAME`` and ``tuner GROUP NAME``: a function, or the class of its options with the function
# that does the work.
COMMANDS: Mapping[str, tuple[Callable[..., Any], str]] = {
    "suggest": (options.SuggestAsked, "render.run"),
    "predict": (options.PredictAsked, "predict.run"),
    "check": (options.CheckAsked, "check.run"),
    "size": (options.SizeAsked, "size.run"),
    "probe": (options.ProbeAsked, "probe.run"),
    "rehearse": (options.RehearseAsked, "rehearse.run"),
    "calibrate": (options.CalibrateAsked, "machine.calibrate"),
    "export": (options.ExportAsked, "export.run"),
    "models": (catalogue.list_models, ""),
    "gpus": (catalogue.list_gpus, ""),
    "doctor": (options.DoctorAsked, "machine.diagnose_machine"),
    "serve": (options.ServeAsked, "serve.serve"),
    "worker": (options.WorkerAsked, "serve.worker"),
    "workers": (studies.list_workers, ""),
    "mcp": (options.McpAsked, "mcp.serve"),
    "studies list": (studies.list_studies, ""),
    "studies show": (options.ShowAsked, "render.show_study"),
    "studies cancel": (studies.cancel_study, ""),
    "studies delete": (studies.delete_study, ""),
    "db upgrade": (administration.upgrade_database, ""),
    "db check": (administration.check_database, ""),
    "db backup": (administration.backup_database, ""),
    "db prune": (administration.prune_database, ""),
    "keys create": (administration.create_key, ""),
    "keys list": (administration.list_keys, ""),
    "keys revoke": (administration.revoke_key, ""),
    "keys audit": (administration.audit_keys, ""),
}
GROUPS = tuple(dict.fromkeys(name.split()[0] for name in COMMANDS if " " in name))
# Characters of a command's line in a list of them: as many as a terminal of 80 columns has.
LONGEST_SHORT = 63
# Commands that end with 3, and with 4; what lists commands may.
MAY_NOT_FIT = frozenset({"", "suggest", "predict", "check", "size", "probe", "rehearse", "export"})
MAY_TRAIN_WRONGLY = MAY_NOT_FIT - {"size", "probe", "rehearse"}


def exit_codes(name: str) -> str:
    """Those of a command; a signal's are 128 and its number, 130 for Ctrl-C."""
    codes = ["0 answered", "1 failed", "2 wrong usage"]
    codes += ["3 nothing fits in memory"] * (name in MAY_NOT_FIT)
    codes += ["4 what fits trains something else"] * (name in MAY_TRAIN_WRONGLY)
    return f"Exit codes: {', '.join(codes)}."


# Options whose value may be left out, with what is meant then.
BARE = {"--packing": "varlen"}


class GroupedHelp(TyperCommand):
    """A command whose help shows options under the titles of their panels, as plain text.

    Rich's boxes would take a third of a second to draw, and half of a narrow terminal.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads what is given, with the values of :data:`BARE` where they are left out: before
        another option, or at the end. Typer has no such options."""
        options = [one for one in self.get_params(ctx) if one.param_type_name == "option"]
        valued = {
            name for one in options if not getattr(one, "is_flag", False) for name in one.opts
        }
        given, index = list(args), 0
        while index < len(given) and given[index] != "--":
            name, following = given[index], given[index + 1 : index + 2]
            if name in valued & BARE.keys() and (not following or following[0].startswith("-")):
                given[index] = f"{name}={BARE[name]}"
            elif name in valued:  # whatever its value looks like
                index += 1
            index += 1
        return super().parse_args(ctx, given)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each panel, in the order of the options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        panels = any(getattr(one, "rich_help_panel", None) for one in self.get_params(ctx))
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                usual = "Arguments" if is_argument else "Output" if panels else "Options"
                title = getattr(parameter, "rich_help_panel", None) or usual
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=26)


def run(arguments: Sequence[str]) -> int:
    given = list(arguments)
    if len(given) == 1 and given[0] in GROUPS:  # a group alone lists, or says what it can do
        given.append("list" if f"{given[0]} list" in COMMANDS else "--help")
    command = typer.main.get_command(app())
    code = command.main(given, prog_name="tuner", standalone_mode=False)
    return int(code or 0)


def app() -> typer.Typer:
    whole = _group("")

    @whole.callback()
    def _(
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=_show_version, is_eager=True, help="Show the version."
            ),
        ] = False,
    ) -> None:
        pass

    for name in GROUPS:
        whole.add_typer(_group(name), name=name)
    return whole


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"tuner {version('tuner')}")
        raise typer.Exit


def _group(of: str) -> typer.Typer:
    """The commands of a group, or those of none."""
    helps = words()["commands"]
    group = typer.Typer(
        help=helps[of or "tuner"],
        epilog=exit_codes(of and f"{of} "),
        add_completion=not of,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    for whole, (asks, work) in COMMANDS.items():
        own, _, name = whole.rpartition(" ")
        if own != of:
            continue
        # In lists: its help's first sentence, or as many of its clauses as fit.
        short = " ".join(helps[whole].partition("\n\n")[0].split())
        if len(short) > LONGEST_SHORT:
            begin = short[:LONGEST_SHORT]
            end = max(begin.rfind(": "), begin.rfind("; "))
            end = end if end > 0 else begin.rfind(", ")
            short = f"{begin[:end]}." if end > 0 else short
        texts = {"help": helps[whole], "short_help": short, "epilog": exit_codes(whole)}
        group.command(name, cls=GroupedHelp, **texts)(command_of(asks, work))
    return group
