"""The dry runs that stand behind cases: those that are kept, and those that are made for them.

A layout is dry-run once for all batch sizes, kinds of GPU and commands, and kept.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from tuner.client.cases.reading import Case
from tuner.client.values import Say
from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.workload import Workload
from tuner.cost.calibration import Calibration
from tuner.cost.prediction import uncovered_settings
from tuner.dryrun import (
    DryRun,
    DryRunner,
    DryRunPlan,
    NotDryRunError,
    Profile,
    dry_run_versions,
    missing_package,
    plan_dry_runs,
)
from tuner.errors import ProbeError
from tuner.guard.faults import Faults, checks_of, path_of

if TYPE_CHECKING:
    from tuner.store import Store

# Dry runs that :attr:`Policy.AUTO` makes for one model: of three layouts at two depths each, or of
# fewer with tensor parallelism, where a class has two at each depth.
MOST_OF_A_MODEL = 6
# Dry runs that :attr:`Policy.AUTO` makes for all models together; a minute or two.
MOST_IN_ALL = 48
# Dry runs that are looked up in one query.
KEYS_AT_ONCE = 500


class Policy(StrEnum):
    """Decides which layouts are dry-run when no dry run of theirs is kept."""

    AUTO = "auto"  # of a model without any: the layouts that most cases ask for
    ALL = "all"  # every class, also those whose dry run failed before
    NONE = "none"  # no class


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Results of the dry runs of a case's layout, and measured rates."""

    profile: Profile | None = None
    """Its memory; ``None`` when it was not dry-run, and memory is by arithmetic."""
    error: str = ""
    """Why its dry run failed, and nothing is predicted; empty when it did not."""
    accident: str = ""
    """What came between its dry run and the result, so that memory is by arithmetic."""
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of the packages that made the dry run; empty when there is none."""
    calibration: Calibration | None = field(default=None, hash=False)
    """Rates measured on devices like the cluster's, where there are any."""
    wrong: str = ""
    """Why the settings train something else, where that was seen; else empty."""


class Watch:
    """Is told what is going on."""

    def __init__(self, note: Say, waiting: Say | None = None) -> None:
        """``note`` is for what a user should know; ``waiting`` for what is waited for, and for an
        empty text when it is no more. By default that is noted too."""
        self.note = note
        self.waiting = waiting or (lambda text: text and note(text))


