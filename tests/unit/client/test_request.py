"""Requests and cases: what may be written, and all that is wrong named with its path, at once."""

import json
from pathlib import Path

import pytest

from tests.models import TINY
from tests.records import VERSIONS
from tuner.client.cases import NotCoveredError, read_case
from tuner.client.parts import LARGEST_FILE_BYTES
from tuner.client.request import MOST_SETTINGS, read_cluster, read_here, read_request
from tuner.client.values import is_misspelled, model_note, read_model, uncovered_model_type
from tuner.core.cluster import Link, parse_cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits
from tuner.core.workload import Optimizer
from tuner.errors import UsageError
from tuner.machine import ReportedGpu
from tuner.model import published_model
from tuner.space import enumerate_space

GIB = 2**30
WORKLOAD = {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 256}
ASKED = {"workload": WORKLOAD, "cluster": "8xh100-80gb"}
OWN = {
    "nodes": 2,
    "gpus_per_node": 4,
    "gpu": {"name": "mine", "memory_bytes": 10 * GIB, "dense_bf16_flops_per_s": 1e14},
}
CPU = {"name": "cpu", "device": "cpu", "memory_bytes": GIB}
CPUS = {"nodes": 1, "gpus_per_node": 2, "gpu": CPU}


def changed(values, change):
    """The values with others at dotted paths; ``...`` takes a field away."""
    values = json.loads(json.dumps(values))
    for path, value in change.items():
        *parents, last = path.split(".")
        table = values
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = value
        if value is ...:
            del table[last]
    return values


def wrong(read, values):
    """What is allowed, by the path of each field that is wrong."""
    with pytest.raises(UsageError) as caught:
        read(values)
    assert "\n" not in str(caught.value)
    assert all(len(str(one)) < 1000 for one in caught.value.errors)
    return {one.field: one.allowed for one in caught.value.errors}


def test_what_is_left_out_or_null_has_defaults():
    request = read_request(ASKED)
    assert request.workload.model == published_model("llama-3.1-8b")
    assert request.fidelity is None
    assert request.limits_at(Fidelity.MEASURED) == Limits(max_probes=20)
    predicted = request.limits_at(Fidelity.PREDICTED)
    assert (predicted.max_probes, predicted.max_dry_runs) == (3, 6)
    assert request.question(VERSIONS).framework.versions == VERSIONS
    empty = dict.fromkeys(("framework", "knobs", "fidelity", "budget", "headroom", "pool"))
    assert read_request({**ASKED, **empty}) == request
    assert hash(request) == hash(read_request(ASKED))
    assert hash(request.question(VERSIONS)) == hash(request.question(VERSIONS))
    assert request != read_request({**ASKED, "cluster": "4xh100-80gb"})


def test_all_of_it_is_taken():
    request = read_request(
        {
            **ASKED,
            "workload": {**WORKLOAD, "optimizer": "sgd", "precision": "bf16_mixed"},
            "framework": {"name": "accelerate", "versions": {"accelerate": "1.10"}},
            "knobs": {"tp_size": [1], "sharding": ["full_shard"]},
            "fidelity": "emulated",
            "budget": {"max_probes": 7, "wall_s": 60, "gpu_s": 1.5},
            "tolerance": 0.05,
            "headroom": 0,
            "memory_limit_gib": 64,
            "pool": "h100",
        }
    )
    question = request.question(VERSIONS)
    assert question.workload.optimizer is Optimizer.SGD
    assert question.framework.versions["accelerate"] == "1.10.0"
    assert question.knobs == {"sharding": (Sharding.FULL_SHARD,), "tp_size": (1,)}
    assert request.fidelity is Fidelity.EMULATED
    assert request.limits_at(Fidelity.EMULATED) == Limits(
        fidelity=Fidelity.EMULATED,
        max_probes=7,
        wall_s=60.0,
        device_s=1.5,
        tolerance=0.05,
        headroom=0.0,
        memory_limit_bytes=64 * GIB,
        pool="h100",
    )
    assert request.notes == ("the headroom is not applied: the memory limit is taken as it is",)


