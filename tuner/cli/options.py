"""The options of ``suggest`` and ``probe``: one dataclass each, expanded into the command.

Values stay text here; :mod:`tuner.cli.options` reads them. So every bad value gets an error of the
same form, with what was given and what is allowed, and showing help imports nothing else.
"""

import inspect
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar

from typer import Argument, Option

T = TypeVar("T")

WORKLOAD = "What is trained"
OPTIMIZERS = (
    "adamw, adamw_fused, adamw_8bit, sgd, adamw_bnb_8bit, paged_adamw_8bit, lion,"
    " adafactor or muon."
)
LOSSES = (
    "Your script's loss: transformers' own (hf), or cross entropy of whole logits"
    " in fp32 (fp32) or as they are (own_dtype)."
)
STYLES = "sequence_parallel|sharded_logits|gathered_logits"
TENSORS = (
    "How your script splits layers where tp_size is above 1; sharded_logits and"
    " gathered_logits are without sequence parallelism."
)
PRECISIONS = (
    "bf16: weights, gradients and optimizer state too. bf16_mixed: these in fp32,"
    " only products in bf16; the default with accelerate and trainer, else bf16."
)
REDUCTIONS = (
    "Format in which gradients are summed over GPUs. By default fp32 with precision"
    " fp32, else bf16; with accelerate and trainer in bf16_mixed framework: fp32"
    " under DDP, bf16 under FSDP."
)
ADAPTERS = "Train an adapter by peft, and freeze the model. By default all of the model is trained."
LORA_TARGETS = "Layers that are adapted: all-linear (the default), or such as q_proj,v_proj."
QUANTIZES = "Format of qlora's frozen linear layers, by bitsandbytes. By default nf4."
DOUBLES = "Whether the scales of qlora's blocks are quantized too. By default true."
SAVED = "Modules trained whole beside the adapter, as peft's modules_to_save: embed_tokens,lm_head."
FROZEN = (
    "Parts of the model that are not trained: embeddings, head, or its modules,"
    " such as norm, visual and layers.0-15."
)
VARIANTS = "varlen|position_ids|block_diagonal|padded"
PACKINGS = (
    "How documents lie in a sequence: in a row for FlashAttention's kernel (varlen,"
    " meant without a value), by positions that begin anew (position_ids), by a"
    " mask in the batch (block_diagonal), or one in each, padded (padded)."
)
DOCUMENTS = (
    "Their tokens: mean=512, lengths with counts (512x10,2048x3), or a file of"
    " lengths, one a line or as JSON. By default each fills a sequence."
)
TASK_NAMES = "causal_lm|masked_lm|sequence_classification|image_text_to_text"
IMAGES = "Tokens of each sequence that stand for images, with --task image_text_to_text."
TASKS = (
    "What the model is trained for. A classifier's labels are those of its"
    " configuration (num_labels, or id2label)."
)
PLACE = "Where, and with what"
SPACE = "What may be chosen, and what fits"
BUDGET = "How long to look"
SCRIPT = "Your own script"
OWN_FILE = "Your own configuration"


def option(
    metavar: str, text: str, panel: str, completes: Callable[[str], list[str]] | None = None
) -> Any:
    return Option(metavar=metavar, help=text, rich_help_panel=panel, autocompletion=completes)


# What a shell completes; it waits for them, so each imports no more than it needs.


def model_names(begun: str) -> list[str]:
    from tuner.catalog import models

    return [name for name in models.names() if name.startswith(begun)]


def cluster_names(begun: str) -> list[str]:
    """Spellings of clusters: numbers of nodes and GPUs that are written stay before the kind."""
    from tuner.catalog.gpus import gpu_kinds

    counts = re.match(r"(?:[0-9]+x){0,2}", begun)
    before = counts[0] if counts else ""
    found = [f"{before or '8x'}{kind}" for kind in gpu_kinds()]
    return [one for one in ("local", "cpu:2", *found) if one.startswith(begun)]


def format_names(begun: str) -> list[str]:
    """Formats of files; with ``=`` where an option takes ``FORMAT=PATH``."""
    from tuner.launchfiles import FORMATS

    return [name for name in FORMATS if name.startswith(begun)]


