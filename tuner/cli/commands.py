"""All commands, with their options and their help. What does the work is imported inside: the help
of all of them must be quick."""

from collections.abc import Callable

from tuner.cli.administration import (
    audit_keys,
    backup_database,
    check_database,
    create_key,
    list_keys,
    prune_database,
    revoke_key,
    upgrade_database,
)
from tuner.cli.catalogue import list_gpus, list_models
from tuner.cli.options import (
    CheckAsked,
    Database,
    Json,
    PredictAsked,
    ProbeAsked,
    RehearseAsked,
    SizeAsked,
    SuggestAsked,
    Text,
    WorkerAsked,
    taking,
)
from tuner.cli.studies import StudyId, cancel_study, delete_study, list_studies, list_workers


def serve(
    host: Text = None,
    port: int | None = None,
    require_keys: bool | None = None,
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


@taking(SuggestAsked)
def suggest(asked: SuggestAsked) -> int:
    """Find the fastest configuration that fits, by running real training steps on this machine.

    With --fidelity predicted no device is needed: the answer is from dry runs and arithmetic, in
    seconds. Every probe is kept: the same question asked again goes on from there, also after
    Ctrl-C.

    \b
    Examples, on any machine, without a GPU:
      tuner suggest --model stories15m --cluster cpu:2 --max-probes 8 \\
          --global-batch-size 8 --sequence-length 128
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
          --global-batch-size 8 --sequence-length 128 \\
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


def calibrate(cluster: str = "local", json: Json = False, db: Database = None) -> int:
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
    format_name: str,
    write: Text = None,
    into: Text = None,
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


def show_study(study: StudyId, why: bool = False, json: Json = False, db: Database = None) -> int:
    """Show a study: what was asked, its probes, its answer, and why probes failed.

    \b
    Example:
      tuner studies show st-5c1f --why
    """
    from tuner.cli.render import show_study as run

    return run(study, why=why, as_json=json, db=db)


def doctor(run: bool = False, json: Json = False, db: Database = None) -> int:
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
