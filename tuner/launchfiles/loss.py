"""Code of a loss that is not transformers' own, as the probe program has it."""

from functools import cache
from pathlib import Path

from tuner.core.configuration import Settings
from tuner.core.study import Question
from tuner.core.workload import Loss

_CROSS_ENTROPY = '''\
def cross_entropy(logits, labels, vocab_size, **_):
    """The loss that the settings are for: cross entropy {what}."""
    targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
    logits = logits.view(-1, vocab_size){widened}
    return torch.nn.functional.cross_entropy(logits, targets)'''

# What the probe program fuses a loss with. It is read, not imported: it would import torch.
_FUSED = Path(__file__).parents[2] / "workers" / "probe" / "fused_loss.py"


@cache
def _fused_code() -> str:
    whole = _FUSED.read_text(encoding="utf-8").partition("import torch\n")[2].strip("\n")
    return whole.replace("  # type: ignore\n", "\n")


def use_loss(question: Question, settings: Settings) -> str:
    """The line that gives a model its loss; empty where the model's own is left to it."""
    if settings.fused_loss:
        return "fuse_loss(model)"
    return "model.loss_function = cross_entropy" if loss_code(question, settings) else ""


def loss_code(question: Question, settings: Settings) -> str:
    """What :func:`use_loss` needs: ``fuse_loss``, or ``cross_entropy`` of a model's logits."""
    if settings.fused_loss:
        return _fused_code()
    if settings.model_parallel_size > 1:  # whose parallelize makes the loss
        return ""
    if question.workload.loss is Loss.HF:
        return ""
    wide = question.workload.loss is Loss.FP32
    return _CROSS_ENTROPY.format(
        what="of an fp32 copy of the logits" if wide else "of the logits as they are",
        widened=".float()" if wide else "",
    )
