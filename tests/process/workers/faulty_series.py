"""One rank of replicas in a stack with a planted fault: ``faulty_series.py FAULT``, options."""

import sys

from transformers import PreTrainedModel

from workers.probe import stack
from workers.probe.__main__ import main
from workers.probe.tensor_parallel import collectives


def steps_on_every_micro_batch():
    """As accelerate 0.28 to 0.30 did under ``sync_each_batch`` (accelerate PR 2790)."""
    accelerator = stack.Accelerator
    usual = accelerator._do_sync

    def do_sync(self, *given, **named):
        usual(self, *given, **named)
        if self.gradient_state.plugin_kwargs.get("sync_each_batch"):
            self.gradient_state._set_sync_gradients(True)

    accelerator._do_sync = do_sync


def ignores_sync_each_batch():
    """As the Trainer before transformers PR 43919, or accelerate's state half set."""
    plugin = stack.GradientAccumulationPlugin
    stack.GradientAccumulationPlugin = lambda sync_each_batch, **named: plugin(
        sync_each_batch=False, **named
    )


def reuses_a_gathered_buffer():
    """One buffer for all gathered activations of a shape, written again before backward reads."""
    buffers = {}
    usual = collectives.all_gather_sequence

    def gather(shard, axis):
        whole = usual(shard, axis)
        buffer = buffers.setdefault((whole.shape, whole.dtype), whole.clone())
        buffer.data.copy_(whole)  # behind autograd's back, which counts writes
        return buffer

    collectives.all_gather_sequence = gather


def reuses_buffers():
    """Both faults of buffers: one acts with recomputation only, the other without it only."""
    reuses_a_gathered_buffer()
    overwrites_the_saved_shard()


def ignores_checkpointing():
    """Nothing is computed again, and all is kept."""
    PreTrainedModel.activation_checkpointing_enable = lambda *_, **__: None


def overwrites_the_saved_shard():
    """What recomputation gathers again is a part of a buffer that the next layer has written."""
    buffers = {}
    usual = collectives.GatherLinears.forward

    def forward(ctx, shard, axis, recompute, *rest):
        found = usual(ctx, shard, axis, recompute, *rest)
        if recompute:
            kept = buffers.setdefault((shard.shape, shard.dtype), shard.detach().clone())
            kept.data.copy_(shard.detach())  # behind autograd's back, which counts writes
            ctx.save_for_backward(kept, *rest[: len(rest) // 2])
        return found

    collectives.GatherLinears.forward = staticmethod(forward)


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
    main()
