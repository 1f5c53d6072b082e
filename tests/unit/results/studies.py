"""Studies whose probes found what a test wants."""

from dataclasses import replace

from tests.conftest import VERSIONS, make_dry_run
from tests.questions import question_about
from tests.unit.planner.conftest import SIZES, done, make_question, make_study
from tuner.catalog.versions import version_table
from tuner.client.advance import measurement_of
from tuner.core.configuration import Settings
from tuner.core.framework import FrameworkName, framework
from tuner.core.measurement import Fidelity
from tuner.core.study import ProbeRequest

MIB = 2**20
GIB = 2**30


def gpu_question(cluster="2xa100-80gb", batch=8, name="torch", **knobs):
    """A tiny model on GPUs whose rates are known."""
    table = version_table().frameworks[FrameworkName(name)]
    stated = {p: v for p, v in {**VERSIONS, "nanotron": "0.4"}.items() if p in table.oldest}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    model, stack = {"model_type": "llama", **SIZES, **heads}, framework(name, stated, {})
    return question_about(model, cluster, stack, tokens=128, batch=batch, knobs=knobs)


def predicted_study(question=None, **limits):
    """One to be predicted, without dry runs."""
    return make_study(question or gpu_question(), fidelity=Fidelity.PREDICTED, **limits)


def measured_study(told, question=None, *, limit_mib=4096, **limits):
    """One with these probes, in their order; repetitions count up."""
    limit, seen = limit_mib * MIB, dict[Settings, int]()
    probes = []
    for number, (settings, found) in enumerate(told, start=1):
        repetition = seen.get(settings, 0)
        seen[settings] = repetition + 1
        request = ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED, repetition=repetition)
        probes.append(done(number, request, found, limit))
    question = question or make_question()
    return make_study(question, probes=probes, memory_limit_bytes=limit, **limits)


def with_dry_run(study, settings, gib=1.0, error=None):
    """The study with the class of some settings dry-run; its peak, or how that failed."""
    failure = dict(error) if error else None
    dry_run = make_dry_run(study.question, settings, gib * GIB, gib * GIB / 8, error=failure)
    request = ProbeRequest(settings=settings, fidelity=Fidelity.PREDICTED)
    found = measurement_of(study.question, settings, dry_run)
    probe = done(len(study.probes) + 1, request, found, None)
    kept = {**study.dry_runs, dry_run.key: dry_run} if dry_run.profile else study.dry_runs
    return replace(study, probes=(*study.probes, probe), dry_runs=kept)
