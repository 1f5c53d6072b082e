"""Studies that are planned with each sampler, and each as an Optuna study."""

from types import SimpleNamespace

import pytest

from tuner.core.configuration import Checkpointing, Settings
from tuner.core.measurement import Outcome
from tuner.core.study import SamplerName
from tuner.planner import Stop, next_probe
from tuner.planner.knowledge import learn
from tuner.planner.search import Search
from tuner.search.engine import replayed
from tuner.search.sampler import parameters_of
from tuner.space import enumerate_space


def fails(settings: Settings) -> Outcome | None:
    full = settings.activation_checkpointing is Checkpointing.FULL
    return Outcome.CRASHED if full and settings.micro_batch_size == 2 else None


@pytest.mark.parametrize("name", [n for n in SamplerName if n is not SamplerName.GP])
def test_the_answer_is_the_best_feasible_trial(lab: SimpleNamespace, name: SamplerName) -> None:
    question = lab.question(batch=32)
    machine = lab.Machine(question, noise=0.01, fail=fails)
    needs = sorted(machine.memory(one) for one in enumerate_space(question).legal)
    limit = needs[len(needs) // 2]
    study = lab.study(question, sampler=name, max_probes=12, memory_limit_bytes=limit)
    played, _ = machine.play(study)
    known = learn(played)
    search = Search(known)
    best = replayed(search.prior, search.trials).best_trial
    assert best.value == known.fitting[0].seconds
    index = parameters_of(search.prior).index_of(best.params)
    assert index is not None
    assert search.prior.settings[index] == known.fitting[0].settings
    assert machine.play(study)[0] == played


def test_gp_without_its_packages_stops_with_the_way_out(
    lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.core.study.find_spec", lambda name: None)
    plan = next_probe(lab.study(sampler=SamplerName.GP))
    assert isinstance(plan, Stop)
    assert "sampler gp needs torch and scipy" in plan.reason
    assert "pip install 'tuner[gp]'" in plan.reason