@pytest.mark.parametrize(
    ("name", "cluster", "usual"),
    [(None, "8xh100-80gb", "bf16"), ("torch", "8xh100-80gb", "bf16"),
     ("nanotron", "8xh100-80gb", "bf16"), ("accelerate", "8xh100-80gb", "bf16_mixed"),
     ("trainer", "8xh100-80gb", "bf16_mixed"), ("deepspeed", "8xh100-80gb", "bf16_mixed"),
     (None, "cpu:2", "fp32"), ("torch", "2x2xcpu", "fp32"), ("accelerate", "cpu:2", "fp32"),
     ("trainer", CPUS, "fp32"), ("deepspeed", "cpu:2", "fp32"), ("nanotron", "cpu:2", "bf16")],
)  # fmt: skip
def test_a_precision_that_is_left_out_is_usual_there_and_is_kept(name, cluster, usual):
    stack = None if name is None else {"name": name}
    asked = {**ASKED, "framework": stack, "cluster": cluster}
    question = read_request(asked).question(VERSIONS)
    assert question.as_dict()["workload"]["precision"] == usual
    for precision in ("bf16", "bf16_mixed", "fp32"):
        stated = read_request(changed(asked, {"workload.precision": precision})).question(VERSIONS)
        assert stated.workload.precision == precision
        assert (stated.identity == question.identity) is (precision == usual)
    case = {**asked, "settings": {"micro_batch_size": 1}}
    arguments = {**WORKLOAD, "cluster": cluster, "framework": name}
    assert read_here(arguments).question(VERSIONS).identity == question.identity
    nulls = changed(case, {"workload.precision": None})
    if (name, usual) != ("nanotron", "bf16"):  # which no arithmetic covers for such a model
        assert {read_case(one).question.workload.precision for one in (case, nulls)} == {usual}


def test_a_machine_without_gpus_trains_in_fp32(monkeypatch):
    monkeypatch.setattr("tuner.machine.visible_gpus", tuple)
    here = read_here({**WORKLOAD, "cluster": "local", "framework": "accelerate"})
    assert here.question(VERSIONS).workload.precision == "fp32"
    gpu = ReportedGpu(name="NVIDIA H100 80GB HBM3", memory_mib=81559)
    monkeypatch.setattr("tuner.machine.visible_gpus", lambda: (gpu,))
    assert here.question(VERSIONS).workload.precision == "bf16_mixed"


def test_in_mixed_precision_gradients_are_reduced_as_the_framework_does_unless_stated():
    for name, reduced in (("accelerate", "framework"), ("trainer", "framework"), ("torch", "bf16")):
        asked = changed({**ASKED, "framework": name}, {"workload.precision": "bf16_mixed"})
        question = read_request(asked).question(VERSIONS)
        assert question.as_dict()["workload"]["reduce_dtype"] == reduced
        # what was asked before this default was there is the same question still
        before = changed(asked, {"workload.reduce_dtype": "bf16"})
        same = read_request(before).question(VERSIONS).identity == question.identity
        assert same is (name == "torch")


