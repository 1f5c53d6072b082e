"""Facts of an answer on predictions; see :mod:`tuner.explain.facts`."""

from collections.abc import Mapping

from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Basis, Fidelity
from tuner.core.packing import PackingVariant
from tuner.core.quantity import Quantity
from tuner.core.words import (
    describe,
    interval_text,
    listed,
    probes_text,
    range_text,
    seconds_text,
    share_text,
    speed_text,
)
from tuner.cost.prediction import OF_TRACES
from tuner.explain.english import (
    CATEGORY_WORDS,
    PHASE_WORDS,
    arithmetic_text,
    basis_text,
    few_text,
    most_text,
)
from tuner.explain.facts import EarlierStudy, Fact, KnobChange
from tuner.text import show, size_text


class NothingProbed(Fact):
    fidelity: Fidelity
    is_done: bool
    last: str = ""  # how the last probe failed, with its detail

    def __str__(self) -> str:
        if self.is_done:
            return f"No probe has given a result{self.last and f'; the last: {self.last}'}."
        return f"Nothing was {self.fidelity} yet: no probe is done."


class ProbedTrainsWrongly(Fact):
    says = "What was {fidelity} and fits trains something else: {why}."

    fidelity: Fidelity
    why: str


class NothingProbedFits(Fact):
    says = "None of the settings probed was seen to fit in {limit_bytes:size}."

    limit_bytes: float


class SmallestNeed(Fact):
    says = """{self:smallest}"""

    smallest: Evaluation
    limit_bytes: float


class GoOn(Fact):
    options: tuple[str, ...]
    """Of the command line, that allow more; none where asking again is enough."""

    def __str__(self) -> str:
        if not self.options:
            return "Ask again, and it goes on where it ended."
        options = ", ".join(self.options)
        return f"Ask again with a larger budget ({options}): it goes on where it ended."


class WhatFollows(Fact):
    says = "What follows is predicted, until something is {fidelity} that fits."

    fidelity: Fidelity


class Predicted(Fact):
    best: Evaluation
    limit_bytes: float
    basis: Basis
    time_from: str

    def __str__(self) -> str:
        best = self.best
        time = {
            "arithmetic": "arithmetic",
            "transferred": "transferred: arithmetic, corrected by what other studies measured",
            "corrected": "arithmetic, corrected by what other studies measured of less similar"
            " settings",
        }[self.time_from]
        if best.is_rehearsed:
            return (
                f"{describe(best.settings)} is predicted to take {seconds_text(best.seconds)} for"
                f" an optimizer step ({interval_text(best.step_time_s)}), which is {time};"
                f" rehearsed, it needed {most_text(best)} of {size_text(self.limit_bytes)} (probe"
                f" {probes_text(best.probe_ids)})."
            )
        memory = basis_text(best) if best.probes else "arithmetic"
        same = time == memory
        basis = "both are arithmetic" if same else f"its memory is {memory}, its time is {time}"
        return (
            f"{describe(best.settings)} is predicted to take {seconds_text(best.seconds)} for an"
            f" optimizer step ({interval_text(best.step_time_s)}) and to need {most_text(best)} of"
            f" {size_text(self.limit_bytes)} on one device; {basis}."
        )


class NothingMeasured(Fact):
    says = """Nothing was measured: ask with the fidelity measured on {cluster} itself, or of a
    service that has a worker there (tuner worker)."""

    cluster: str


class Rehearsed(Fact):
    says = """{count:count probe} rehearsed settings ({probes:probes}): their memory is what
    torch's own CUDA allocator counted over steps of rank 0 of {world_size}, on no GPU, and up to
    {outside_bytes:size} of context and communicators, as assumed. All times are predicted."""

    count: int
    probes: tuple[int, ...]
    world_size: int
    outside_bytes: float
    """Context and communicators, at most: they are assumed."""


class TimesOfBuiltIn(Fact):
    says = """What was rehearsed is {path}; times are predicted of the built-in step of {model},
    and say no more of the script than an order."""

    path: str
    model: str


class TransferredFrom(Fact):
    says = """No step of this question was timed. The most similar settings that other studies
    ran are {near:.0%} alike, workload included; by these studies the step takes {factor:.2f}
    times what {at_assumed_rates:arithmetic} says."""

    near: float
    factor: float
    at_assumed_rates: bool


class MayNotFit(Fact):
    says = """At the upper end of its memory's interval it would not fit: nothing is predicted to
    fit in {limit_bytes:size} for sure."""

    limit_bytes: float


class Unverified(Fact):
    says = """By arithmetic {leader.settings:settings} would be faster, with
    {leader.seconds:seconds} ({ratio:change}) and {leader:need}, but its layout was not dry-run;
    more --max-probes allow that."""

    leader: Evaluation
    ratio: float


