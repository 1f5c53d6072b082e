"""What all specs of ranks have in common, as the probe program reads it."""

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework
from tuner.core.study import Question
from tuner.core.workload import Workload
from tuner.dryrun import plan_dry_runs
from tuner.guard.replica import replica_of
from tuner.model import load_model
from workers.probe.spec import parse_spec

VERSIONS = {"torch": "2.13.0", "accelerate": "1.15.0", "transformers": "5.23.0"}
SETTINGS = parse_settings("sharding=hybrid_shard,micro_batch_size=2,gradient_accumulation_steps=4")
ASKED = Question(
    workload=Workload(model=load_model("llama-3.2-1b"), sequence_length=512, global_batch_size=128),
    cluster=parse_cluster("2x8xh100-80gb"),
    framework=framework("torch", VERSIONS, {}),
)


def test_the_probe_program_reads_the_specs_of_replicas_and_dry_runs():
    replica = parse_spec(replica_of(ASKED, SETTINGS).spec())
    assert (replica.replicate_size, replica.shard_size, replica.is_alone) == (2, 2, False)
    plan = plan_dry_runs(ASKED.workload, ASKED.cluster, ASKED.framework, SETTINGS, VERSIONS)
    dry = parse_spec(plan.requests[0]["spec"])
    assert (dry.replicate_size, dry.shard_size) == (2, 8)
    assert dry.global_batch_size == 16 * dry.accumulation_counts[-1]
