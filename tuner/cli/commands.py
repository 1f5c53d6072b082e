"""All commands, with their options and their help. What does the work is imported inside: the help
of all of them must be quick."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tuner.cli.case_options import CheckAsked, PredictAsked, RehearseAsked, SizeAsked
from tuner.cli.options import (
    Database,
    Json,
    ProbeAsked,
    SuggestAsked,
    format_names,
    study_ids,
    taking,
)
from tuner.core.launcher import LauncherName


def serve(
    host: Annotated[
        str | None, Option(metavar="ADDRESS", help="Address to bind to. By default 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, Option(metavar="N", help="Port, 0 for any that is free. By default 8765.")
    ] = None,
    require_keys: Annotated[
        bool | None,
        Option(
            "--require-keys/--no-require-keys",
            help="Whether every caller needs a key. By default unless ADDRESS is a loopback one.",
        ),
    ] = None,
    json: Json = False,
    db: Database = None,
) -> int:
    """Serve studies over HTTP, until SIGTERM or Ctrl-C.

    The work is done by tuner worker. An address that other machines reach needs a key first, by
    tuner keys. Options left out are TUNER_* variables, or stand in a file .env.

    \b
    Example:
      tuner serve --db sqlite:///studies.db
    """
    from tuner.cli.serve import serve as run

    run(host=host, port=port, require_keys=require_keys, as_json=json, db=db)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAsked:
    """Options of ``tuner worker``, as they were written."""

    pool: Annotated[
        list[str] | None,
        Option(metavar="LABEL", help="Serve the studies of this pool too. Repeatable."),
    ] = None
    name: Annotated[
        str, Option(metavar="NAME", help="What people see. By default host and process number.")
    ] = ""
    once: Annotated[bool, Option("--once", help="Serve one study, and end.")] = False
    drain: Annotated[
        bool, Option("--drain", help="End when no open study is left that it can serve.")
    ] = False
    launcher: Annotated[
        LauncherName | None,
        Option(
            metavar="NAME",
            help="What starts ranks: local, slurm or ray. By default slurm in an allocation of"
            " several nodes.",
        ),
    ] = None
    ray: Annotated[
        str,
        Option(
            metavar="HOST:PORT",
            help="The Ray cluster of --launcher ray. By default $RAY_ADDRESS, or a new one on"
            " this machine.",
        ),
    ] = ""
    slurm: Annotated[
        str | None,
        Option(
            metavar="OPTIONS",
            help="Submit the worker with these options of sbatch, and show it until it ends.",
        ),
    ] = None
    probes: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="For the files of probes; all nodes must see it. By default in the user's cache.",
        ),
    ] = None
    pass_env: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="Have ranks inherit this environment variable too; it may end in a *. For other"
            " commands: TUNER_PASS_ENV, with commas. Repeatable.",
        ),
    ] = None
    probe_deadline: Annotated[
        str | None,
        Option(
            metavar="DURATION", help="Time that one probe may take, such as 30m. By default 10m."
        ),
    ] = None
    json: Annotated[
        bool, Option("--json", help="Log JSON lines, as without a terminal anyway.")
    ] = False
    db: Database = None


@taking(WorkerAsked)
def worker(asked: WorkerAsked) -> int:
    """Serve studies with what this machine has, or these nodes, until SIGTERM or Ctrl-C.

    Studies of no pool are served, and those of the pools that are named, the oldest first. When it
    is stopped, its probes are given back and nothing is lost.

    \b
    Examples:
      tuner worker --pool h100
      tuner worker --slurm "-p gpu -N 4 --gpus-per-node=8 -t 8:00:00"
      tuner worker --launcher ray --ray 10.0.0.1:6379
    """
    from tuner.cli.serve import worker as run

    return run(asked)


def mcp(db: Database = None) -> int:
    """Serve suggest, predict, check, size and studies as tools for agents, over stdin and stdout.

    It speaks the Model Context Protocol, and needs pip install 'tuner[mcp]'. Agents start it
    themselves.

    \b
    Example:
      tuner mcp --db sqlite:///studies.db
    """
    from tuner.cli.mcp import serve as run

    run(db)
    return 0


def list_workers(
    here: Annotated[
        bool, Option("--here", help="Only those of this machine, or of this container.")
    ] = False,
    json: Json = False,
    db: Database = None,
) -> int:
    """List the workers that serve studies now: those that gave a sign within the last minute.

    Exit code 1 says that there is none.

    \b
    Example:
      tuner workers --here
    """
    from tuner.cli.studies import workers_run as run

    return run(here=here, as_json=json, db=db)


def upgrade_database(json: Json = False, db: Database = None) -> int:
    """Bring a database to this version's schema; a SQLite file that is absent is made.

    SQLite is brought there whenever it is used; other databases only by this command.

    \b
    Example:
      tuner db upgrade --db postgresql://user@host/tuner
    """
    from tuner.cli.administration import upgrade

    return upgrade(as_json=json, db=db)


def check_database(json: Json = False, db: Database = None) -> int:
    """Check a database for damage and for differences from this version's schema.

    Exit code 1 says that something is wrong with it.

    \b
    Example:
      tuner db check
    """
    from tuner.cli.administration import check

    return check(as_json=json, db=db)


def backup_database(
    path: Annotated[str, Argument(metavar="PATH", help="The copy: a file that is not there yet.")],
    json: Json = False,
    db: Database = None,
) -> int:
    """Copy a SQLite database, which may be in use, to a file that is not there yet.

    The copy is checked, and nothing is overwritten. PostgreSQL is backed up by its own pg_dump.

    \b
    Example:
      tuner db backup tuner-2026-11-21.db
    """
    from tuner.cli.administration import backup

    return backup(path, as_json=json, db=db)


StudyId = Annotated[
    str,
    Argument(
        metavar="STUDY",
        help="A study's id, or a beginning of it that no other has.",
        autocompletion=study_ids,
    ),
]


@taking(SuggestAsked)
def suggest(asked: SuggestAsked) -> int:
    """Find the fastest configuration that fits, by running real training steps on this machine.

    With --fidelity predicted no device is needed: the answer is from dry runs and arithmetic, in
    seconds. Every probe is kept: the same question asked again goes on from there, also after
    Ctrl-C.

    \b
    Examples, on any machine, without a GPU:
      tuner suggest --model stories15m --cluster cpu:2 --max-probes 8 \\
          --global-batch-size 8 --sequence-length 128 --precision fp32
      tuner suggest --model llama-3.1-8b --cluster 8xh100-80gb \\
          --global-batch-size 256 --sequence-length 4096 --fidelity predicted
    """
    if asked.from_file is not None:
        from tuner.cli.from_file import read_file, show_file
        from tuner.cli.render import answer_asked

        question = read_file(asked, asked.from_file)
        return show_file(asked, question, answer_asked(asked, question.request))
    from tuner.cli.render import run

    return run(asked)


@taking(ProbeAsked)
def probe(asked: ProbeAsked) -> int:
    """Run one probe of a given configuration on this machine, and show what it measured.

    It is kept in the study of the same question, and run again if it is asked for again, unless it
    is dry-run (--fidelity predicted).

    \b
    Example, on any machine, without a GPU:
      tuner probe --model stories15m --cluster cpu:2 \\
          --global-batch-size 8 --sequence-length 128 --precision fp32 \\
          --settings sharding=full_shard,micro_batch_size=2
    """
    from tuner.cli.probe import run

    return run(asked)


@taking(RehearseAsked)
def rehearse(asked: RehearseAsked) -> int:
    """Run your own script as one rank of a cluster, without a GPU: its memory, and who holds it.

    It runs over a stand-in for CUDA's libraries, which needs a C compiler and a CUDA build of
    torch: torch's own allocator counts memory, no kernel runs, and losses mean nothing. Exit code 3
    says that it ran out of memory.

    \b
    Example:
      tuner rehearse --cluster 8xh100-80gb -- torchrun --nproc-per-node 8 train.py
    """
    from tuner.cli.rehearse import run

    return run(asked)


@taking(PredictAsked)
def predict(asked: PredictAsked) -> int:
    """Predict memory and speed of a configuration, on any cluster, without a device.

    With --cases, each line of a file is answered by a line, in the same order. Exit code 0 then
    says that every line was answered.

    \b
    Examples:
      tuner predict --model llama-3.1-8b --cluster 8xh100-80gb \\
          --global-batch-size 64 --sequence-length 4096 \\
          --settings sharding=full_shard,micro_batch_size=2
      tuner predict --cases cases.jsonl > answers.jsonl
    """
    from tuner.cli.predict import run

    return run(asked)


@taking(CheckAsked)
def check(asked: CheckAsked) -> int:
    """Say whether a configuration file still fits, on a cluster that need not be here.

    What the file does not say goes into options. Exit code 0 says that it fits, 3 that it does not.

    \b
    Examples:
      tuner check accelerate.yaml --model llama-3.1-8b \\
          --cluster 8xh100-80gb --sequence-length 4096 \\
          --global-batch-size 64 --settings micro_batch_size=8
      tuner check nanotron.yaml --cluster 8xh100-80gb
    """
    from tuner.cli.check import run

    return run(asked)


@taking(SizeAsked)
def size(asked: SizeAsked) -> int:
    """Say how many GPUs a job needs, how large it may be on them, and what it costs.

    All of it is arithmetic, in seconds, on any machine. Exit code 3: it fits on no cluster, 1: the
    goal is reached on none.

    \b
    Examples:
      tuner size --model llama-3.1-8b --cluster 64x8xh100-80gb \\
          --global-batch-size 1024 --sequence-length 4096 \\
          --tokens 1T --within 14d --price 2.5
      tuner size --family qwen3 --cluster 8xh100-80gb \\
          --global-batch-size 64 --sequence-length 4096
    """
    from tuner.cli.size import run

    return run(asked)


def calibrate(
    cluster: Annotated[
        str,
        Option(
            metavar="CLUSTER",
            help="local (this machine) or cpu:2 (two CPU processes): it must be this machine.",
        ),
    ] = "local",
    json: Json = False,
    db: Database = None,
) -> int:
    """Measure what the devices here really compute, copy and send, for predictions to use.

    It takes under two minutes. Without it predictions rest on published rates, and no speed is
    predicted for CPU processes.

    \b
    Example, on any machine, without a GPU:
      tuner calibrate --cluster cpu:2
    """
    from tuner.cli.machine import calibrate as run

    return run(cluster, as_json=json, db=db)


def export(
    study: StudyId,
    format_name: Annotated[
        str,
        Argument(
            metavar="FORMAT",
            help="accelerate, trainer, trainer-flags, torch, torchrun, nanotron, deepspeed,"
            " torchtitan, sbatch, kubernetes, env or json; template: that of a script, with"
            " the answer filled in; optuna: a storage with the study.",
            autocompletion=format_names,
        ),
    ],
    write: Annotated[
        str | None, Option(metavar="PATH", help="Write it to this file, instead of to stdout.")
    ] = None,
    into: Annotated[
        str | None,
        Option(
            metavar="PATH",
            help="Put it into this file's text, of which the rest stays; axolotl, llama-factory"
            " and trl are formats too then. Only --write changes a file. With optuna: the"
            " storage that the study is written into.",
        ),
    ] = None,
    json: Json = False,
    db: Database = None,
) -> int:
    """Print a study's answer as the configuration file of a launcher.

    \b
    Example:
      tuner export st-5c1f accelerate --write accelerate.yaml
    """
    from tuner.cli.export import run

    return run(study, format_name, write, into_text=into, as_json=json, db=db)


def list_studies(
    label: Annotated[
        list[str] | None,
        Option(
            metavar="NAME[=VALUE]",
            help="Only those with this label, such as job=1234. Repeatable: with all of them.",
        ),
    ] = None,
    json: Json = False,
    db: Database = None,
) -> int:
    """List the 50 studies that were asked last, the newest first.

    \b
    Example:
      tuner studies list
    """
    from tuner.cli.studies import run

    return run(label or (), as_json=json, db=db)


def show_study(
    study: StudyId,
    why: Annotated[bool, Option("--why", help="Show all that is known of the answer.")] = False,
    json: Json = False,
    db: Database = None,
) -> int:
    """Show a study: what was asked, its probes, its answer, and why probes failed.

    \b
    Example:
      tuner studies show st-5c1f --why
    """
    from tuner.cli.render import show_study as run

    return run(study, why=why, as_json=json, db=db)


def cancel_study(
    study: StudyId,
    server: Annotated[
        str | None,
        Option(metavar="URL", help="The service that has it; its key is taken from $TUNER_KEY."),
    ] = None,
    json: Json = False,
    db: Database = None,
) -> int:
    """Cancel a study: its running probe ends within seconds, and what was measured is kept.

    \b
    Example:
      tuner studies cancel st-5c1f --server https://tuner.example.org
    """
    from tuner.cli.studies import cancel_run as run

    return run(study, server, as_json=json, db=db)


def delete_study(study: StudyId, json: Json = False, db: Database = None) -> int:
    """Delete a study that is at its end, with its probes; what all studies use is kept.

    \b
    Example:
      tuner studies delete st-5c1f
    """
    from tuner.cli.studies import delete_run as run

    return run(study, as_json=json, db=db)


def prune_database(
    older_than: Annotated[
        str, Option(metavar="AGE", help="What was last asked, or noted, longer ago: such as 90d.")
    ],
    json: Json = False,
    db: Database = None,
) -> int:
    """Delete old studies that are at their end, and old entries of the audit.

    \b
    Example:
      tuner db prune --older-than 90d
    """
    from tuner.cli.administration import prune

    return prune(older_than, as_json=json, db=db)


def create_key(
    name: Annotated[str, Argument(metavar="NAME", help="Who or what will use it, for people.")],
    scope: Annotated[
        str,
        Option(
            metavar="read|submit|admin",
            help="What it allows. read: see studies. submit: ask and cancel too. admin: see too"
            " who did what.",
        ),
    ] = "submit",
    json: Json = False,
    db: Database = None,
) -> int:
    """Make a key to the service, and print it: it is kept nowhere, and cannot be shown again.

    Alone on stdout, so that it can be put where it is needed without being seen.

    \b
    Example:
      tuner keys create scheduler --scope submit > scheduler.key
    """
    from tuner.cli.administration import create

    return create(name, scope, as_json=json, db=db)


def list_keys(json: Json = False, db: Database = None) -> int:
    """List the keys to the service: what each allows, and when it was used last.

    \b
    Example:
      tuner keys list
    """
    from tuner.cli.administration import show_keys

    return show_keys(as_json=json, db=db)


def revoke_key(
    key: Annotated[
        str, Argument(metavar="KEY", help="The key's id, or a beginning of it that no other has.")
    ],
    json: Json = False,
    db: Database = None,
) -> int:
    """Revoke a key for ever, from the next request on; the service need not be started again.

    \b
    Example:
      tuner keys revoke 5c1f
    """
    from tuner.cli.administration import revoke

    return revoke(key, as_json=json, db=db)


def audit_keys(
    limit: Annotated[str, Option(metavar="N", help="Entries to show at most, up to 1000.")] = "50",
    json: Json = False,
    db: Database = None,
) -> int:
    """Show who did what, the newest first: keys made, and used to submit or cancel.

    \b
    Example:
      tuner keys audit --limit 20
    """
    from tuner.cli.administration import show_audit

    return show_audit(limit, as_json=json, db=db)


Part = Annotated[
    str, Argument(metavar="[PART]", help="Only names that hold this.", show_default=False)
]


def list_models(part: Part = "", json: Json = False) -> int:
    """List the models of the catalogue: size, layers, and the longest sequence.

    Any other model is the path of a Hugging Face config.json.

    \b
    Example:
      tuner models llama
    """
    from tuner.cli.catalogue import show_models

    return show_models(part, as_json=json)


def list_gpus(part: Part = "", json: Json = False) -> int:
    """List the GPUs of the catalogue: memory, and published rates of matrices, memory and links.

    Any other GPU is described in a .toml file.

    \b
    Example:
      tuner gpus h100
    """
    from tuner.cli.catalogue import show_gpus

    return show_gpus(part, as_json=json)


def doctor(
    run: Annotated[
        bool, Option("--run", help="Check every knob first, by training small models for a minute.")
    ] = False,
    json: Json = False,
    db: Database = None,
) -> int:
    """Show what this machine can do, and what is wrong with it.

    Versions, devices, fidelities, and what is known of each knob in these versions. Exit code 1
    says that something is wrong.

    \b
    Example:
      tuner doctor --run
    """
    from tuner.cli.machine import diagnose_machine as diagnose

    return diagnose(check=run, as_json=json, db=db)


# ``tuner NAME``.
COMMANDS: dict[str, Callable[..., int]] = {
    "suggest": suggest,
    "predict": predict,
    "check": check,
    "size": size,
    "probe": probe,
    "rehearse": rehearse,
    "calibrate": calibrate,
    "export": export,
    "models": list_models,
    "gpus": list_gpus,
    "doctor": doctor,
    "serve": serve,
    "worker": worker,
    "workers": list_workers,
    "mcp": mcp,
}
# ``tuner GROUP NAME``, with each group's help.
GROUPS: dict[str, tuple[str, dict[str, Callable[..., int]]]] = {
    "studies": (
        "Look at studies.",
        {
            "list": list_studies,
            "show": show_study,
            "cancel": cancel_study,
            "delete": delete_study,
        },
    ),
    "db": (
        "Look after the database.",
        {
            "upgrade": upgrade_database,
            "check": check_database,
            "backup": backup_database,
            "prune": prune_database,
        },
    ),
    "keys": (
        "Look after the keys to the service.",
        {"create": create_key, "list": list_keys, "revoke": revoke_key, "audit": audit_keys},
    ),
}