ADAPTER, PACKING = "workload.adapter", "workload.packing"
LORA, QLORA = ({f"{ADAPTER}.method": method} for method in ("lora", "qlora"))
VARLEN = {f"{PACKING}.variant": "varlen"}
# By change: what is said of the last field of it, or of the field that is named.
WRONG = [
    ({"extra": 1}, "there are budget, cluster, fidelity"),
    ({"workload": ...}, "is required"),
    ({"workload": 5}, "object of fields"),
    ({"workload.model": "llama-3.1-9b"}, "did you mean llama-3.1-8b"),
    ({"workload.model": "/etc/passwd"}, "no such name"),
    ({"workload.model": {"model_type": "evil"}}, "not covered", "workload.model.model_type"),
    ({"workload.model": {**TINY, "hidden_size": "64"}}, "integer", "workload.model.hidden_size"),
    ({"workload.model": {**TINY, "auto_map": {"a": "b"}}}, "code", "workload.model.auto_map"),
    ({"workload.model": TINY, "workload.model_name": "\n"}, "printable"),
    ({"workload.sequence_length": 4096.0}, "from 2 to 4194304"),
    ({"workload.sequence_length": 2**18}, "takes 131072 at most"),
    ({"workload.global_batch_size": True}, "integer from 1"),
    ({"workload.reduce_dtype": "fp8"}, "bf16, fp32"),
    ({"workload.reduce_dtype": "framework"}, "must be bf16 or fp32"),
    ({"framework": "nanotron", "workload.reduce_dtype": "framework"}, "only accelerate and the Tr"),
    ({ADAPTER: {}}, "is required in an object: lora", f"{ADAPTER}.method"),
    ({ADAPTER: {"rank": 8}}, "is required in an object", f"{ADAPTER}.method"),
    ({**LORA, f"{ADAPTER}.rank": 0}, "from 1 to"),
    ({**LORA, f"{ADAPTER}.quantize": "fp4"}, "needs the method qlora"),
    ({**LORA, f"{ADAPTER}.double_quant": True}, "needs the method qlora"),
    ({**QLORA, f"{ADAPTER}.double_quant": "maybe"}, "must be true or false"),
    ({**LORA, f"{ADAPTER}.modules_to_save": "lm_haed"}, "did you mean lm_head?"),
    ({**QLORA, f"{ADAPTER}.quantize": "int8"}, "is of the method lora"),
    ({**LORA, f"{ADAPTER}.quantize": "int8"}, "must be bf16_mixed", "precision"),
    (
        {**LORA, f"{ADAPTER}.quantize": "int8", "workload.model": "mixtral-8x7b"},
        "knows none of experts",
        f"{ADAPTER}.quantize",
    ),
    ({**LORA, f"{ADAPTER}.modules_to_save": "norm"}, "must be of embed_tokens, lm_head, which"),
    ({"workload.frozen": "layers.0-"}, "names such as embed_tokens"),
    ({"workload.frozen": ["a"] * 3 + [1]}, "must be a text"),
    ({ADAPTER: "lora", "workload.frozen": "embeddings"}, "modules_to_save says what is trained"),
    ({PACKING: "some"}, "varlen, position_ids", f"{PACKING}.variant"),
    ({PACKING: {"documents": {}}}, "is required in an", f"{PACKING}.variant"),
    ({**VARLEN, f"{PACKING}.documents": {"mean": 0}}, "above 0"),
    ({PACKING: "padded"}, "with variant padded", f"{PACKING}.documents"),
    ({**VARLEN, f"{PACKING}.documents": [[512, 10]]}, "must be one of {lengths"),
    ({"cluster": ...}, "is required"),
    ({"cluster": " LOCAL "}, "is the machine that asks"),
    ({"cluster": "my.toml"}, "no file is read"),
    ({"cluster": "8xh100-80bg"}, "did you mean h100-80gb"),
    ({"cluster": "8xh100"}, "there are several"),
    ({"cluster": "x" * 5000}, "1000 characters"),
    ({"framework": "torhc"}, "did you mean torch"),
    ({"framework": {"name": "jax"}}, "no such name", "framework.name"),
    ({"framework": {"name": "torch", "version": 1}}, "name, versions", "framework.version"),
    ({"framework.name": "torch", "framework.versions": {"torch": "1.0"}}, "older"),
    ({"knobs.speed": [1]}, "there are activation_checkpointing, "),
    ({"knobs.tp_size": 1}, "list of 1 to 100"),
    ({"knobs.tp_size": ["1"]}, "positive integer"),
    ({"knobs.tp_size": [7]}, "must divide"),
    ({"knobs.sync_each_batch": ["true"]}, "true or false"),
    ({"budget.max_probes": 0}, "from 1 to 10000"),
    ({"budget.wall_s": -1}, "seconds above 0"),
    ({"budget.gpu_s": 1e12}, "up to 31622400"),
    ({"budget.wall_s": float("inf")}, "finite", "budget"),
    ({"tolerance": 1}, "below 1"),
    ({"headroom": "5%"}, "below 1"),
    ({"memory_limit_gib": 2**62}, "up to 1048576"),
    ({"pool": "a b"}, "64 letters"),
    ({"pool": "\ud800"}, "Unicode", "body"),
    ({"sampler": "annealing"}, "cost-model, tpe, gp, random"),
    ({"replace": 1}, "true or false"),
    ({"budget": {f"name{number}": 1 for number in range(101)}}, "100 fields at most"),
]