class Lighter(Fact):
    says = """{least.settings:settings} needs {spared_bytes:size} less, {least:basis}, and is
    predicted to take {least.seconds:seconds} ({ratio:change}): predictions err alike for all
    settings, so only a tie within the tolerance is decided by memory."""

    least: Evaluation
    spared_bytes: int
    ratio: float


class MemoryPeak(Fact):
    basis: Basis
    peak_bytes: float
    phase: str
    largest: Mapping[str, float]
    is_all: bool

    def __str__(self) -> str:
        by = "a dry run" if self.basis is Basis.DRY_RUN else "arithmetic"
        parts = [
            f"{size_text(size)} of {CATEGORY_WORDS[name]}" for name, size in self.largest.items()
        ]
        rest = "" if self.is_all else ", and the rest is less"
        return (
            f"By {by} the peak of {size_text(self.peak_bytes)} is in {PHASE_WORDS[self.phase]}:"
            f" {listed(parts)}{rest}."
        )


class MemoryUnknown(Fact):
    says = "What it needs is unknown: {why}."

    why: str


class ExpertsPadded(Fact):
    says = """FSDP2 splits packed experts by whole experts, so each of the {ranks} ranks that
    shard has room for {each} of {experts}, which is {self.times:.3g} times their size in all:
    {held_bytes:size} of padding in parameters, gradients and optimizer state, and
    {gathered_bytes:size} in each layer that is gathered."""

    experts: int
    ranks: int
    each: int
    held_bytes: float
    gathered_bytes: float

    @property
    def times(self) -> float:
        return self.each * self.ranks / self.experts


class InputsOnHost(Fact):
    says = """`activation_checkpointing=offload` keeps {rank_bytes:size} of layers' inputs of
    each rank in host memory: each micro-batch sends them there and fetches them back. Pinned, in
    blocks of powers of two, they take {self.node_bytes:size} of a node's memory."""

    rank_bytes: float
    pinned_bytes: int
    """Of a rank, with what torch rounds each input up by."""
    ranks: int
    """That share the memory of a node."""

    @property
    def node_bytes(self) -> int:
        return self.ranks * self.pinned_bytes


class DocumentsTaken(Fact):
    """What documents a sequence is taken for."""

    variant: PackingVariant
    are_said: bool
    sequence_length: int
    row: tuple[int, ...]
    """Tokens of each."""
    tokens_per_s_per_gpu: Quantity
    useful_tokens_per_s_per_gpu: Quantity
    """Without padding."""

    def __str__(self) -> str:
        length, row, variant = self.sequence_length, self.row, self.variant
        if variant is PackingVariant.PADDED:
            useful, every = self.useful_tokens_per_s_per_gpu, self.tokens_per_s_per_gpu
            speed = ""
            if useful.value is not None:
                speed = (
                    f": of {speed_text(every.value)} tokens/s per GPU {speed_text(useful.value)}"
                    f" ({range_text(useful)}, {useful.provenance}) are useful"
                )
            share = share_text(1 - sum(row) / length)
            return f"Each sequence of {length:,} tokens is taken to be {share} padding{speed}."
        if self.are_said:
            number = f"{len(row)} documents" if len(row) > 1 else "one document"
            sizes = f"{min(row):,} to {max(row):,}" if min(row) < max(row) else f"{row[0]:,}"
            return f"Each sequence is taken for {number} of {sizes} tokens."
        if variant is PackingVariant.POSITION_IDS:
            return (
                "No documents are said: each sequence is taken for two, of which transformers"
                " makes a mask; with it attention takes as long whatever the documents are."
            )
        return (
            "No documents are said: each sequence is taken for one, of which attention takes the"
            " longest that it can. `--documents` says what they are."
        )


class AdapterTrained(Fact):
    says = """Of {parameters:,} parameters the adapter's {trained:,} ({self.part:share}) are
    trained: they alone have gradients, which are reduced, and optimizer state."""

    trained: int
    parameters: int
    """Of the model and the adapter."""

    @property
    def part(self) -> float:
        return self.trained / self.parameters


class KnobPredicted(Fact):
    """The effect of another value of a knob on the peak of memory."""

    changes: tuple[KnobChange]
    reason: str
    beside: str
    """Other knobs that change with it and matter, such as ``gradient_accumulation_steps=2``."""
    basis: Basis
    of_dry_run: bool

    def __str__(self) -> str:
        (one,) = self.changes
        also = f", with {self.beside}," if self.beside else ""
        told = f"`{one.knob}={show(one.value)}`{also} would"
        if not one.memory_bytes:
            return f"{told} hardly change the peak: it is not what the peak is made of."
        verb = "add" if one.memory_bytes > 0 else "save"
        both = self.of_dry_run and self.basis is Basis.ARITHMETIC
        by = " (both by arithmetic)" if both else ""
        return f"{told} {verb} {size_text(abs(one.memory_bytes))}{by}: {self.reason}."


