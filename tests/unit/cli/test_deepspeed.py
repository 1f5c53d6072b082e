"""DeepSpeed's ZeRO as a framework: asked for by name, or by a file of its own."""

import json
import subprocess

import pytest
import yaml

PLACE = ("--cluster", "2x8xa100-80gb", "--model", "llama-3.1-8b", "--sequence-length", "4096")
ZERO2 = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "steps_per_print": 10,
}


@pytest.fixture
def mine(tmp_path):
    def written(**zero):
        path = tmp_path / "ds.json"
        more = {**ZERO2["zero_optimization"], **zero}
        path.write_text(json.dumps({**ZERO2, "zero_optimization": more}, indent=2))
        return path

    return written


def test_its_own_file_is_answered_by_its_own_figures(cli, mine):
    done = cli("check", str(mine()), *PLACE, "--json")
    assert done.code == 0, done.err
    assert done.json["framework"]["name"] == "deepspeed"
    assert done.json["settings"]["sharding"] == "shard_grad_op"
    assert done.json["workload"]["precision"] == "bf16_mixed"


def test_sizes_that_the_file_says_are_counted(cli, mine):
    usual = cli("check", str(mine()), *PLACE, "--json").json
    path = mine(reduce_bucket_size=5e9, overlap_comm=True)
    done = cli("check", str(path), *PLACE, "--json").json
    more = done["memory"]["allocated_gib"]["value"] - usual["memory"]["allocated_gib"]["value"]
    assert more > 9e9 / 2**30  # a bucket is of bf16, and two of them may be filled
    assert done["step_time_s"]["value"] < usual["step_time_s"]["value"]
    assert not any("counted as" in note for note in done["notes"])
    answered = cli("suggest", "--from", str(path), *PLACE, "--fidelity", "predicted")
    said = " ".join(answered.out.split())
    assert "reduce_bucket_size: 5000000000: counted as 500000000" in said  # of other settings
    assert "overlap_comm: True: counted as False" in said
    wrong = cli("check", str(mine(reduce_bucket_size=-1)), *PLACE)
    assert "zero_optimization.reduce_bucket_size: got -1; must be a positive" in wrong.err
    auto = cli("check", str(mine(reduce_bucket_size="auto")), *PLACE, "--json").json
    assert auto["memory"] == usual["memory"]


def test_secondary_shards_are_of_a_node(cli, mine):
    done = cli("check", str(mine(stage=3, zero_hpz_partition_size=8)), *PLACE, "--json")
    assert done.json["settings"]["sharding"] == "hybrid_shard"
    wrong = cli("check", str(mine(stage=3, zero_hpz_partition_size=4)), *PLACE)
    assert wrong.code == 2
    assert "zero_hpz_partition_size: got 4; must be the GPUs of a node: 8" in wrong.err


def test_the_best_is_put_into_the_file(cli, mine):
    path = mine()
    done = cli("suggest", "--from", str(path), *PLACE, "--fidelity", "predicted", "--in-place")
    assert done.code == 0, done.err
    values = json.loads(path.read_text())
    assert values["steps_per_print"] == 10
    assert values["bf16"] == {"enabled": True}
    made = values["train_micro_batch_size_per_gpu"] * values["gradient_accumulation_steps"]
    assert made * 16 == 64
    again = cli("check", str(path), *PLACE, "--json")
    assert (again.code, again.json["fits"]) == (0, True)


def test_the_answer_says_what_zero_splits(cli):
    done = cli(
        "suggest", "--framework", "deepspeed", *PLACE, "--global-batch-size", "64",
        "--fidelity", "predicted", "--json", "--knob", "sharding=full_shard,hybrid_shard",
        "--knob", "micro_batch_size=1",
    )  # fmt: skip
    assert done.code == 0, done.err
    said = json.dumps(done.json)
    assert "split over 16 ranks, and parameters once more within a node" in said
    assert "ranks of a node" not in said


SMALL = ("--cluster", "8xh100-80gb", "--model", "qwen2.5-0.5b", "--sequence-length", "1024")
HIDDEN = 896
AUTO = {
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}
ARGUMENTS = {
    "output_dir": "out",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 4,
    "gradient_checkpointing": True,
    "bf16": True,
    "deepspeed": "ds.json",
}
FLAGS = """\
torchrun --nproc_per_node 8 train.py --output_dir out --bf16 true --deepspeed ds.json \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --gradient_checkpointing true
"""
FILE = "deepspeed_config_file"
BATCH = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")