def test_what_is_wrong_is_named_with_its_path():
    for change, allowed, *named in WRONG:
        (field,) = named or [*change][-1:]
        values = changed(ASKED, change)
        found = wrong(lambda one: read_request(one).question(VERSIONS), values)
        assert list(found) == [field], change
        assert allowed in found[field], change
    assert wrong(read_request, [1]) == {"body": "must be an object of fields"}


def test_all_that_is_wrong_is_told_at_once():
    values = {**ASKED, "headroom": 2, "tolerance": -1, "knobs": {"tp_size": [0]}, "pool": "a b"}
    assert set(wrong(read_request, values)) == {"headroom", "tolerance", "knobs.tp_size", "pool"}


def test_a_question_of_too_many_settings_says_how_to_ask_for_fewer():
    asked = {**ASKED, "workload": {**WORKLOAD, "global_batch_size": 720_720}}
    values = {**asked, "knobs": {"sharding": ["full_shard"]}}
    proposed = {"micro_batch_size": [1, 2, 3, 4, 5, 6, 7, 8]}
    found = wrong(lambda one: read_request(one).question(VERSIONS), values)
    assert json.dumps(proposed) in found["knobs"]
    question = read_request({**asked, "knobs": proposed}).question(VERSIONS)
    assert len(enumerate_space(question).legal) <= MOST_SETTINGS
    for batch, cluster, framework in (
        (2**20, "8xh100-80gb", "torch"),
        (16_384, "256x8xh100-80gb", "torch"),
        (3600, "15x8xh100-80gb", {"name": "nanotron", "versions": {"nanotron": "0.4"}}),
    ):
        workload = {**WORKLOAD, "model": "llama-3.1-70b", "global_batch_size": batch}
        usual = {"workload": workload, "cluster": cluster, "framework": framework}
        assert read_request(usual).question(VERSIONS)


WRONG_CLUSTERS = [
    ({"nodes": ...}, "nodes", "is required"),
    ({"nodes": 0}, "nodes", "from 1 to 65536"),
    ({"gpus_per_node": 2.0}, "gpus_per_node", "integer"),
    ({"gpus": 8}, "gpus", "no such field"),
    ({"gpu": "a100"}, "gpu", "there are several"),
    ({"gpu": "cpu"}, "gpu", "memory_bytes"),
    ({"gpu": {"name": "mine", "device": "cuda"}}, "gpu.memory_bytes", "is required"),
    ({"gpu.memory_bytes": "80GB"}, "gpu.memory_bytes", "integer"),
    ({"gpu.memory_bytes": 80}, "gpu.memory_bytes", "from 1048576"),
    ({"gpu.name": "a b"}, "gpu.name", "without spaces"),
    ({"gpu.flops": 1}, "gpu.flops", "there are compute_capability"),
    ({"gpu.compute_capability": 8.6}, "gpu.compute_capability", "8.6"),
    ({"gpu.processor": "Xeon"}, "gpu.processor", "CPU ranks"),
    ({"gpu": {**CPU, "processor": "x" * 129}}, "gpu.processor", "128"),
    ({"gpu": {**CPU, "compute_capability": "8.6"}}, "gpu.compute_capability", "NVIDIA"),
    ({"intra_node": {"bytes_per_s": 0}}, "intra_node.bytes_per_s", "left out"),
    ({"intra_node": {"bytes_per_s": 1e29}}, "intra_node.bytes_per_s", "left out"),
    ({"inter_node": {"latency_s": -1}}, "inter_node.latency_s", "left out"),
    ({"inter_node": {"speed": 1}}, "inter_node.speed", "no such field"),
    ({"nodes": 100, "gpus_per_node": 100, "gpu": CPU}, "nodes x gpus_per_node", "256 CPU ranks"),
]