class DryRuns:
    """Makes and looks up dry runs for cases. A context manager: it ends the process that makes
    them.
    """

    def __init__(
        self,
        store: "Store",
        policy: Policy,
        watch: Watch,
        *,
        runner: DryRunner | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self._store, self._policy, self._watch = store, policy, watch
        self._runner = runner or DryRunner()
        self._versions = dry_run_versions() if versions is None else versions
        # By layout and what it depends on, the plan, or the reason why there is none.
        self._plans: dict[tuple[object, ...], DryRunPlan | str] = {}
        self._known: dict[str, Finding] = {}
        self._rates: dict[tuple[Cluster, str], Calibration | None] = {}
        self._faults: dict[tuple[Any, ...], Faults] = {}
        self._looked_up: set[str] = set()
        self._chosen: dict[str, DryRunPlan] = {}
        self._spent: Counter[str] = Counter()  # by model
        self._made = 0
        self._told: set[str] = set()
        self._making: Iterator[DryRun] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.end()

    def prepare(self, cases: Sequence[Case]) -> None:
        """Look up what is kept for these cases, and choose what is made when it is asked for."""
        asked: Counter[str] = Counter()
        plans: dict[str, tuple[DryRunPlan, Workload]] = {}
        for case in cases:
            plan = self._plan_of(case)
            if isinstance(plan, DryRunPlan):
                asked[plan.key] += 1
                plans[plan.key] = (plan, case.question.workload)
            else:
                self._tell_missing(plan)
        self._look_up({key: made_for.model.fingerprint for key, (_, made_for) in plans.items()})
        for key, _ in asked.most_common():
            if key not in self._known and key not in self._chosen:
                self._choose(*plans[key])

    def of(self, case: Case) -> Finding:
        """Returns the findings for a prepared case; waits for its dry run if one is made."""
        question, workload = case.question, case.question.workload
        plan, found = self._plan_of(case), Finding()
        if isinstance(plan, DryRunPlan):
            if plan.key in self._chosen:
                self._wait(plan.key)
            found = self._known.get(plan.key, found)
        cluster, versions = question.cluster, question.framework.versions
        devices = cluster, versions.get("torch", "")
        if devices not in self._rates:  # looked up once in a command
            self._rates[devices] = self._store.calibration(cluster, versions)
        model = workload.model.fingerprint
        stack = (
            *(question.framework, model, workload.precision, workload.optimizer),
            *(workload.adapter, workload.frozen),
        )
        if stack not in self._faults:
            kept = self._store.guards(question).values()
            self._faults[stack] = Faults(checks_of(question, kept))
        faults, wrong = self._faults[stack], None
        if faults.any:
            wrong = faults.wrong(path_of(case.settings, cluster.world_size))
        rates = self._rates[devices]
        if rates is None and not wrong:
            return found
        return replace(found, calibration=rates, wrong=wrong.why if wrong else "")

    def kept(self, case: Case, layouts: Iterable[Settings]) -> dict[Settings, Profile]:
        """Profiles of other layouts of a case's question, as far as they are kept; none is made."""
        plans = {one: self._plan_of(replace(case, settings=one)) for one in layouts}
        keys = {one: plan.key for one, plan in plans.items() if isinstance(plan, DryRunPlan)}
        model = case.question.workload.model.fingerprint
        self._look_up(dict.fromkeys(keys.values(), model))
        found = {one: self._known.get(key, Finding()).profile for one, key in keys.items()}
        return {one: profile for one, profile in found.items() if profile is not None}

    def _tell_missing(self, reason: str) -> None:
        if self._policy is Policy.NONE or "installed" not in reason or reason in self._told:
            return
        self._told.add(reason)
        self._watch.note(f"memory is by arithmetic: {reason}")

    def _look_up(self, models: Mapping[str, str]) -> None:
        """Read what is kept of these keys, each with its model's fingerprint."""
        fresh = sorted(models.keys() - self._looked_up)
        self._looked_up.update(fresh)
        for start in range(0, len(fresh), KEYS_AT_ONCE):
            kept = self._store.dry_runs(fresh[start : start + KEYS_AT_ONCE])
            for key, dry_run in kept.items():
                again = dry_run.error and self._policy is Policy.ALL
                if not again and dry_run.holds_here:
                    self._known[key] = _finding(dry_run)
                    self._spent[models[key]] = MOST_OF_A_MODEL

    def _choose(self, plan: DryRunPlan, workload: Workload) -> None:
        """Have a class dry-run, as far as the policy goes."""
        if missing := missing_package(workload, self._versions):
            self._tell_missing(missing)
            return
        model, count = workload.model.fingerprint, len(plan.requests)
        of_model, in_all = self._spent[model] + count, self._made + count
        enough = of_model > MOST_OF_A_MODEL or in_all > MOST_IN_ALL
        enough &= not workload.is_traced  # of which nothing else is known
        if self._policy is Policy.NONE or (self._policy is Policy.AUTO and enough):
            return
        self._spent[model], self._made = of_model, in_all
        self._chosen[plan.key] = plan

    def _wait(self, key: str) -> None:
        """Make what was chosen until ``key`` is done; without a process nothing is."""
        try:
            if self._making is None:
                self._making = self._runner.made(tuple(self._chosen.values()))
            while key in self._chosen:
                left = len(self._chosen)
                self._watch.waiting(f"dry runs: {left} layout{'s' * (left > 1)} to go")
                dry_run = next(self._making)
                if dry_run.is_kept:
                    self._store.keep_dry_run(dry_run)
                self._known[dry_run.key] = _finding(dry_run)
                del self._chosen[dry_run.key]
        except ProbeError as error:
            self._watch.note(f"no more dry runs are made, and memory is by arithmetic: {error}")
            self._policy = Policy.NONE
            self._chosen.clear()
        finally:
            self._watch.waiting("")
        if not self._chosen:
            self._making = None

    def _plan_of(self, case: Case) -> DryRunPlan | str:
        """The plan of a case's class, made once; or the reason why there is none."""
        question, settings = case.question, case.settings.layout
        workload, cluster, framework = question.workload, question.cluster, question.framework
        key = (
            (workload.model.fingerprint, workload.sequence_length),
            (
                *(workload.optimizer, workload.precision, workload.reduce_dtype),
                *(workload.loss, workload.tensor_parallel, workload.adapter, workload.packing),
                *(workload.frozen, workload.image_tokens),
            ),
            (cluster.nodes, cluster.gpus_per_node, cluster.gpu.device),
            framework,
            settings,
        )
        if (known := self._plans.get(key)) is not None:
            return known
        # What is not installed counts as stated: such dry runs may be kept, though none is made.
        versions = {**framework.versions, **self._versions}
        found: DryRunPlan | str = uncovered_settings(workload, framework, cluster, settings)
        try:
            found = found or plan_dry_runs(workload, cluster, framework, settings, versions)
        except NotDryRunError as error:
            found = error.reason
        self._plans[key] = found
        return found


def _finding(dry_run: DryRun) -> Finding:
    if not dry_run.is_kept:
        return Finding(accident=f"the dry run did not end well: {dry_run.error}")
    if dry_run.error:
        return Finding(error=f"the dry run of these settings failed: {dry_run.error}")
    return Finding(profile=dry_run.profile, versions=dry_run.versions)
