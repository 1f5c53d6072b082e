"""What a question looks like, for the OpenAPI document.

It is read by :mod:`tuner.client.tune_request`, which says what is wrong as the command line does.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, model_validator

from api import examples
from tuner.client.cases.reading import LARGEST_GIB, LONGEST_TEXT
from tuner.client.tune_request import LONGEST_S, MOST_VALUES
from tuner.core.cluster import (
    FASTEST,
    LONGEST_LATENCY_S,
    LONGEST_NAME,
    MOST_CORES,
    SLOWEST,
)
from tuner.core.workload import (
    LARGEST_BATCH,
    LARGEST_SEQUENCE,
    Optimizer,
    Precision,
    ReduceDtype,
)

POOL = r"^[A-Za-z0-9._-]{0,64}$"

Short = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
Share = Annotated[float, Field(ge=0, lt=1)]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
Rate = Annotated[float, Field(ge=SLOWEST, le=FASTEST)]


class Given(BaseModel):
    """Part of a request."""

    model_config = ConfigDict(extra="forbid")


class WorkloadGiven(Given):
    """What is trained."""

    model: Short | dict[str, Any] = Field(
        description="A name of the catalogue, or the fields of a Hugging Face config.json. Nothing"
        " is downloaded, no path is read, and weights are random.",
        examples=["llama-3.1-8b", examples.CONFIG],
    )
    model_name: Short | None = Field(
        default=None, max_length=200, description="What a configuration is called in answers."
    )
    sequence_length: int = Field(ge=2, le=LARGEST_SEQUENCE, description="Tokens of one sequence.")
    global_batch_size: int = Field(
        ge=1,
        le=LARGEST_BATCH,
        description="Sequences of one optimizer step, over all GPUs. No answer changes it.",
    )
    optimizer: Optimizer = Optimizer.ADAMW
    precision: Precision = Precision.BF16
    reduce_dtype: ReduceDtype | None = Field(
        default=None,
        description="Number format in which gradients are summed; by default the precision's own.",
    )


class LinkGiven(Given):
    """A link between two GPUs, as one of them sees it."""

    bytes_per_s: Rate | None = None
    latency_s: float | None = Field(default=None, ge=0, le=LONGEST_LATENCY_S)


class GpuGiven(Given):
    """What one rank computes on."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}$")
    device: Literal["cuda", "cpu"] = "cuda"
    memory_bytes: int = Field(ge=2**20, le=2**50, description="What the driver reports as total.")
    dense_bf16_flops_per_s: Rate | None = None
    memory_bytes_per_s: Rate | None = None
    dense_fp16_flops_per_s: Rate | None = None
    fp32_flops_per_s: Rate | None = None
    processor: str = Field(default="", max_length=LONGEST_NAME, description="Of CPU ranks only.")
    cores: int = Field(default=0, ge=0, le=MOST_CORES, description="Of CPU ranks only.")
    compute_capability: str = Field(
        default="",
        pattern=r"^([1-9][0-9]?\.[0-9])?$",
        description="Of NVIDIA GPUs; by it torch chooses how attention is computed.",
        examples=["8.6"],
    )


class ClusterGiven(Given):
    """Where training runs; links that are left out are the catalogue's, or unknown."""

    nodes: int = Field(ge=1, le=65_536)
    gpus_per_node: int = Field(ge=1, le=1_024)
    gpu: Short | GpuGiven
    intra_node: LinkGiven = LinkGiven()
    inter_node: LinkGiven = LinkGiven()


class FrameworkGiven(Given):
    """The stack that is launched."""

    name: Literal["torch", "accelerate", "trainer", "nanotron"]
    versions: dict[str, str] = Field(
        default_factory=dict,
        description="Releases by package; those left out are the workers'.",
        examples=[{"accelerate": "1.15.0"}],
    )


class BudgetGiven(Given):
    """How long to look at most."""

    max_probes: int | None = Field(default=None, ge=1, le=10_000)
    wall_s: Seconds | None = None
    gpu_s: Seconds | None = Field(default=None, description="GPU-seconds.")


class TuneRequest(Given):
    """A question: which settings are the fastest that fit?"""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": examples.REQUESTS})

    workload: WorkloadGiven
    cluster: Short | ClusterGiven = Field(
        description="8xa100-80gb, 4x8xh100-80gb (nodes x GPUs x kind), cpu:2, or its fields.",
        examples=["8xh100-80gb"],
    )
    framework: Literal["torch", "accelerate", "trainer", "nanotron"] | FrameworkGiven = "torch"
    knobs: dict[
        str, Annotated[list[int | bool | str], Field(min_length=1, max_length=MOST_VALUES)]
    ] = Field(
        default_factory=dict,
        description="Allows only these values of a knob.",
        examples=[{"tp_size": [1, 2]}],
    )
    fidelity: Literal["auto", "measured", "emulated", "predicted"] = Field(
        default="auto",
        description="How probes are run; auto is the strongest that the living workers have.",
    )
    budget: BudgetGiven = BudgetGiven()
    tolerance: Share = Field(default=0.01, description="Gain that is not worth another probe.")
    headroom: Share = Field(default=0.05, description="Share of a GPU's memory to leave free.")
    memory_limit_gib: float | None = Field(default=None, ge=2**-30, le=LARGEST_GIB)
    pool: str = Field(default="", pattern=POOL, description="Workers that may be at it.")
    sampler: Literal["cost-model", "tpe", "gp", "random"] = Field(
        default="cost-model",
        description="Proposes the next configuration: ours, or one of Optuna's.",
    )
    replace: bool = Field(
        default=False,
        description="Whether a study of this question that is open on other terms is put on these:"
        " whoever waits for it gets no answer on their own terms then. Otherwise this is 409.",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _as_given(cls, value: Any, handler: ModelWrapValidatorHandler["TuneRequest"]) -> Any:
        """Leaves reading to :mod:`tuner.client.tune_request`."""
        return value
