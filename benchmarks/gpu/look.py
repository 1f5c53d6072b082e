"""What torch finds on a machine's GPUs, and whether NCCL answers on all of them.

    python -P look.py RANK WORLD FOLDER

is one of ``WORLD`` processes, which meet in the folder; it writes ``RANK.json`` there. It imports
torch alone, as its own program, so that what is wrong with either is told and ends nothing else.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

NUMBERS = 1024
"""That are averaged over all ranks, which have the same ones."""
TIMEOUT = timedelta(seconds=60)
"""Of the all-reduce."""


def main(rank: int, world: int, folder: Path) -> None:
    """Look, and write what was found; ``error`` names what failed, and where."""
    found: dict[str, Any] = {"at": "import of torch"}
    try:
        _look(rank, world, folder, found)
        found["error"] = ""
    except Exception as error:  # noqa: BLE001  (whatever it is becomes a line of the table)
        said = " ".join(f"{type(error).__name__}: {error}".split())
        found["error"] = f"{found['at']}: {said[:300]}"
    partial = folder / f"{rank}.partial"
    partial.write_text(json.dumps(found), encoding="utf-8")
    partial.replace(folder / f"{rank}.json")


def _look(rank: int, world: int, folder: Path, found: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    found |= {"torch": torch.__version__, "cuda_build": torch.version.cuda, "at": "CUDA"}
    torch.cuda.init()
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info(device)
    major, minor = torch.cuda.get_device_capability(device)
    found |= {
        "gpus": torch.cuda.device_count(),
        "name": torch.cuda.get_device_name(device),
        "capability": f"{major}.{minor}",
        "free_bytes": free,
        "total_bytes": total,
        "allocator": torch.cuda.get_allocator_backend(),
        "at": "scaled_dot_product_attention",
    }
    found["sdpa"] = {
        "bf16": _backend(torch.bfloat16, device),
        "fp32": _backend(torch.float32, device),
    }
    found |= {"nccl": ".".join(map(str, torch.cuda.nccl.version())), "at": "NCCL"}
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group(
        "nccl", store=store, rank=rank, world_size=world, timeout=TIMEOUT, device_id=device
    )
    numbers = torch.arange(NUMBERS, dtype=torch.float32)
    there = numbers.to(device)
    dist.all_reduce(there, op=dist.ReduceOp.AVG)
    if not torch.equal(there.cpu(), numbers):
        raise ArithmeticError(f"the mean of equal numbers over {world} ranks is not they")
    dist.destroy_process_group()


def _backend(dtype: Any, device: Any) -> str:
    """Torch's choice for causal attention with grouped queries, as of Llama."""
    import torch
    from torch.nn.attention import SDPBackend

    queries, keys, values = (
        torch.empty(1, heads, 1024, 64, dtype=dtype, device=device, requires_grad=True)
        for heads in (32, 8, 8)
    )
    choice = torch._fused_sdp_choice(
        queries, keys, values, None, 0.0, is_causal=True, enable_gqa=True
    )
    return SDPBackend(choice).name.lower()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