def study_ids(begun: str) -> list[str]:
    """Studies of the default database, the newest first."""
    from tuner.cli.studies import is_there
    from tuner.store import open_store

    if not is_there(None):
        return []
    with open_store(create=False) as store:
        return [one.id for one in store.studies(50) if one.id.startswith(begun)]


def read_question(ctx: Any, path: str | None) -> str | None:
    """Takes the options that are not given from a TOML file, by their names; a list repeats one."""
    if path is None:
        return None
    from tuner.errors import UsageError, did_you_mean, why_unreadable

    try:
        with open(os.path.expanduser(path), "rb") as file:  # noqa: PTH111, PTH123
            written = tomllib.load(file)
    except OSError as error:
        raise UsageError("file", path, why_unreadable(error)) from error
    except ValueError as error:
        raise UsageError("file", path, f"must be a TOML file of options: {error}") from error
    known = {one.name: one for one in ctx.command.params if one.name != "question_file"}
    given: dict[str, Any] = {}
    for name, value in written.items():
        option = known.get(field := name.replace("-", "_"))
        if option is None:
            near = did_you_mean(field, known)
            raise UsageError("file", name, f"is no option of {ctx.info_name}{near}, in {path}")
        if getattr(option, "is_flag", False):
            given[field] = value
        elif option.multiple or isinstance(value, list):
            given[field] = [*map(str, value)] if isinstance(value, list) else [str(value)]
        else:
            given[field] = str(value).lower() if isinstance(value, bool) else str(value)
    ctx.default_map = {**(ctx.default_map or {}), **given}
    return path


QuestionFile = Annotated[
    str | None,
    Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Take options that are not given here from this TOML file, such as"
        ' model = "llama-3.1-8b".',
        callback=read_question,
        is_eager=True,
    ),
]


