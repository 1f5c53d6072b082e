"""The options of ``suggest`` and ``probe``: one dataclass each, expanded into the command.

Values stay text here; :mod:`tuner.cli.asked` reads them. So every bad value gets an error of the
same form, with what was given and what is allowed, and showing help imports nothing else.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar

from typer import Option

T = TypeVar("T")

WORKLOAD = "What is trained"
PRECISIONS = (
    "bf16: weights, gradients and optimizer state in bf16. bf16_mixed: these in fp32, matrices"
    " multiplied in bf16, as mixed_precision=bf16 of accelerate and the Trainer has it."
)
PLACE = "Where, and with what"
SPACE = "What may be chosen, and what fits"
BUDGET = "How long to look"
MANY = "Many cases"
PREDICTIONS = "What predictions rest on"
OUTPUT = "Output"


def _option(metavar: str, text: str, panel: str) -> Any:
    return Option(metavar=metavar, help=text, rich_help_panel=panel)


Json = Annotated[
    bool,
    Option("--json", help="Print one JSON object on stdout, and nothing else there."),
]
Database = Annotated[
    str | None,
    Option(
        "--db",
        metavar="URL",
        help="Database of the studies, such as sqlite:///studies.db. By default $TUNER_DB, or"
        " else SQLite in the user's data folder.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What ``suggest`` and ``probe`` have in common, as it was written."""

    model: Annotated[
        str,
        _option(
            "NAME|FILE",
            "A model of the catalogue, such as llama-3.1-8b or stories15m, or the path of a"
            " Hugging Face config.json. Weights are random; none are read.",
            WORKLOAD,
        ),
    ]
    global_batch_size: Annotated[
        str,
        _option(
            "N",
            "Sequences of one optimizer step, over all GPUs. No answer changes it.",
            WORKLOAD,
        ),
    ]
    sequence_length: Annotated[str, _option("N", "Tokens of one sequence.", WORKLOAD)]
    optimizer: Annotated[str, _option("adamw|adamw_8bit|sgd", "The optimizer.", WORKLOAD)] = "adamw"
    precision: Annotated[
        str,
        _option(
            "bf16|bf16_mixed|fp32",
            PRECISIONS,
            WORKLOAD,
        ),
    ] = "bf16"
    reduce_dtype: Annotated[
        str | None,
        _option(
            "bf16|fp32",
            "Number format in which gradients are summed over GPUs. By default fp32 with"
            " precision fp32, else bf16.",
            WORKLOAD,
        ),
    ] = None
    cluster: Annotated[
        str,
        _option(
            "CLUSTER",
            "local (this machine), cpu:2 (two CPU processes), 8xa100-80gb, 4x8xh100-80gb"
            " (nodes x GPUs x kind), or a .toml file. Probes are run here, so it must be this"
            " machine; any cluster with --fidelity predicted.",
            PLACE,
        ),
    ] = "local"
    framework: Annotated[
        str,
        _option(
            "torch|accelerate|trainer|nanotron",
            "The stack that you launch: a script of your own (torch), one with accelerate, the"
            " transformers Trainer, or nanotron, which is predicted only.",
            PLACE,
        ),
    ] = "torch"
    framework_version: Annotated[
        list[str] | None,
        _option(
            "PACKAGE=VERSION",
            "State a version, such as accelerate=1.15.0. Probes run with what is installed, so"
            " it must be that, but with --fidelity predicted. By default as installed."
            " Repeatable.",
            PLACE,
        ),
    ] = None
    knob: Annotated[
        list[str] | None,
        _option(
            "KNOB=VALUE,...",
            "Allow only these values of a knob, such as tp_size=1,2. By default every legal"
            " value, but no cpu_offload. Repeatable.",
            SPACE,
        ),
    ] = None
    headroom: Annotated[
        str | None,
        _option(
            "SHARE",
            "Share of each GPU's usable memory to leave free, below 1. By default 0.05.",
            SPACE,
        ),
    ] = None
    memory_limit: Annotated[
        str | None,
        _option(
            "SIZE",
            "Memory that a step may use of one GPU or CPU process, such as 4GiB or 500MiB; taken"
            " as it is. By default the GPU's memory less the headroom.",
            SPACE,
        ),
    ] = None
    fidelity: Annotated[
        str | None,
        _option(
            "measured|emulated|predicted|auto",
            "How probes are run. measured: on all ranks of the cluster. emulated: as its rank 0,"
            " alone on one device of its kind, or a larger one; communication is arithmetic."
            " predicted: as dry runs of one rank, without a device; what they do not show is"
            " arithmetic. auto: the first of these that this machine can. By default measured; with"
            " --server auto.",
            BUDGET,
        ),
    ] = None
    json: Json = False
    db: Database = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestAsked(Asked):
    """Options of ``tuner suggest``."""

    max_probes: Annotated[
        str | None,
        _option(
            "N",
            "Probes to run at most. By default 20; with --fidelity predicted 3, each a class of"
            " settings, and 6 dry runs in all: a class takes 1 to 4.",
            BUDGET,
        ),
    ] = None
    budget: Annotated[
        str | None,
        _option(
            "DURATION",
            "Time to look at most, such as 90s, 10m or 1.5h. By default without limit.",
            BUDGET,
        ),
    ] = None
    max_gpu_seconds: Annotated[
        str | None,
        _option(
            "N",
            "GPU-seconds to spend at most (of CPU processes: process-seconds). By default"
            " without limit.",
            BUDGET,
        ),
    ] = None
    tolerance: Annotated[
        str,
        _option(
            "SHARE",
            "Gain in speed that is not worth another probe, below 1; settings that differ less"
            " are tied, and the lighter one wins.",
            BUDGET,
        ),
    ] = "0.01"
    server: Annotated[
        str | None,
        _option(
            "URL",
            "Have a service answer, such as https://tuner.example.org: its workers probe, and"
            " this command shows how they get on. A key to it is taken from $TUNER_KEY.",
            PLACE,
        ),
    ] = None
    pool: Annotated[
        str,
        _option(
            "LABEL",
            "Only service workers of this pool may be at it. By default any.",
            PLACE,
        ),
    ] = ""
    replace: Annotated[
        bool,
        Option(
            "--replace",
            help="With --server: put a study of this question that is open there on other terms"
            " (budget, headroom, fidelity, pool) on these. Whoever waits for it is told.",
            rich_help_panel=PLACE,
        ),
    ] = False
    write: Annotated[
        list[str] | None,
        Option(
            metavar="FORMAT=PATH",
            help="Write the answer as a launcher's configuration file, such as"
            " accelerate=accelerate.yaml. Repeatable.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAsked(Asked):
    """Options of ``tuner probe``."""

    settings: Annotated[
        str,
        _option(
            "KNOB=VALUE,...",
            "What to try, such as sharding=full_shard,micro_batch_size=2. Knobs left out have"
            " their default; gradient_accumulation_steps follows from the global batch.",
            SPACE,
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictAsked:
    """Options of ``tuner predict``: a file of cases, or one case as in ``tuner probe``."""

    cases: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Answer the cases of this file, one JSON object on each line; - is stdin. The"
            " options of a single case are not taken then.",
            rich_help_panel=MANY,
        ),
    ] = None
    dry_runs: Annotated[
        str,
        _option(
            "auto|all|none",
            "What is dry-run where no dry run is kept. auto: of a model without any, the"
            " classes of settings that most cases ask for, 6 dry runs at most. all: every"
            " class. none: nothing. Other memory is by arithmetic.",
            PREDICTIONS,
        ),
    ] = "auto"
    model: Annotated[
        str | None,
        _option(
            "NAME|FILE",
            "A model of the catalogue, such as llama-3.1-8b, or the path of a Hugging Face"
            " config.json.",
            WORKLOAD,
        ),
    ] = None
    global_batch_size: Annotated[
        str | None,
        _option("N", "Sequences of one optimizer step, over all GPUs.", WORKLOAD),
    ] = None
    sequence_length: Annotated[str | None, _option("N", "Tokens of one sequence.", WORKLOAD)] = None
    optimizer: Annotated[
        str | None,
        _option("adamw|adamw_8bit|sgd", "The optimizer. By default adamw.", WORKLOAD),
    ] = None
    precision: Annotated[
        str | None,
        _option("bf16|bf16_mixed|fp32", f"{PRECISIONS} By default bf16.", WORKLOAD),
    ] = None
    reduce_dtype: Annotated[
        str | None,
        _option("bf16|fp32", "Number format in which gradients are summed over GPUs.", WORKLOAD),
    ] = None
    cluster: Annotated[
        str | None,
        _option(
            "CLUSTER",
            "8xa100-80gb, 4x8xh100-80gb (nodes x GPUs x kind), cpu:2, local, or a .toml file."
            " None of it has to be here.",
            PLACE,
        ),
    ] = None
    framework: Annotated[
        str | None,
        _option(
            "torch|accelerate|trainer|nanotron",
            "The stack that you launch. By default torch.",
            PLACE,
        ),
    ] = None
    framework_version: Annotated[
        list[str] | None,
        _option(
            "PACKAGE=VERSION",
            "State a version, such as accelerate=1.15.0. By default as installed. Repeatable.",
            PLACE,
        ),
    ] = None
    settings: Annotated[
        str | None,
        _option(
            "KNOB=VALUE,...",
            "What to predict, such as sharding=full_shard,micro_batch_size=2. Knobs left out"
            " have their default; gradient_accumulation_steps follows from the global batch.",
            SPACE,
        ),
    ] = None
    headroom: Annotated[
        str | None,
        _option(
            "SHARE",
            "Share of each GPU's usable memory to leave free, below 1. By default 0.05.",
            SPACE,
        ),
    ] = None
    memory_limit: Annotated[
        str | None,
        _option(
            "SIZE",
            "Memory that a step may use of one GPU, such as 70GiB; taken as it is.",
            SPACE,
        ),
    ] = None
    json: Json = False
    db: Database = None


def taking(kind: type[T]) -> Callable[[Callable[[T], int]], Callable[..., int]]:
    """Make a function of one ``kind`` a command whose options are the fields of ``kind``."""

    def expand(command: Callable[[T], int]) -> Callable[..., int]:
        @wraps(command)
        def run(**options: Any) -> int:
            return command(kind(**options))

        run.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        return run

    return expand
