"""``tuner mcp``: the product's questions as tools for agents (the Model Context Protocol).

Answers are short, for whoever pays by the word: what was chosen, its figures with their provenance,
and how it is launched. The arguments are those of :func:`tuner.suggest` that most questions have.
"""

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, ParamSpec

from pydantic import Field

import tuner
from tuner.cli.options import McpAsked
from tuner.client.cases import NotCoveredError, Policy
from tuner.client.values import plain_arguments
from tuner.core.adapter import AdapterMethod
from tuner.core.framework import FrameworkName
from tuner.core.measurement import Fidelity
from tuner.core.study import StudyState, parse_labels
from tuner.core.workload import Precision
from tuner.errors import TunerError
from tuner.planner.sizing import Sized
from tuner.results.summary import in_brief, rounded
from tuner.store import open_store

P = ParamSpec("P")

Model = Annotated[
    str, Field(description="A name of the catalogue (llama-3.1-8b), or the path of a config.json.")
]
Cluster = Annotated[
    str, Field(description="Such as 8xh100-80gb or 4x8xh100-80gb (nodes x GPUs x kind).")
]
Batch = Annotated[int, Field(ge=1, description="Sequences of one optimizer step, over all GPUs.")]
Length = Annotated[int, Field(ge=2, description="Tokens of one sequence.")]
Settings = Annotated[
    str, Field(description="Such as sharding=full_shard,micro_batch_size=2; others have a default.")
]
File = Annotated[
    str,
    Field(
        description="A configuration that is launched today (axolotl, LLaMA-Factory, TRL, the"
        " Trainer, accelerate, DeepSpeed, nanotron, torchtitan, or an export): its path on this"
        " machine, or its text. What it says need not be said again."
    ),
]
# Sentences of an explanation that are told, the most important first.
MOST_SENTENCES = 5


