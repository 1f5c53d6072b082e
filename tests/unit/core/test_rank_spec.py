"""What all specs of ranks have in common, as the probe program reads it."""

from tests.questions import question_about
from tests.records import VERSIONS
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework
from tuner.dryrun import plan_dry_runs
from tuner.guard.replica import replica_of
from workers.probe.spec import parse_spec

SETTINGS = parse_settings("sharding=hybrid_shard,micro_batch_size=2,gradient_accumulation_steps=4")
STACK = framework("torch", VERSIONS, {})
ASKED = question_about("llama-3.2-1b", "2x8xh100-80gb", STACK, tokens=512, batch=128)


def test_the_probe_program_reads_the_specs_of_replicas_and_dry_runs():
    replica = parse_spec(replica_of(ASKED, SETTINGS).spec())
    assert (replica.replicate_size, replica.shard_size, replica.is_alone) == (2, 2, False)
    plan = plan_dry_runs(ASKED.workload, ASKED.cluster, ASKED.framework, SETTINGS, VERSIONS)
    dry = parse_spec(plan.requests[0]["spec"])
    assert (dry.replicate_size, dry.shard_size) == (2, 8)
    assert dry.global_batch_size == 16 * dry.accumulation_counts[-1]