class OfDryRun(Fact):
    says = "Of its dry run: {note}."

    note: str


class OfDryRunsAlone(Fact):
    says = f"{OF_TRACES[0].upper()}{OF_TRACES[1:]}."


class SpeedUnknown(Fact):
    says = """{fit} of the {legal} legal settings {how} to fit in {limit_bytes:size}, but which
    of them is the fastest is not known: {why}."""

    fit: int
    legal: int
    limit_bytes: float
    why: str
    how: str = "are predicted"


class HowToKnowSpeed(Fact):
    cluster: str
    is_cpu: bool
    missing: tuple[str, ...]
    precisions: tuple[str, ...]
    """Precisions whose matrix rate is known, where no other figure is missing."""
    is_listed: bool

    def __str__(self) -> str:
        if self.is_cpu:
            return (
                "Speeds of CPU ranks can be measured, on that machine: --fidelity measured; or"
                f" predicted, once tuner calibrate --cluster {self.cluster} has run there."
            )
        ways = []
        if self.precisions:
            named = " or ".join(self.precisions)
            ways.append(f"with --precision {named}, whose matrix rate is known")
        if not ways or not self.is_listed:
            ways.append(f"where --cluster is a .toml file that states {', '.join(self.missing)}")
        told = ", or ".join(ways)
        return f"Speeds are predicted {told}; or measure them there: --fidelity measured."


class LargestListed(Fact):
    says = """Of each layout the largest micro-batch that fits is listed, the simplest layout
    first: {first.settings:settings} needs {first:need}, {first:basis}."""

    first: Evaluation


class AllTrainWrongly(Fact):
    says = """{fit} of the {legal} legal settings are predicted to fit in {limit_bytes:size}, and
    all of them train something else."""

    fit: int
    legal: int
    limit_bytes: float


class NothingPredicted(Fact):
    dry_runs_failed: bool

    def __str__(self) -> str:
        if self.dry_runs_failed:
            return "The dry runs failed, so nothing is known of what any settings need."
        return "Nothing is predicted of any settings."


class NothingFits(Fact):
    says = "None of the {legal} legal settings is predicted to fit in {limit_bytes:size}."

    legal: int
    limit_bytes: float


class Uncovered(Fact):
    says = "Unknown of {count} of the {legal} legal settings, with {shardings:list}: {why}."

    count: int
    legal: int
    shardings: tuple[str, ...]
    why: str


class MeasuredRates(Fact):
    says = "{text:sentence}"

    text: str


class NoDryRuns(Fact):
    failed: bool
    why: str
    is_transferred: bool

    def __str__(self) -> str:
        made = "No dry run succeeded"
        if not self.failed:
            made = f"No dry run was made{f' ({self.why})' if self.why else ''}"
        if self.is_transferred:
            return f"{made}: all memory, and every time before it is corrected, is arithmetic."
        return f"{made}: all numbers are arithmetic."


class DryRunsMade(Fact):
    says = """{probes:number} of {layouts} layouts were dry-run (probe {probes:probes}): their
    memory is counted on the step itself. The memory of the others, what is outside of tensors,
    and every time{is_transferred:before} are arithmetic."""

    probes: tuple[int, ...]
    layouts: int
    is_transferred: bool


class OtherVersions(Fact):
    says = """The dry runs were made with {ran:versions}, which is installed here, instead of the
    {asked:versions} that is asked about; what the knobs do is as in the latter."""

    ran: Mapping[str, str]
    asked: Mapping[str, str]


class Transferred(Fact):
    count: int
    timed: int
    low: float
    high: float
    near: float
    at_assumed_rates: bool
    studies: tuple[EarlierStudy, ...]

    def __str__(self) -> str:
        ends = " to ".join(dict.fromkeys(f"{end:.2f}" for end in (self.low, self.high)))
        count = len(self.studies)
        counted = "1 other study" if count == 1 else f"{count} other studies"
        text = (
            f"The times of {self.count} of {self.timed} settings are transferred: {ends} times what"
            f" {arithmetic_text(self.at_assumed_rates)} says, by the steps that {counted} ran on"
            f" such devices with the same versions: {few_text(map(str, self.studies))}."
        )
        if self.count < self.timed:
            text += (
                " The other times are corrected by these too, and stay predicted: what was run is"
                f" less than {self.near:.0%} like them."
            )
        return text
