"""When the code of exported files has replicas of shards reduce their gradients."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.unit.launchfiles.cases import Case
from tuner.launchfiles.accelerate import script
from tuner.launchfiles.torch_module import module

STEPS = 3


class Seen:
    """A model, its loss and an Accelerator, which note in which order they were called."""

    sync_gradients = False

    def __init__(self):
        self.calls, self.loss, self.number = [], self, 0

    def __call__(self):
        return self

    def __truediv__(self, count):
        assert count == STEPS
        return self

    def detach(self):
        return 0

    def set_requires_all_reduce(self, does):
        self.calls.append(does)

    def backward(self, loss=None):
        self.calls.append("backward")

    def step(self):
        """As of an optimizer."""

    zero_grad = step

    @contextmanager
    def accumulate(self, model):
        self.number += 1
        self.sync_gradients = self.number % STEPS == 0
        yield


def of_module(parts, seen):
    code = module(*parts)
    names = {
        "torch": SimpleNamespace(zeros=lambda *shape, **where: 0),
        "GRADIENT_ACCUMULATION_STEPS": STEPS,
    }
    exec(code[code.index("def train_step") :], names)
    names["train_step"](seen, seen, [{}] * STEPS)


def of_script(parts, seen):
    code = script(*parts)
    names = dict.fromkeys(("model", "accelerator", "optimizer"), seen)
    exec(code[code.index("for batch in batches") :], {**names, "batches": [{}] * STEPS})


@pytest.mark.parametrize("run", [of_module, of_script])
def test_replicas_reduce_after_the_last_micro_batch_alone(run):
    for defers, told in (("true", [False, False, True]), ("false", [])):
        seen = Seen()
        settings = f"sharding=hybrid_shard,gradient_accumulation_steps={STEPS}"
        case = Case(cluster="2x8xh100-80gb", settings=f"{settings},defer_all_reduce={defers}")
        run(case.parts(), seen)
        assert [call for call in seen.calls if call != "backward"] == told
        assert seen.calls.count("backward") == STEPS
        assert not told or seen.calls[1::2] == ["backward"] * STEPS  # each is told before its own