def serve(asked: McpAsked) -> int:
    """Serves the tools over this process's stdin and stdout, until they close."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise TunerError("tuner mcp needs the package mcp: pip install 'tuner[mcp]'") from error

    def told(answer: Callable[P, dict[str, Any]]) -> Callable[P, dict[str, Any]]:
        """Tells errors in a line that can be acted on."""

        @wraps(answer)
        def tell(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
            try:
                return answer(*args, **kwargs)
            except TunerError as error:
                errors = getattr(error, "errors", (error,))
                raise ToolError("; ".join(map(str, errors))) from error

        return tell

    server, tools = MCPServer("tuner", instructions=tuner.__doc__), Tools(asked.db)
    for one in (tools.suggest, tools.predict, tools.check, tools.size, tools.studies):
        server.add_tool(told(one), name=one.__name__)
    server.run("stdio")
    return 0


class Tools:
    """What agents may ask."""

    def __init__(self, db: str | None) -> None:
        self._db = db

    def suggest(
        self,
        cluster: Cluster,
        model: Model | None = None,
        global_batch_size: Batch | None = None,
        sequence_length: Length | None = None,
        from_file: File = "",  # of a union the text of JSON would come as an object
        framework: FrameworkName | None = None,
        precision: Precision | None = None,
        optimizer: str | None = None,
        adapter: AdapterMethod | None = None,
        fidelity: Fidelity = Fidelity.PREDICTED,
        max_probes: Annotated[int | None, Field(ge=1)] = None,
    ) -> dict[str, Any]:
        """Finds the fastest settings that fit in memory. predicted takes seconds and needs no GPU;
        rehearsed counts memory by torch's own allocator without one, where its CUDA build is;
        emulated and measured run real steps on this machine, which must have the GPUs. What is
        trained is said by arguments, or by from_file."""
        given = _given(locals()) | {"from_file": from_file or None}
        found = tuner.suggest(**given, db=self._db)
        study = {"study_id": found.study_id, "state": found.state, "suggestion": found.as_dict()}
        return {**in_brief(study), "why": list(found.explanation[:MOST_SENTENCES])}

    def predict(
        self,
        model: Model,
        cluster: Cluster,
        global_batch_size: Batch,
        sequence_length: Length,
        settings: Settings,
        framework: FrameworkName = FrameworkName.TORCH,
        precision: Precision | None = None,
        optimizer: str = "adamw",
        adapter: AdapterMethod | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Predicts memory and speed of given settings, by kept dry runs or arithmetic; dry_run
        makes one, in seconds."""
        given = _given(locals())
        policy = Policy.ALL if given.pop("dry_run", False) else Policy.NONE
        found = tuner.predict(**given, dry_runs=str(policy), db=self._db)
        return _judged(found)

    def check(
        self,
        file: File,
        cluster: Cluster | None = None,
        model: Model | None = None,
        global_batch_size: Batch | None = None,
        sequence_length: Length | None = None,
        settings: Settings | None = None,
    ) -> dict[str, Any]:
        """Says whether a configuration file fits on a cluster, such as one of axolotl, accelerate,
        the Trainer or DeepSpeed; what was measured goes before what is predicted."""
        given = _given(locals())
        try:
            known = tuner.check(given.pop("file"), **given, dry_runs="none", db=self._db)
        except NotCoveredError as error:
            return {"fits": None, "reason": error.allowed}
        return {"format": known.format_name, **_judged(known)}

    def size(
        self,
        cluster: Annotated[
            list[str], Field(min_length=1, description="The GPUs that there are; each is a row.")
        ],
        global_batch_size: Batch,
        sequence_length: Length,
        model: Model | None = None,
        family: Annotated[
            str | None, Field(description="In the place of a model: its largest that fits.")
        ] = None,
        tokens_per_s: Annotated[float | None, Field(gt=0)] = None,
        tokens: Annotated[float | None, Field(gt=0)] = None,
        within_s: Annotated[float | None, Field(gt=0)] = None,
        price_per_gpu_hour: Annotated[float | None, Field(ge=0)] = None,
        optimizer: str = "adamw",
        adapter: AdapterMethod | None = None,
    ) -> dict[str, Any]:
        """Says how many GPUs a job needs to fit, to reach a speed or to finish in time, the longest
        sequence and largest micro-batch, and what it costs. All of it is arithmetic."""
        found = tuner.size(**_given(locals()), db=self._db)
        rows = []
        for row in found.rows:
            longest, micro = row.longest_sequence, row.largest_micro_batch
            rows.append(
                {
                    "cluster": row.cluster.name,
                    "model": row.model,
                    "fewest": _sized(row.fewest),
                    "reaching": _sized(row.reaching),
                    "whole": _sized(row.whole),
                    "longest_sequence": longest and longest.question.workload.sequence_length,
                    "largest_micro_batch": micro and micro.best.settings.micro_batch_size,
                    "awkward_batches": [one.instead for one in row.awkward],
                    "why": row.why,
                }
            )
        return {"provenance": "predicted", "rows": rows}

    def studies(
        self,
        label: Annotated[list[str], Field(description="Such as job=1234; all must be there.")] = [],  # noqa: B006
        state: StudyState | None = None,
        limit: Annotated[int, Field(ge=1, le=50)] = 10,
    ) -> dict[str, Any]:
        """Lists the studies that were asked last, with their answers."""
        with open_store(self._db) as store:
            found = store.studies(limit, state=state, labels=parse_labels("label", label))
            kept = store.summaries([one.id for one in found])
        listed = []
        for one in found:
            answer = kept[one.id].content if one.id in kept else {}
            speed = answer.get("tokens_per_s_per_gpu") or {}
            listed.append(
                {
                    "study_id": one.id,
                    "model": one.model_name,
                    "cluster": one.cluster_name,
                    "state": str(one.state),
                    "labels": dict(one.labels),
                    "settings": answer.get("words", ""),
                    "tokens_per_s_per_gpu": rounded(speed.get("value")),
                    "provenance": answer.get("provenance", "unknown"),
                    "asked_at": one.asked_at,
                }
            )
        return {"studies": listed}


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a tool that were given: they are named as those of Python."""
    return plain_arguments(**{name: one for name, one in arguments.items() if name != "self"})


def _judged(found: Any) -> dict[str, Any]:
    """A prediction, or a check, in brief."""
    return {
        "fits": found.fits,
        "allocated_gib": rounded(found.allocated_gib.value),
        "tokens_per_s_per_gpu": rounded(found.tokens_per_s_per_gpu.value),
        "step_time_s": rounded(found.step_time_s.value),
        "provenance": str(found.provenance),
        "reason": found.reason or found.trains_wrongly,
        "notes": list(found.notes),
    }


def _sized(found: Sized | None) -> dict[str, Any] | None:
    if found is None:
        return None
    cost, finish, speed = found.cost_per_billion_tokens, found.finish_s, found.tokens_per_s
    return {
        "gpus": found.gpus,
        "settings": str(found.best.settings),
        "tokens_per_s": rounded(speed.value),
        "tokens_per_s_from_to": [rounded(speed.low), rounded(speed.high)],
        "needed_gib": rounded(found.best.needed_gib.value),
        "cost_per_billion_tokens": cost and rounded(cost.value),
        "finish_s": finish and rounded(finish.value),
    }
