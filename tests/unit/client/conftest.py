"""Cases of a tiny model, and dry runs that are made up."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import VERSIONS, trace
from tests.models import TINY
from tuner.client.cases import DryRuns, Policy, answer_cases
from tuner.dryrun import DryRun, DryRunner

MIB = 2**20

UNTIED = {**TINY, "tie_word_embeddings": False}


def a_case(**changes):
    """A case as it is written; ``workload__model`` stands for ``model`` inside ``workload``."""
    case = {
        "workload": {"model": dict(UNTIED), "sequence_length": 64, "global_batch_size": 32},
        "cluster": "8xa100-80gb",
        "framework": {"name": "torch", "versions": VERSIONS},
        "settings": {"sharding": "full_shard", "micro_batch_size": 2},
    }
    for path, value in changes.items():
        *parents, name = path.split("__")
        inside = case
        for parent in parents:
            inside = inside[parent]
        inside[name] = value
    return case


@dataclass
class Cache:
    """Dry runs in a dictionary, in the place of the store."""

    kept: dict[str, DryRun] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def guards(self, question):
        return {}

    def dry_runs(self, keys):
        self.asked.extend(keys)
        return {key: self.kept[key] for key in keys if key in self.kept}

    def keep_dry_run(self, dry_run):
        self.kept[dry_run.key] = dry_run

    def calibration(self, cluster, versions):
        return None


@dataclass
class Runner(DryRunner):
    """Answers at once, the last request first: with 1 MiB for each sequence, or an error."""

    fails: str = ""
    """Operator of the error that all requests end with."""
    kind: str = "Odd"
    """Type of that error."""
    requests: list[Mapping[str, Any]] = field(default_factory=list)
    open: bool = False

    def end(self):
        self.open = False

    def ask(self, requests, why_stop):
        self.open = True
        for request in reversed(requests):
            self.requests.append(request)
            if self.fails:
                error = {"type": self.kind, "message": "is not known", "operator": self.fails}
                yield {"id": request["id"], "error": {**error, "phase": "forward", "rule": ""}}
            else:
                yield {"id": request["id"], "trace": trace(request, MIB, MIB)}


@dataclass
class Watch:
    """Remembers what it was told."""

    notes: list[str] = field(default_factory=list)

    def waiting(self, text):
        """Nothing is shown."""

    def note(self, text):
        self.notes.append(text)


@dataclass
class Desk:
    """Answers cases with a cache and a runner of its own."""

    cache: Cache = field(default_factory=Cache)
    runner: Runner = field(default_factory=Runner)
    watch: Watch = field(default_factory=Watch)

    def dry_runs(self, policy=Policy.AUTO, versions=VERSIONS):
        """Dry runs of this desk."""
        return DryRuns(self.cache, policy, self.watch, runner=self.runner, versions=versions)

    def answer(self, *cases, policy=Policy.NONE):
        """The answers to cases, each an object or the bytes of a line."""
        lines = [case if isinstance(case, bytes) else json.dumps(case).encode() for case in cases]
        with self.dry_runs(policy) as dry_runs:
            return list(answer_cases(io.BytesIO(b"\n".join(lines)), dry_runs))


@pytest.fixture
def desk():
    """Answers cases."""
    return Desk()


@pytest.fixture
def lab():
    """Makers."""
    return SimpleNamespace(case=a_case, tiny=UNTIED, versions=VERSIONS, runner=Runner, desk=Desk)