@pytest.fixture
def named(tmp_path):
    """Writes DeepSpeed's JSON, and a file that names it; the path of that."""

    def write(text, name="args.json", **changes):
        engine = {key: one for key, one in {**AUTO, **changes}.items() if one is not None}
        (tmp_path / "ds.json").write_text(json.dumps(engine, indent=2))
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else json.dumps(text, indent=2))
        return path

    return write


@pytest.mark.parametrize("text", [ARGUMENTS, FLAGS, {**ARGUMENTS, "deepspeed": AUTO}])
def test_the_trainers_arguments_fill_in_what_is_auto(cli, named, text):
    path = named(text, "train.sh" if text is FLAGS else "args.json")
    done = cli("check", str(path), *SMALL, "--json")
    assert done.code == 0, done.err
    found = done.json
    assert found["framework"]["name"] == "deepspeed"
    assert (found["workload"]["precision"], found["workload"]["global_batch_size"]) == (
        "bf16_mixed", 32,
    )  # fmt: skip
    said = found["settings"]
    assert (said["sharding"], said["micro_batch_size"]) == ("shard_grad_op", 1)
    assert said["activation_checkpointing"] == "full"
    whole = named(text, path.name, zero_optimization={"stage": 2, "reduce_bucket_size": HIDDEN**2})
    if isinstance(text, str) or text["deepspeed"] == "ds.json":
        assert cli("check", str(whole), *SMALL, "--json").json["memory"] == found["memory"]
    plain = cli("check", str(named(ARGUMENTS, zero_optimization={"stage": 2})), *SMALL, "--json")
    assert plain.json["memory"]["needed_gib"] != found["memory"]["needed_gib"]


def test_what_is_auto_stays_so_and_numbers_are_written(cli, named):
    asked = (*SMALL, "--fidelity", "predicted", "--in-place", "--knob", "micro_batch_size=2")
    for said in ({}, {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}):
        path = named(ARGUMENTS, **said)
        done = cli("suggest", "--from", str(path), *asked, "--knob", "sharding=full_shard")
        assert done.code == 0, done.err
        mine, engine = (json.loads(path.with_name(one).read_text())
                        for one in ("args.json", "ds.json"))  # fmt: skip
        assert mine["deepspeed"] == "ds.json"
        sizes = mine["per_device_train_batch_size"], mine["gradient_accumulation_steps"]
        assert sizes == (2, 2)
        assert engine["zero_optimization"] == {"stage": 3, "reduce_bucket_size": "auto"}
        wanted = [*sizes, "auto"] if said else ["auto"] * 3
        assert [engine[name] for name in BATCH] == wanted
        assert json.loads(path.with_name("ds.json.bak").read_text())["zero_optimization"] == {
            "stage": 2, "reduce_bucket_size": "auto",
        }  # fmt: skip


def test_what_transformers_refuses_is_refused(cli, named):
    for said, why in (
        ({"train_micro_batch_size_per_gpu": 4}, "got 4; the arguments say 1"),
        ({"train_batch_size": 100}, "got 100; the file makes 32 on it"),
        ({"bf16": {"enabled": False}}, "deepspeed.bf16.enabled: got false; the arguments say true"),
    ):
        found = cli("check", str(named(ARGUMENTS, **said)), *SMALL)
        assert (found.code, why in found.err) == (2, True), found.err
    path = named({**ARGUMENTS, "deepspeed": "gone.json"})
    assert "deepspeed: got 'gone.json'; is not here" in cli("check", str(path), *SMALL).err


def test_a_json_alone_does_not_say_what_is_auto(cli, named):
    path = named("{}").with_name("ds.json")
    beside = (*SMALL, "--global-batch-size", "32", "--settings", "micro_batch_size=1")
    for more, precision in ((), "bf16_mixed"), (("--precision", "fp32"), "fp32"):
        done = cli("check", str(path), *beside, *more, "--json")
        assert (done.code, done.err) == (0, "")
        assert done.json["workload"]["precision"] == precision


