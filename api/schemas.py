"""What answers look like, for the OpenAPI document.

They are the product's own objects (``as_dict``); tests hold them against what is said here.
"""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from api import EXAMPLES
from tuner.core.configuration import KNOBS, UNSAID
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import ProbeState, StudyState
from tuner.text import show

STUDY_ID = r"^st-[0-9a-f]{12}$"


class Answered(BaseModel):
    """Part of an answer."""

    model_config = ConfigDict(extra="allow")


class Quantity(Answered):
    """A number with its 80% interval; all three are null when it is unknown."""

    value: float | None
    low: float | None
    high: float | None
    provenance: Provenance


if TYPE_CHECKING:
    SettingsAnswered = Answered
else:
    LEFT_OUT = {
        name: Field(default=default, description=f"Left out where it is {show(default)}.")
        for name, default in UNSAID.items()
    }
    SettingsAnswered = create_model(
        "SettingsAnswered",
        __base__=Answered,
        __doc__="One candidate.",
        **{name: (one.kind, LEFT_OUT.get(name, ...)) for name, one in KNOBS.items()},
    )


class Memory(Answered):
    """Memory of the GPU that needs most, in GiB of 2^30 bytes."""

    allocated_gib: Quantity
    needed_gib: Quantity = Field(
        description="What must be free, which is compared with the limit: allocated, and what lies"
        " outside of the allocator."
    )
    reserved_gib: Quantity
    device_gib: Quantity = Field(description="What the device's own tool shows.")
    limit_gib: float
    breakdown: dict[str, float]


class Guard(Answered):
    """Whether the settings were seen to train what they should."""

    verdict: str
    versions: dict[str, str]
    date: str | None
    why: str


class Candidate(Answered):
    """Settings that fit, with what is known of them."""

    settings: SettingsAnswered
    provenance: Provenance
    fits: bool
    memory: Memory
    tokens_per_s_per_gpu: Quantity
    step_time_s: Quantity
    guard: Guard


class PointMemory(Answered):
    """Memory of a point."""

    allocated_gib: Quantity


class Point(Answered):
    """Settings that no other beats in both memory and speed."""

    settings: SettingsAnswered
    memory: PointMemory
    tokens_per_s_per_gpu: Quantity


class InactiveKnob(Answered):
    """A knob that does not act, and why."""

    knob: str
    why: str


class Space(Answered):
    """Numbers of settings."""

    legal: int
    predicted_to_fit: int


class Cost(Answered):
    """What all probes took."""

    wall_s: float
    gpu_s: float


class Launch(Answered):
    """How to launch the best: the command, and the files that it reads."""

    argv: list[str]
    files: dict[str, str]
    script_sets: list[str] = Field(
        description="Knobs that no field of the files holds, as `name=value`: the training script"
        " must set them, as the files' comments show."
    )
    beside: dict[str, list[str]] = Field(
        default={},
        description="What else the files cannot say, by file; below a text's first line is code.",
    )


class Suggestion(Answered):
    """Ranked settings with the evidence for each number."""

    study_id: str
    state: StudyState
    workload: dict[str, Any]
    cluster: dict[str, Any]
    framework: dict[str, Any]
    best: Candidate | None
    alternatives: list[Candidate]
    pareto: list[Point]
    dead_knobs: list[InactiveKnob]
    inactive_knobs: list[InactiveKnob] = Field(default=[], description="The same.")
    space: Space
    probes: dict[str, int] = Field(description="Number of probes by outcome.")
    cost: Cost
    explanation: list[str]
    facts: list[dict[str, Any]] = Field(
        description="What each sentence of the explanation says: kind, numbers with units in their"
        " names, configurations, and the numbers of probes."
    )
    launch: Launch


class NoAnswer(Answered):
    """Why a study at its end has no best settings."""

    kind: Literal["nothing_fits", "trains_wrongly", "speed_unknown", "no_result"]
    message: str


class Question(Answered):
    """What was asked, complete."""

    workload: dict[str, Any]
    cluster: dict[str, Any]
    framework: dict[str, Any]
    knobs: dict[str, list[Any]]


class Limits(Answered):
    """Holds the answer to a memory limit, a tolerance, a budget and a fidelity."""

    fidelity: Fidelity
    headroom: float
    memory_limit_bytes: int | None
    tolerance: float
    max_probes: int
    max_dry_runs: int | None
    wall_s: float | None
    device_s: float | None
    pool: str


