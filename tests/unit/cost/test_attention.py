"""What computes attention; ``tests/cuda/test_attention.py`` asks torch itself."""

from tuner.core.cluster import Gpu, parse_cluster
from tuner.core.packing import Packing, PackingVariant
from tuner.core.workload import Workload
from tuner.cost.memory.attention import attention_of
from tuner.model import published_model as read

GROUPED, EVEN = "llama-3.1-8b", "llama-2-7b"


def kernels(model, width, gpu, packing=None):
    workload = Workload(
        model=read(model), sequence_length=1024, global_batch_size=8, packing=packing
    )
    found = attention_of(workload, width, parse_cluster(gpu).gpu)
    return str(found.unmasked), str(found.masked)


def test_kernels_by_gpu_and_precision():
    for gpu, bf16, fp32 in [
        ("v100-32gb", ("math", "math"), "efficient"),
        ("t4", ("math", "math"), "efficient"),
        ("a100-80gb", ("flash", "efficient"), "efficient"),
        ("rtx-3090", ("flash", "efficient"), "efficient"),
        ("h100-80gb", ("cudnn", "cudnn"), "efficient"),
        ("b200", ("cudnn", "cudnn"), "efficient"),
        ("rtx-5090", ("flash", "efficient"), "efficient"),
        ("mi300x", ("flash", "efficient"), "efficient"),  # taken for an A100
    ]:
        assert kernels(EVEN, 2, gpu) == kernels(GROUPED, 2, gpu) == bf16
        assert kernels(EVEN, 4, gpu) == (fp32, fp32)
        assert kernels(GROUPED, 4, gpu) == ("math", fp32)  # a mask comes with repeated heads


def test_capped_scores_are_computed_by_transformers():
    assert kernels("gemma-2-2b", 2, "h100-80gb") == ("eager", "eager")


def test_packed_rows_have_flash_attentions_library_or_a_mask():
    varlen, masked = Packing(), Packing(variant=PackingVariant.BLOCK_DIAGONAL)
    assert kernels(EVEN, 2, "rtx-4090", varlen) == ("flash", "flash")
    assert kernels(EVEN, 2, "rtx-4090", masked) == ("flash", "efficient")


def test_dropout_is_not_cudnns():
    assert kernels("gpt2", 2, "h100-80gb") == ("flash", "efficient")


def test_the_stated_capability_goes_first():
    def own(name, capability=""):
        return Gpu(name=name, memory_bytes=2**34, compute_capability=capability).capability

    assert own("mine", "12.0") == (12, 0)
    assert own("t4") == (7, 5)
    assert own("t4", "8.6") == (8, 6)
    assert own("mine") == (8, 0)