def test_what_is_wrong_with_a_cluster_is_named_with_its_path():
    for change, field, allowed in WRONG_CLUSTERS:
        found = wrong(read_cluster, changed(OWN, change))
        assert list(found) == [f"cluster.{field}"], change
        assert allowed in found[f"cluster.{field}"], change
    for value in (8, None, ["8xh100-80gb"]):
        assert list(wrong(read_cluster, value)) == ["cluster"]


def test_a_cluster_is_the_same_however_it_is_given():
    found = parse_cluster("2x8xh100-80gb")
    for gpu in ("h100-80gb", {"name": "H100_80GB"}, found.as_dict()["gpu"]):
        links = found.as_dict() if isinstance(gpu, dict) and len(gpu) > 1 else {}
        assert read_cluster({**links, "nodes": 2, "gpus_per_node": 8, "gpu": gpu}) == found
    assert read_cluster("2x8xh100-80gb") == read_cluster(found) == found
    network = {"bytes_per_s": 5_000_000_000, "latency_s": 2e-5}
    own = read_cluster({"nodes": 2, "gpus_per_node": 8, "gpu": "h100-80gb", "inter_node": network})
    assert (own.gpu, own.intra_node) == (found.gpu, found.intra_node)
    assert own.inter_node == Link(bytes_per_s=5e9, latency_s=2e-5)
    mine = read_cluster(OWN)
    assert (mine.name, mine.gpu.memory_bytes_per_s, mine.inter_node) == ("2x4xmine", None, Link())


def test_files_of_clusters(tmp_path):
    toml, data = tmp_path / "Mine.TOML", tmp_path / "mine.json"
    toml.write_text(
        'nodes = 2\ngpus_per_node = 8\ngpu = "h100-80gb"\n'
        "inter_node = { bytes_per_s = 25e9, latency_s = 20e-6 }\n"
    )
    cluster = read_cluster(str(toml))
    assert cluster.inter_node == Link(bytes_per_s=25e9, latency_s=20e-6)
    data.write_text(json.dumps(cluster.as_dict()))
    assert read_cluster(str(data)) == cluster
    page = Path(__file__).parents[3] / "docs" / "clusters.md"
    toml.write_text(page.read_text().partition("```toml\n")[2].partition("```")[0])
    assert read_cluster(str(toml)).name == "2x8xour-gpu"
    # CPU ranks are of this machine, unless the file names another.
    for gpu in (CPU, {**CPU, "processor": "Xeon", "cores": 4}):
        data.write_text(json.dumps({"nodes": 1, "gpus_per_node": 2, "gpu": gpu}))
        found = read_cluster(str(data))
        assert found.gpu.processor
        assert found.gpu.cores == gpu.get("cores", found.gpu.cores) > 0