class Study(Answered):
    """A study: what was asked, where it stands, and what is suggested."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [EXAMPLES["study"]]})

    study_id: str = Field(pattern=STUDY_ID)
    state: StudyState
    reason: str = Field(description="Why it stands there.")
    revision: int
    created_at: str
    asked_at: str
    probes_before: int = Field(description="Probes that earlier requests had spent.")
    question: Question
    terms: Limits
    terms_id: str = Field(
        description="Names these limits: with `?terms=` this, no answer within others is given."
    )
    labels: dict[str, str] = Field(default={}, description="What those who asked say of it.")
    pending: bool = Field(
        description="Whether there is no best yet, and a worker is awaited or at it."
    )
    suggestion: Suggestion | None
    no_answer: NoAnswer | None


LEFT_OUT_OF_FILE = Field(
    default=None,
    description="Of a question `from` a file: values by knob that would have been looked at, had"
    " the file a field that says them. Else not there.",
)


class Submitted(Study):
    """The study that answers a question, with what was decided and not asked for."""

    notes: list[str]
    left_out: dict[str, list[Any]] | None = LEFT_OUT_OF_FILE


class SizedOn(Answered):
    """The best configuration that is predicted on a number of GPUs."""

    gpus: int
    nodes: int
    gpus_per_node: int
    cluster: str
    model: str
    sequence_length: int
    settings: SettingsAnswered
    provenance: Provenance
    fits_surely: bool = Field(description="Also at the upper end of the interval.")
    memory: dict[str, Any]
    tokens_per_s: Quantity = Field(description="Of all GPUs together.")
    tokens_per_s_per_gpu: Quantity
    step_time_s: Quantity
    cost_per_billion_tokens: Quantity | None
    finish_s: Quantity | None


class SizedCluster(Answered):
    """What a cluster and its parts can do; null what they cannot, or what was not asked."""

    cluster: str
    model: str
    price_per_gpu_hour: float | None
    fewest: SizedOn | None = Field(description="On the fewest GPUs on which something fits.")
    reaching: SizedOn | None = Field(description="On the fewest that reach the goal.")
    whole: SizedOn | None
    largest_micro_batch: SizedOn | None
    longest_sequence: SizedOn | None
    largest_model: SizedOn | None
    awkward_batches: list[dict[str, Any]] = Field(
        description="Where the global batch costs speed, and batches near it that do not."
    )
    why: str = Field(description="Why nothing fits, or the goal is not reached; else empty.")
    notes: list[str]


class SizedJob(Answered):
    """A row for each cluster, the best first."""

    goal: dict[str, float | None]
    rows: list[SizedCluster]
    notes: list[str]


class Predicted(Answered):
    """A prediction; of several cases `answers` alone."""

    fits: bool | None = None
    memory: dict[str, Any] = {}
    tokens_per_s_per_gpu: Quantity | None = None
    step_time_s: Quantity | None = None
    provenance: Provenance | None = None
    reason: str = Field(default="", description="Why it does not fit, or nothing is known.")
    answers: list[dict[str, Any]] | None = Field(default=None, description="Of `cases`, in order.")


class Checked(Answered):
    """What is known of a configuration file."""

    format: str
    fits: bool | None
    fits_surely: bool = Field(description="Also at the upper end of a prediction's interval.")
    memory: dict[str, Any]
    tokens_per_s_per_gpu: Quantity
    step_time_s: Quantity
    provenance: Provenance
    reason: str
    trains_wrongly: str
    notes: list[str]


class ModelListed(Answered):
    """A model of the catalogue."""

    name: str
    model_type: str
    parameters: int
    active_parameters: int | None
    layers: int
    longest_sequence: int


class Models(Answered):
    """The models of the catalogue."""

    models: list[ModelListed]


class GpuListed(Answered):
    """A kind of GPU, with its published figures."""

    name: str
    title: str
    memory_bytes: int
    bf16_flops_per_s: float | None
    memory_bytes_per_s: float
    intra_node_bytes_per_s: float
    inter_node_bytes_per_s: float


class Gpus(Answered):
    """The kinds of GPU that are known."""

    gpus: list[GpuListed]


class WrittenFormat(Answered):
    """A file that an answer is written as."""

    name: str
    file_name: str
    media_type: str


class Formats(Answered):
    """The files that are written, and those that are read."""

    written: list[WrittenFormat]
    read: list[str]


class LivingWorker(Answered):
    """A worker that serves studies."""

    id: int
    name: str
    pools: list[str]
    machine: dict[str, Any]
    versions: dict[str, str]
    started_at: str
    seen_at: str


class LivingWorkers(Answered):
    """The workers that gave a sign within the last minute."""

    workers: list[LivingWorker]


class Brief(Answered):
    """A study in less than a kilobyte, for schedulers; numbers have four digits."""

    study_id: str = Field(pattern=STUDY_ID)
    state: StudyState
    reason: str = Field(description="Why it stands there, or waits.")
    pending: bool
    terms_id: str = Field(description="Of its limits, for `?terms=`.")
    settings: dict[str, Any] | None
    provenance: Provenance | None
    tokens_per_s_per_gpu: float | None
    step_time_s: float | None
    needed_gib: float | None
    limit_gib: float | None
    warnings: list[str] = Field(description="Other load while probing, or a need near the limit.")
    launch: list[str] = Field(description="The command; left out where it would be too long.")
    script_sets: list[str] = Field(description="Knobs that no field of the files holds.")
    no_answer: str | None


class SubmittedBrief(Brief):
    """The same of the study that answers a question, with what was decided and not asked for."""

    notes: list[str]
    left_out: dict[str, list[Any]] | None = LEFT_OUT_OF_FILE


class WastedAttempt(Answered):
    """An attempt that was lost with its worker, given back, or ended in an accident after which
    the probe was tried again."""

    number: int
    state: Literal["done", "lost", "given_back"]
    outcome: Outcome | None
    """Of an accident; null of what was lost or given back."""
    detail: str
    worker: str
    started_at: str
    ended_at: str


class Probe(Answered):
    """Settings that were tried, or will be, with what was measured."""

    number: int
    """Within its study, from 1: explanations, files and pages name it so. Dry runs are counted
    apart, as -1, -2, ..., which is written `#d1`, `#d2`."""
    settings: SettingsAnswered
    fidelity: Fidelity
    repetition: int
    accumulation_counts: list[int]
    state: ProbeState
    memory_limit_bytes: int | None
    finished_at: str | None
    measurement: dict[str, Any] | None
    outcome: Outcome | None = None
    fits: bool | None = None
    step_time_s: Quantity | None = None
    tokens_per_s_per_gpu: Quantity | None = None
    wasted: list[WastedAttempt]
    """Attempts of which nothing came, oldest first."""


class ProbeList(Answered):
    """A study's probes, oldest first."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [EXAMPLES["probes"]]})

    study_id: str
    revision: int
    probes: list[Probe]
