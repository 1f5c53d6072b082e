"""Every command: its options, its help, and where it is done.

What does the work is imported inside the commands, so that ``tuner --help`` imports none of it.
"""

from collections.abc import Callable
from typing import Annotated

from typer import Argument, Option

from tuner.cli import operating
from tuner.cli.case_options import CheckAsked, PredictAsked
from tuner.cli.options import Database, Json, ProbeAsked, SuggestAsked, taking

StudyId = Annotated[
    str, Argument(metavar="STUDY", help="A study's id, or a beginning of it that no other has.")
]


@taking(SuggestAsked)
def suggest(asked: SuggestAsked) -> int:
    """Find the fastest settings that fit, by running real training steps on this machine.

    With --fidelity predicted nothing has to be here: the answer is from dry runs and arithmetic,
    in seconds, and says which is which. Every probe is kept: the same question asked again goes
    on from there. Ctrl-C ends the running probe and loses nothing else.

    \b
    Examples, on any machine, without a GPU:
      tuner suggest --model stories15m --cluster cpu:2 --max-probes 8 \\
          --global-batch-size 8 --sequence-length 128
      tuner suggest --model llama-3.1-8b --cluster 8xh100-80gb \\
          --global-batch-size 256 --sequence-length 4096 --fidelity predicted
    """
    from tuner.cli.suggest import run

    return run(asked)


@taking(ProbeAsked)
def probe(asked: ProbeAsked) -> int:
    """Run one probe of given settings on this machine, and show what it measured.

    It is kept in the study of the same question. Settings that were probed before are run once
    more, unless they are dry-run (--fidelity predicted), which always shows the same. Exit code 3
    says that the settings do not fit in memory.

    \b
    Example, on any machine, without a GPU:
      tuner probe --model stories15m --cluster cpu:2 \\
          --global-batch-size 8 --sequence-length 128 \\
          --settings sharding=full_shard,micro_batch_size=2
    """
    from tuner.cli.probe import run

    return run(asked)


@taking(PredictAsked)
def predict(asked: PredictAsked) -> int:
    """Predict memory and speed of given settings, on any cluster, without a device.

    With --cases, each line of a file is answered by a line, in the same order: the case, and
    fits, memory, step_time_s, tokens_per_s_per_gpu, provenance and reason; or error with field
    and message. Exit code 0 then says that every line was answered.

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

    It reads what accelerate, the Trainer, DeepSpeed or nanotron are started with, or what tuner
    export wrote as json; what the file does not say goes into options. What was measured of the
    very settings is shown before what is predicted. Exit code 0: it fits, 3: it does not, 4: it is
    known to train something else, 1: nothing is known of it, 2: something is missing or wrong.

    \b
    Examples:
      tuner check accelerate.yaml --model llama-3.1-8b \\
          --cluster 8xh100-80gb --sequence-length 4096 \\
          --global-batch-size 64 --settings micro_batch_size=8
      tuner check nanotron.yaml --cluster 8xh100-80gb
    """
    from tuner.cli.check import run

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

    It takes under two minutes of all of them: matrix products, copies, layers of a small model,
    optimizer updates, and collectives from small to large. Until then predictions rest on
    published rates, and no speed is predicted for CPU processes.

    \b
    Example, on any machine, without a GPU:
      tuner calibrate --cluster cpu:2
    """
    from tuner.cli.calibrate import run

    return run(cluster, as_json=json, db=db)


def export(
    study: StudyId,
    format_name: Annotated[
        str,
        Argument(
            metavar="FORMAT",
            help="The launcher's: accelerate, trainer, trainer-flags, torch, torchrun, nanotron,"
            " deepspeed, torchtitan, sbatch, kubernetes, env or json; or template, that of a script"
            " with the answer filled in.",
        ),
    ],
    write: Annotated[
        str | None,
        Option(metavar="PATH", help="Write it to this file, instead of to stdout."),
    ] = None,
    into: Annotated[
        str | None,
        Option(
            metavar="PATH",
            help="Put it into this file's text, of which the rest stays (nanotron). Only --write"
            " writes.",
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


def list_studies(json: Json = False, db: Database = None) -> int:
    """List the 50 studies that were asked last, the newest first.

    \b
    Example:
      tuner studies list
    """
    from tuner.cli.studies import run

    return run(as_json=json, db=db)


def show_study(study: StudyId, json: Json = False, db: Database = None) -> int:
    """Show a study: what was asked, its probes, its answer, and why probes failed.

    \b
    Example:
      tuner studies show st-5c1f
    """
    from tuner.cli.show import run

    return run(study, as_json=json, db=db)


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
    from tuner.cli.cancel import run

    return run(study, server, as_json=json, db=db)


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
    from tuner.cli.keys import create

    return create(name, scope, as_json=json, db=db)


def list_keys(json: Json = False, db: Database = None) -> int:
    """List the keys to the service: what each allows, and when it was used last.

    \b
    Example:
      tuner keys list
    """
    from tuner.cli.keys import show_keys

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
    from tuner.cli.keys import revoke

    return revoke(key, as_json=json, db=db)


def audit_keys(
    limit: Annotated[str, Option(metavar="N", help="Entries to show at most, up to 1000.")] = "50",
    prune_before: Annotated[
        str | None,
        Option(metavar="DATE", help="Show none, but delete those from before this day, in UTC."),
    ] = None,
    json: Json = False,
    db: Database = None,
) -> int:
    """Show who did what, the newest first: keys made, used to submit or cancel, and refused.

    \b
    Example:
      tuner keys audit --limit 20
    """
    from tuner.cli.keys import prune_audit, show_audit

    if prune_before is not None:
        return prune_audit(prune_before, as_json=json, db=db)
    return show_audit(limit, as_json=json, db=db)


def doctor(
    run: Annotated[
        bool,
        Option("--run", help="Check every knob first, by training small models for a minute."),
    ] = False,
    json: Json = False,
    db: Database = None,
) -> int:
    """Show what this machine can do, and what is wrong with it.

    Versions, devices, which fidelities can be used, what is known of each knob in these versions,
    and whether it was seen to train what it should. Exit code 1 says that something is wrong.

    \b
    Example:
      tuner doctor --run
    """
    from tuner.cli.doctor import run as diagnose

    return diagnose(check=run, as_json=json, db=db)


COMMANDS: dict[str, Callable[..., int]] = {
    "suggest": suggest,
    "predict": predict,
    "check": check,
    "probe": probe,
    "calibrate": calibrate,
    "export": export,
    "doctor": doctor,
    "serve": operating.serve,
    "worker": operating.worker,
    "workers": operating.list_workers,
}
"""``tuner NAME``."""
GROUPS: dict[str, tuple[str, dict[str, Callable[..., int]]]] = {
    "studies": (
        "Look at studies.",
        {"list": list_studies, "show": show_study, "cancel": cancel_study},
    ),
    "db": (
        "Look after the database.",
        {
            "upgrade": operating.upgrade_database,
            "check": operating.check_database,
            "backup": operating.backup_database,
        },
    ),
    "keys": (
        "Look after the keys to the service.",
        {"create": create_key, "list": list_keys, "revoke": revoke_key, "audit": audit_keys},
    ),
}
"""``tuner GROUP NAME``, with each group's help."""