def test_files_that_are_no_clusters(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    for name, content, allowed in (
        ("c.toml", b"nodes = ", "is not toml"),
        ("c.json", b"{", "is not json"),
        ("c.json", b"\xff\xfe", "is not json"),
        ("c.json", b"[" * 60_000, "is not json"),
        ("c.json", b"[]", "must be a table"),
        ("c.json", b" " * (LARGEST_FILE_BYTES + 1), "must be at most"),
        ("c.toml", b"", "is required"),
        ("folder.toml", None, "cannot be read"),
        ("missing.toml", None, "no such file"),
        ("null\0.toml", None, "cannot be read"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        found = wrong(read_cluster, str(tmp_path / name))
        assert allowed in next(iter(found.values())), (name, content)


def test_arguments_are_named_as_arguments(tmp_path):
    given = {"model": TINY, "sequence_length": 32, "global_batch_size": 8, "cluster": "cpu:2"}
    for change, field in (
        ({"model": None}, "model"),
        ({"model": 8}, "model"),
        ({"model": {**TINY, "hidden_size": 0}}, "hidden_size"),
        ({"model": str(tmp_path / "none.json")}, "model"),
        ({"sequence_length": 999}, "sequence_length"),
        ({"cluster": {**OWN, "nodes": 0}}, "cluster.nodes"),
        ({"adapter": {"method": "lora", "alpha": 0}}, "adapter.alpha"),
        ({"adapter": {"method": "lora", "target_modules": " , "}}, "adapter.target_modules"),
        ({"packing": {"variant": "varlen", "documents": {"lengths": [0]}}}, "packing.documents"),
        ({"framework": "jax"}, "framework"),
        ({"framework_versions": {"jax": "1"}}, "framework_version"),
        ({"knobs": {"speed": [1]}}, "knob"),
        ({"knobs": {"tp_size": ["two"]}}, "tp_size"),
        ({"max_probes": 0}, "max_probes"),
        ({"gpu_s": -1}, "gpu_s"),
        ({"probe_deadline_s": 0}, "probe_deadline_s"),
        ({"script": "train.py"}, "script"),
    ):
        assert list(wrong(read_here, {**given, **change})) == [field], change
    bad = {**given, "optimizer": "lamb", "headroom": 2, "max_probes": 0}
    assert set(wrong(read_here, bad)) == {"optimizer", "headroom", "max_probes"}
    beside = [UsageError("budget", "soon", "must be a duration")]
    with pytest.raises(UsageError) as caught:
        read_here(bad, beside)
    assert caught.value.errors[0].field == "budget"
    assert len(caught.value.errors) == 4
    text = read_here({**given, "knobs": {"tp_size": ["1", "2"], "cpu_offload": ["false"]}})
    assert text == read_here({**given, "knobs": {"tp_size": [1, 2], "cpu_offload": [False]}})
    many = list(range(1, 300))  # more than a service takes, but in an order
    asked = read_here({**given, "knobs": {"micro_batch_size": many}})
    assert list(asked.knobs.micro_batch_size) == many
    unordered = {**given, "knobs": {"micro_batch_size": {1, 2}}}
    assert list(wrong(read_here, unordered)) == ["micro_batch_size"]


def test_a_model_is_the_same_however_it_is_given(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    found = read_model(path)
    assert found.name == "tiny"
    assert read_model(str(path)) == read_model(found) == found
    assert read_model(TINY).as_config() == found.as_config()
    assert read_model({**TINY, "_name_or_path": "mine"}).name == "mine"
    bare = {"model_type": "llama", "num_hidden_layers": 2}
    path.write_text(json.dumps(bare))
    assert model_note(path).startswith("tiny: not in the model's configuration")
    assert "hidden_size 4096" in model_note(bare)
    named = "meta-llama/Llama-3.1-8B-Instruct"
    for here in (True, False):  # a file is looked for on this machine alone
        assert model_note(named, here=here) == f"{named} is taken to have the shape of llama-3.1-8b"
    gpt = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
    assert model_note(gpt).endswith("does: vocab_size 50257"), "other spellings are not left out"
    for complete in (TINY, "stories15m", read_model(TINY)):
        assert model_note(complete) == ""


def test_a_case_has_fields_of_its_own(lab):
    case = read_case(lab.case(headroom=0, memory_limit_gib=1.5, id=[1, {"any": "thing"}]))
    assert (case.headroom, case.limit_bytes) == (0.0, 3 * 2**29)
    assert case.notes == ("the headroom is not applied: the memory limit is taken as it is",)
    assert case.settings == Settings(
        sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=2
    )
    text = read_case(lab.case(settings="sharding=full_shard, micro_batch_size=2"))
    assert text == read_case(lab.case())
    assert text.question.workload is read_case(lab.case()).question.workload
    assert read_case(lab.case(cluster="local")).question.cluster.nodes == 1


def test_the_parts_of_an_answer_can_be_asked_again(lab):
    case = read_case(lab.case())
    again = {name: value for name, value in case.question.as_dict().items() if name != "knobs"}
    again["settings"] = case.settings.as_dict()
    assert read_case(json.loads(json.dumps(again))) == case


def test_knobs_that_do_not_act_are_told_where_they_were_written(lab):
    one = lab.case(cluster="a100-80gb", settings={"sharding": "ddp", "sync_each_batch": False})
    case = read_case(one)
    assert case.settings.sync_each_batch is True
    (note,) = case.notes
    assert note.startswith("sync_each_batch is true, not false as asked")
    assert read_case(lab.case(settings={"sharding": "full_shard"})).notes == ()
    # With accelerate 0.28 to 0.30 the default of sync_each_batch trains wrongly.
    framework = {"name": "accelerate", "versions": {"accelerate": "0.29.0"}}
    settings = "sharding=full_shard,micro_batch_size=1"
    case = read_case(lab.case(framework=framework, settings=settings))
    assert case.settings.sync_each_batch is False
    assert case.notes[0].startswith("sync_each_batch is false: accelerate 0.28 to 0.30 takes")
    written = lab.case(framework=framework, settings=f"{settings},sync_each_batch=true")
    assert list(wrong(read_case, written)) == ["settings.sync_each_batch"]


WRONG_CASES = [
    ({"extra": 1}, "extra", "no such field"),
    ({"settings": None}, "settings", "is required"),
    ({"settings": "sharding"}, "settings", "knob=value"),
    ({"settings": "tp_size=1,tp_size=1"}, "settings", "given twice"),
    ({"settings": "tp_size=two"}, "settings.tp_size", "positive integer"),
    ({"settings__tp_size": 10**30}, "settings.tp_size", "positive integer"),
    ({"settings__sync_each_batch": 1}, "settings.sync_each_batch", "true or false"),
    ({"script": {"use_cache": 1}}, "script.use_cache", "true or false"),
    ({"script": {"cache": True}}, "script.cache", "no such field"),
    # rules of the space
    ({"settings__tp_size": 3}, "settings.tp_size", "must divide heads (4)"),
    ({"settings__pp_size": 2}, "settings.pp_size", "cannot be had here"),
    ({"settings__micro_batch_size": 3}, "settings.micro_batch_size", "must divide 4"),
    (
        {"settings__gradient_accumulation_steps": 1},
        "settings.gradient_accumulation_steps",
        "global batch 32 = micro batch 2 x accumulation x data-parallel size 8",
    ),
    ({"workload__global_batch_size": 4}, "workload.global_batch_size", "data-parallel size, 8"),
    ({"settings__sharding": "hybrid_shard"}, "settings.sharding", "more than one node"),
    ({"settings": {"tp_size": 2, "sharding": "ddp"}}, "settings.sharding", "no DTensor"),
    ({"settings": {"sharding": "ddp", "cpu_offload": True}}, "settings.cpu_offload", "sharding"),
]


def test_what_is_wrong_with_a_case_is_named_with_its_path(lab):
    for change, field, allowed in WRONG_CASES:
        for _ in range(2):  # the second time from what is kept
            found = wrong(read_case, lab.case(**change))
            assert list(found) == [field], change
            assert allowed in found[field], change
    both = lab.case(settings={"tp": 1, "tp_size": 0}, headroom=2, workload__optimizer="lamb")
    fields = {"settings.tp", "settings.tp_size", "headroom", "workload.optimizer"}
    assert set(wrong(read_case, both)) == fields


def test_what_is_not_covered_is_no_mistake(lab):
    mamba = {"model_type": "mamba9", "d_model": 5}
    one = {"nodes": 1, "gpus_per_node": 8}
    for change, why in (
        ({"workload__model": mamba}, "model type 'mamba9'"),
        ({"cluster": "8xr300"}, "GPU 'r300'"),
        ({"cluster": {**one, "gpu": "r300"}}, "GPU 'r300'"),
        ({"cluster": {**one, "gpu": {"name": "r300"}}}, "GPU 'r300'"),
        ({"workload__model": mamba, "cluster": "8xr300"}, r"'mamba9'.*'r300'"),
    ):
        with pytest.raises(NotCoveredError, match=why):
            read_case(lab.case(**change))
    beside = lab.case(cluster="8xr300", settings={"tp_size": 0})
    assert list(wrong(read_case, beside)) == ["settings.tp_size"]
    assert "did you mean mixtral?" in uncovered_model_type("mixtrall")
    for covered in ("llama", "mamba", "", None, 5, ["llama"]):
        assert uncovered_model_type(covered) == ""
    for misspelled in ("h100-80bg", "a10080gb", "mi300"):
        assert is_misspelled(misspelled, ("h100-80gb", "a100-80gb", "mi300x"))
    for other in ("r300", "h800-80gb", "tpu-v5e", "x" * 5000):
        assert not is_misspelled(other, ("h100-80gb", "h200"))
