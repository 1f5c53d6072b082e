"""The options of ``predict``, ``check``, ``size`` and ``rehearse``: on any cluster."""

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from tuner.cli.options import (
    PLACE,
    SPACE,
    WORKLOAD,
    Json,
    QuestionFile,
    WorkloadAsked,
    cluster_names,
    option,
)

MANY = "Many cases"


PREDICTIONS = "What predictions rest on"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseAsked(WorkloadAsked):
    """Settings of one question that are predicted, as they were written."""

    dry_runs: Annotated[
        str,
        option(
            "auto|all|none",
            "What is dry-run where no dry run is kept: the layouts that most cases of a"
            " model ask for (auto), every layout (all), or none. Other memory is by"
            " arithmetic.",
            PREDICTIONS,
        ),
    ] = "auto"
    cluster: Annotated[
        str | None,
        option(
            "CLUSTER",
            "8xa100-80gb, 4x8xh100-80gb (nodes x GPUs x kind), cpu:2, local, or a .toml file."
            " None of it has to be here.",
            PLACE,
            cluster_names,
        ),
    ] = None
    settings: Annotated[
        str | None,
        option(
            "KNOB=VALUE,...",
            "Such as sharding=full_shard,micro_batch_size=2. Other knobs have their"
            " default; gradient_accumulation_steps follows from the global batch.",
            SPACE,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictAsked(CaseAsked):
    """Options of ``tuner predict``: a file of cases, or one case as in ``tuner probe``."""

    cases: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Answer the cases of this file, one JSON object on each line; - is stdin.",
            rich_help_panel=MANY,
        ),
    ] = None
    question_file: QuestionFile = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAsked(CaseAsked):
    """Options of ``tuner check``: a file, and what it does not say."""

    file: Annotated[str, Argument(metavar="FILE", help="The configuration file.")]
    format_name: Annotated[
        str | None,
        Option(
            "--format",
            metavar="accelerate|trainer|deepspeed|nanotron|json",
            help="Whose file it is. By default told by its content.",
            rich_help_panel=PLACE,
        ),
    ] = None


GOALS = "What it must reach, and what it costs"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAsked(WorkloadAsked):
    """Options of ``tuner size``."""

    family: Annotated[
        str | None,
        option(
            "NAME",
            "A family of the catalogue, such as qwen3: find its largest model that fits."
            " Without --model all is asked of that one.",
            WORKLOAD,
        ),
    ] = None
    cluster: Annotated[
        list[str],
        option(
            "CLUSTER",
            "The GPUs that there are, such as 64x8xh100-80gb (nodes x GPUs x kind), or a"
            " .toml file, which may have a price. Repeatable: each is a row, the best"
            " first.",
            PLACE,
            cluster_names,
        ),
    ]
    knob: Annotated[
        list[str] | None,
        option("KNOB=VALUE,...", "Allow only these values of a knob. Repeatable.", SPACE),
    ] = None
    tokens_per_s: Annotated[
        str | None, option("N", "Tokens per second to reach, of all GPUs together.", GOALS)
    ] = None
    tokens: Annotated[
        str | None,
        option("N", "Say how long training on so many tokens takes, such as 1T.", GOALS),
    ] = None
    within: Annotated[
        str | None,
        option("DURATION", "Time in which --tokens must be trained on, such as 14d.", GOALS),
    ] = None
    price: Annotated[
        str | None,
        option(
            "PRICE",
            "Of a GPU for an hour, in any currency, such as 2.5; price_per_gpu_hour of a"
            " cluster's file wins.",
            GOALS,
        ),
    ] = None
    verify: Annotated[
        bool,
        Option(
            "--verify",
            help="Dry-run the best configuration, which takes seconds and needs torch.",
            rich_help_panel=SPACE,
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearseAsked:
    """Options of ``tuner rehearse``, as they were written."""

    command: Annotated[
        list[str],
        Argument(
            metavar="-- COMMAND...",
            help="The command as you type it: torchrun, accelerate launch, deepspeed or python,"
            " with the script and its arguments.",
        ),
    ]
    cluster: Annotated[
        str | None,
        Option(
            metavar="CLUSTER",
            help="Its GPUs, such as 8x8xh100-80gb (nodes x GPUs x kind), or a .toml file. By"
            " default the command's ranks, on GPUs that never run out of memory.",
            autocompletion=cluster_names,
        ),
    ] = None
    ranks: Annotated[
        str, Option(metavar="RANK,...", help="Ranks to rehearse, one after another, as 0,last.")
    ] = "0"
    steps: Annotated[
        int,
        Option(
            metavar="N", help="Optimizer steps; a rank is ended after one more, which is timed."
        ),
    ] = 3
    seconds: Annotated[
        float, Option(metavar="N", help="Seconds, after which it is ended all the same.")
    ] = 600.0
    tokens_per_step: Annotated[
        int | None,
        Option(metavar="N", help="Tokens of all ranks in a step. By default each has its own."),
    ] = None
    snapshot: Annotated[
        str | None,
        Option(metavar="FOLDER", help="Write torch's memory snapshot of each rank there."),
    ] = None
    allow_network: Annotated[
        bool, Option("--allow-network", help="Let the script reach other machines.")
    ] = False
    allow_writes: Annotated[
        bool,
        Option(
            "--allow-writes",
            help="Let it write and save where it wants, not to a temporary folder.",
        ),
    ] = False
    even_here: Annotated[
        bool, Option("--even-here", help="Also where this machine has a GPU, which is hidden.")
    ] = False
    json: Json = False
