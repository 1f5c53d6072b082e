"""DeepSpeed's ZeRO as a framework: asked for by name, or by a file of its own."""

import json

import pytest

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
