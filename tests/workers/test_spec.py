from tuner.measurement import Fidelity
from tuner.settings import Settings
from tuner.study import Probe, ProbeRequest, ProbeState, Study, StudyState, Terms
from workers.files import write_spec
from workers.probe.spec import read_spec
from workers.spec import probe_spec

SETTINGS = Settings(micro_batch_size=1, gradient_accumulation_steps=2)


def probe(counts: tuple[int, ...] = ()) -> Probe:
    request = ProbeRequest(
        settings=SETTINGS, fidelity=Fidelity.MEASURED, accumulation_counts=counts
    )
    return Probe(id=1, request=request, state=ProbeState.RUNNING, memory_limit_bytes=12345)


def study(question) -> Study:
    return Study(id="st-1", question=question, terms=Terms(), state=StudyState.RUNNING, seed=11)


def test_the_probe_program_reads_it(question, tmp_path):
    spec = read_spec(write_spec(tmp_path, probe_spec(study(question), probe((2, 4)))))
    assert spec.settings.gradient_accumulation_steps == 2
    assert spec.accumulation_counts == [2, 4]
    assert spec.model["model_type"] == "llama"
    assert spec.world_size == spec.gpus_per_node == 2
    assert spec.device == "cpu"
    assert spec.memory_limit_bytes == 12345
    assert spec.seed == 11
    assert spec.sequence_length == 64
    assert spec.global_batch_size == 4
    assert (spec.optimizer, spec.precision, spec.reduce_dtype) == ("adamw", "bf16", "bf16")
    assert spec.tracked_steps < spec.warmup_steps
    assert spec.minimum_steps <= spec.measured_steps


def test_the_settings_own_accumulation_where_the_request_names_none(question):
    assert probe_spec(study(question), probe())["accumulation_counts"] == [2]