Json = Annotated[bool, Option("--json", help="Print one JSON object on stdout, nothing else.")]
Database = Annotated[
    str | None,
    Option(
        "--db",
        metavar="URL",
        help="Database of the studies, such as sqlite:///studies.db. By default $TUNER_DB,"
        " else SQLite in the user's data folder.",
    ),
]
Headroom = Annotated[
    str | None,
    option("SHARE", "Share of each GPU's memory to leave free. By default 0.05.", SPACE),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAsked:
    """What is trained, with what, and within what memory, as it was written."""

    model: Annotated[
        str | None,
        option(
            "NAME|FILE",
            "A name of the catalogue (tuner models), or a Hugging Face config.json. No"
            " weights are read. Only a --script can do without.",
            WORKLOAD,
            model_names,
        ),
    ] = None
    global_batch_size: Annotated[
        str | None,
        option(
            "N", "Sequences of one optimizer step, over all GPUs. No answer changes it.", WORKLOAD
        ),
    ] = None
    sequence_length: Annotated[str | None, option("N", "Tokens of one sequence.", WORKLOAD)] = None
    optimizer: Annotated[
        str | None, option("NAME", f"{OPTIMIZERS} By default adamw.", WORKLOAD)
    ] = None
    precision: Annotated[str | None, option("bf16|bf16_mixed|fp32", PRECISIONS, WORKLOAD)] = None
    reduce_dtype: Annotated[
        str | None,
        option(
            "bf16|fp32|framework",
            REDUCTIONS,
            WORKLOAD,
        ),
    ] = None
    loss: Annotated[
        str | None, option("hf|fp32|own_dtype", f"{LOSSES} By default hf.", WORKLOAD)
    ] = None
    tensor_parallel: Annotated[
        str | None, option(STYLES, f"{TENSORS} By default sequence_parallel.", WORKLOAD)
    ] = None
    adapter: Annotated[str | None, option("lora|qlora", ADAPTERS, WORKLOAD)] = None
    lora_rank: Annotated[
        str | None, option("N", "Rank of the adapter. By default 16.", WORKLOAD)
    ] = None
    lora_alpha: Annotated[
        str | None, option("X", "Alpha over rank scales the adapter. By default 32.", WORKLOAD)
    ] = None
    lora_dropout: Annotated[
        str | None,
        option(
            "SHARE",
            "Dropout of the adapted layers' inputs; any takes memory for a mask. By default 0.05.",
            WORKLOAD,
        ),
    ] = None
    lora_targets: Annotated[str | None, option("NAME,...", LORA_TARGETS, WORKLOAD)] = None
    lora_modules_to_save: Annotated[str | None, option("NAME,...", SAVED, WORKLOAD)] = None
    quantize: Annotated[str | None, option("nf4|fp4", QUANTIZES, WORKLOAD)] = None
    double_quant: Annotated[str | None, option("true|false", DOUBLES, WORKLOAD)] = None
    frozen: Annotated[str | None, option("PART,...", FROZEN, WORKLOAD)] = None
    task: Annotated[str | None, option(TASK_NAMES, f"{TASKS} By default causal_lm.", WORKLOAD)] = (
        None
    )
    image_tokens: Annotated[str | None, option("N", IMAGES, WORKLOAD)] = None
    packing: Annotated[str | None, option(VARIANTS, PACKINGS, WORKLOAD)] = None
    documents: Annotated[str | None, option("mean=N|NxCOUNT,...|FILE", DOCUMENTS, WORKLOAD)] = None
    framework: Annotated[
        str | None,
        option(
            "torch|accelerate|trainer|nanotron|deepspeed",
            "The stack that you launch: plain torch (the default), accelerate,"
            " transformers' Trainer, or, predicted only, nanotron or DeepSpeed.",
            PLACE,
        ),
    ] = None
    framework_version: Annotated[
        list[str] | None,
        option(
            "PACKAGE=VERSION",
            "State a version, such as accelerate=1.15.0; only --fidelity predicted takes"
            " others than those installed. Repeatable.",
            PLACE,
        ),
    ] = None
    headroom: Headroom = None
    memory_limit: Annotated[
        str | None,
        option(
            "SIZE",
            "Memory that a step may use of one GPU or CPU process, such as 4GiB. By default"
            " the GPU's less the headroom.",
            SPACE,
        ),
    ] = None
    json: Json = False
    db: Database = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(WorkloadAsked):
    """Options that ``suggest`` and ``probe`` have in common, as they were written."""

    cluster: Annotated[
        str | None,
        option(
            "CLUSTER",
            "local (this machine), cpu:2 (two CPU processes), 8xa100-80gb, 4x8xh100-80gb"
            " (nodes x GPUs x kind), or a .toml file. Probes need it to be this machine. By default"
            " local; where only --fidelity predicted is asked of an exported file, its own.",
            PLACE,
            cluster_names,
        ),
    ] = None
    knob: Annotated[
        list[str] | None,
        option(
            "KNOB=VALUE,...",
            "Allow only these values of a knob, such as tp_size=1,2. By default every legal"
            " value; cpu_offload, cp_size and activation_checkpointing=offload only where named"
            " here, fused_loss also where logits are large. Repeatable.",
            SPACE,
        ),
    ] = None
    fidelity: Annotated[
        str | None,
        option(
            "measured|emulated|rehearsed|predicted|auto",
            "measured: probes on all ranks. emulated: on one device that plays rank 0;"
            " communication is arithmetic. rehearsed: as rank 0 over torch's own CUDA allocator,"
            " without a GPU. predicted: dry runs without a device. Speed of the last two is"
            " predicted. auto: the first that this machine can, but not rehearsed. By default"
            " measured; with --server auto.",
            BUDGET,
        ),
    ] = None
    probe_deadline: Annotated[
        str | None,
        option(
            "DURATION",
            "Time that one probe may take, such as 30m; past it the configuration counts as"
            " slow. By default 10m.",
            BUDGET,
        ),
    ] = None
    launcher: Annotated[
        str | None,
        option(
            "local|slurm|ray",
            "What starts ranks. By default slurm in an allocation of several nodes, else local.",
            PLACE,
        ),
    ] = None
    ray: Annotated[
        str | None,
        option(
            "HOST:PORT",
            "The Ray cluster of --launcher ray. By default $RAY_ADDRESS, or a new one on"
            " this machine.",
            PLACE,
        ),
    ] = None
    script: Annotated[
        str | None,
        option(
            "FILE",
            "Probe this training script in place of the built-in step. It reports steps by"
            " tuner.integrations, and takes settings by placeholders such as"
            " {micro_batch_size} after --.",
            SCRIPT,
        ),
    ] = None
    launch: Annotated[
        str | None,
        option(
            "torchrun|accelerate",
            "What starts the script. By default accelerate with --framework accelerate or"
            " trainer, else torchrun.",
            SCRIPT,
        ),
    ] = None
    script_env: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            "Set an environment variable of the script, with placeholders. Repeatable.",
            SCRIPT,
        ),
    ] = None
    template: Annotated[
        str | None,
        option(
            "FILE",
            "A configuration file with placeholders, written anew for every probe;"
            " {template} is its path.",
            SCRIPT,
        ),
    ] = None
    script_arguments: Annotated[
        list[str] | None,
        Argument(metavar="-- ARGUMENT...", help="Arguments of the script."),
    ] = None
    question_file: QuestionFile = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestAsked(Asked):
    """Options of ``tuner suggest``."""

    from_file: Annotated[
        str | None,
        Option(
            "--from",
            metavar="FILE",
            help="Read the question out of the configuration that you launch today; options add"
            " what it leaves open.",
            rich_help_panel=OWN_FILE,
        ),
    ] = None
    format_name: Annotated[
        str | None,
        Option(
            "--format",
            metavar="NAME",
            help="Whose file it is. By default told by its content.",
            rich_help_panel=OWN_FILE,
        ),
    ] = None
    in_place: Annotated[
        bool,
        Option(
            "--in-place",
            help="Put the answer into the file, and keep a copy of the old one.",
            rich_help_panel=OWN_FILE,
        ),
    ] = False
    no_backup: Annotated[
        bool,
        Option("--no-backup", help="Keep no copy with --in-place.", rich_help_panel=OWN_FILE),
    ] = False
    diff: Annotated[
        bool,
        Option(
            "--diff", help="Show what the answer changes in the file.", rich_help_panel=OWN_FILE
        ),
    ] = False

    max_probes: Annotated[
        str | None,
        option(
            "N",
            "Probes to run at most. By default 20; with --fidelity predicted 3 layouts, and"
            " 6 dry runs in all.",
            BUDGET,
        ),
    ] = None
    budget: Annotated[
        str | None,
        option(
            "DURATION",
            "Time to look at most, such as 90s, 10m or 1.5h.",
            BUDGET,
        ),
    ] = None
    max_gpu_seconds: Annotated[
        str | None,
        option(
            "N",
            "GPU-seconds (of CPU processes: process-seconds) to spend at most.",
            BUDGET,
        ),
    ] = None
    tolerance: Annotated[
        str,
        option(
            "SHARE",
            "Gain in speed that is not worth another probe; of configurations that differ"
            " less the lightest wins.",
            BUDGET,
        ),
    ] = "0.01"
    sampler: Annotated[
        str,
        option(
            "NAME",
            "Proposes the next configuration: cost-model, or Optuna's tpe, gp (pip install"
            " 'tuner[gp]') or random.",
            BUDGET,
        ),
    ] = "cost-model"
    server: Annotated[
        str | None,
        option(
            "URL",
            "Have a service answer, such as https://tuner.example.org: its workers probe."
            " Its key is taken from $TUNER_KEY.",
            PLACE,
        ),
    ] = None
    pool: Annotated[
        str,
        option("LABEL", "With --server: only workers of this pool may take it.", PLACE),
    ] = ""
    replace: Annotated[
        bool,
        Option(
            "--replace",
            help="With --server: put an open study of this question on these limits (budget,"
            " headroom, fidelity, pool).",
            rich_help_panel=PLACE,
        ),
    ] = False
    label: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="Keep this label with the study, for tuner studies list --label. Repeatable.",
        ),
    ] = None
    write: Annotated[
        list[str] | None,
        Option(
            metavar="FORMAT=PATH",
            help="Write the answer as a launcher's file, such as accelerate=accelerate.yaml."
            " Repeatable.",
            autocompletion=format_names,
        ),
    ] = None
    tokens: Annotated[
        str | None,
        Option(metavar="N", help="Say how long training on so many tokens takes, such as 1T."),
    ] = None
    why: Annotated[bool, Option("--why", help="Show all that is known of the answer.")] = False
    quiet: Annotated[bool, Option("--quiet", "-q", help="Show the answer only.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAsked(Asked):
    """Options of ``tuner probe``."""

    settings: Annotated[
        str,
        option(
            "KNOB=VALUE,...",
            "Such as sharding=full_shard,micro_batch_size=2. Other knobs have their"
            " default; gradient_accumulation_steps follows from the global batch.",
            SPACE,
        ),
    ]


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