@pytest.mark.parametrize(
    "own", [{"deepspeed_config_file": "ds.json"}, {"zero_stage": 2, "zero3_init_flag": False}]
)
def test_accelerates_file_names_it_or_says_the_same(cli, named, own):
    values = {"distributed_type": "DEEPSPEED", "num_machines": 1, "num_processes": 8}
    values |= {"deepspeed_config": own}
    if "zero_stage" in own:  # else it is the JSON's, and accelerate refuses it here
        values["mixed_precision"] = "bf16"
    path = named(yaml.safe_dump(values), "accelerate.yaml")
    today = ("--global-batch-size", "32", "--settings", "micro_batch_size=1")
    done = cli("check", str(path), *SMALL, *today, "--json")
    assert done.code == 0, done.err
    assert done.json["settings"]["sharding"] == "shard_grad_op"
    asked = (*SMALL, *today, "--fidelity", "predicted", "--knob", "sharding=full_shard")
    asked += ("--knob", "micro_batch_size=2")
    done = cli("suggest", "--from", str(path), *asked, "--in-place")
    assert "the answer needs micro_batch_size=2" in " ".join(done.out.split())
    again = yaml.safe_load(path.read_text())["deepspeed_config"]
    if "zero_stage" in own:
        assert again == {**own, "zero_stage": 3, "gradient_accumulation_steps": 2}
    else:
        assert again == own
        engine = json.loads(path.with_name("ds.json").read_text())
        assert engine["zero_optimization"]["stage"] == 3
        assert engine["train_micro_batch_size_per_gpu"] == "auto"


@pytest.mark.parametrize(
    ("own", "more", "said"),
    [
        ({"zero_stag": 3}, {}, "deepspeed_config.zero_stag: got 3; is not known here (did you"),
        ({"offload_optimizer_devise": "cpu"}, {}, "(did you mean offload_optimizer_device?)"),
        ({FILE: "ds.json", "zero_stage": 3}, {}, "zero_stage: got 3; is refused by accelerate"),
        ({FILE: "ds.json", "gradient_accumulation_steps": 4}, {}, f"beside {FILE}: say it there"),
        ({FILE: "ds.json"}, {"mixed_precision": "no"}, "mixed_precision: got 'no'; is refused"),
    ],
)
def test_what_accelerate_refuses_of_its_file_is_refused(cli, named, own, more, said):
    values = {"distributed_type": "DEEPSPEED", "num_processes": 8, "deepspeed_config": own, **more}
    done = cli("check", str(named(yaml.safe_dump(values), "accelerate.yaml")), *SMALL)
    assert (done.code, said in " ".join(done.err.split())) == (2, True), done.err


def test_a_file_without_a_batch_is_given_all_of_it(cli, named):
    path = named("{}", **dict.fromkeys(BATCH)).with_name("ds.json")
    for micro, steps in ((1, 4), (2, 2)):
        asked = ("--global-batch-size", "32", "--knob", f"micro_batch_size={micro}", "--diff")
        done = cli("suggest", "--from", str(path), *SMALL, "--fidelity", "predicted", *asked)
        assert f'+  "train_micro_batch_size_per_gpu": {micro},' in done.out
        assert f'+  "gradient_accumulation_steps": {steps}' in done.out


def test_the_difference_can_be_applied_where_no_line_ends_the_file(cli, named):
    path = named({"deepspeed": AUTO, **ARGUMENTS, "per_device_train_batch_size": 1})
    path.write_text(path.read_text().replace('"ds.json"', json.dumps(AUTO)))
    asked = (*SMALL, "--fidelity", "predicted", "--knob", "micro_batch_size=2")
    done = cli("suggest", "--from", str(path), *asked, "--json").json["from"]
    assert "\\ No newline at end of file" in done["diff"]
    subprocess.run(["patch", str(path)], input=done["diff"].encode(), check=True)
    assert json.loads(path.read_text())["per_device_train_batch_size"] == 2


def test_a_file_that_is_as_fast_is_kept(cli, named):
    sizes = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    path = named({**ARGUMENTS, **sizes, "gradient_checkpointing": False})
    before = path.read_text()
    asked = ("suggest", "--from", str(path), *SMALL[:-1], "8192", "--fidelity", "predicted")
    asked += ("--knob", "micro_batch_size=4", "--in-place", "--diff", "--tolerance")
    kept = cli(*asked, "0.9")
    assert kept.code == 0, kept.err
    said = " ".join(kept.out.split())
    assert "Answer your file is as fast as anything found (within 90%): keep it" in said
    assert "Found sharding=" in said
    assert "alternative sharding=" in said
    assert '+  "per_device_train_batch_size": 4' in kept.out
    assert "nothing is written: a smaller --tolerance asks for more" in said
    assert f"Next nothing: keep {path}" in said
    assert path.read_text() == before
    found = cli(*asked, "0.9", "--json").json["from"]
    assert (found["keep"], found["written"]) == (True, False)
    found = cli(*asked, "0.001", "--json").json["from"]
    assert (found["keep"], found["written"]) == (False, True)
    assert path.read_text() != before
