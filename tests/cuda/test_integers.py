"""Whole numbers and truth values of the device are computed, where no kernel runs."""

import subprocess
import sys

# Each case is computed of tensors of the host and of the device, and must give the same.
PROGRAM = """
import torch
from workers.rehearsal import integers
kept = integers.install()
numbers = torch.tensor([[3, 0, 2, 2], [1, 5, 0, 4]])
others = torch.tensor([[3, 1, 2, 0], [0, 5, 4, 4]])
flags = torch.tensor([[True, False, True, True], [False, True, False, False]])
places = torch.tensor([1, 0, 1])
ordered, wanted = torch.tensor([0, 2, 4, 9]), torch.tensor([3, 4, 10])
small = torch.arange(6)
CASES = {
    "compare": lambda n, o, *_: [n == o, n != o, n < o, n <= 2, n > 2, n >= o, n.eq(2)],
    "add": lambda n, o, *_: [n + o, n - 1, n * o, n % 3, n // 2, -n, (n - 3).abs()],
    "in_place": lambda n, o, *_: [n.clone().add_(o), n.clone().mul_(2), n.clone().clamp_(1, 3)],
    "logic": lambda n, o, f, *_: [f & ~f, f | f, f ^ f, f.logical_not(), f.logical_and(n > 1)],
    "reduce": lambda n, o, f, *_: [n.sum(), n.sum(1), n.sum(0, keepdim=True), f.sum(-1), f.all(),
                                   f.any(1), n.max(), n.amin(0), n.argmax(1)],
    "with_places": lambda n, *_: [*n.max(1), *n.min(0), *n.sort(dim=1, stable=True)],
    "cumulate": lambda n, *_: [n.cumsum(1)],
    "pick": lambda n, o, f, p, *_: [n[p % 2], n[:, p], n.index_select(1, p), n[f],
                                    n.gather(1, n % 4)],
    "put": lambda n, o, f, p, *_: [n.scatter(1, n % 4, 7), n.scatter(1, o % 4, o),
                                   n.clone().scatter_add_(1, o % 4, n),
                                   n.index_put((p % 2,), o[p % 2]), n.masked_fill(f, -100),
                                   torch.where(f, n, o)],
    "shape": lambda n, o, *_: [torch.cat([n, o]), n.roll(1, 1), n.flip(0), n.t().contiguous(),
                               torch.ones(3, 3, dtype=torch.bool, device=n.device).tril(),
                               torch.full((3,), 4, device=n.device),
                               torch.arange(2, 9, 3, device=n.device), n[:, 1:].clone()],
    "search": lambda n, o, f, p, s, w: [torch.searchsorted(s, w), torch.bucketize(w, s),
                                        torch.isin(n, w)],
    "sized": lambda n, o, f, p, *_: [n.nonzero(), f.nonzero(), torch.bincount(n.flatten()),
                                     p.repeat_interleave(p + 1), *n.unique(return_counts=True),
                                     *torch.unique_consecutive(n, return_counts=True)],
    "types": lambda n, o, f, *_: [n.int(), f.long(), n.bool(), n.to(torch.uint8)],
}
here = numbers, others, flags, places, ordered, wanted
there = tuple(one.cuda() for one in here)
for name, case in CASES.items():
    for place, (own, other) in enumerate(zip(case(*here), case(*there), strict=True)):
        assert other.is_cuda, (name, place)
        found = other.cpu()
        assert found.dtype == own.dtype, (name, place)
        assert torch.equal(found, own), (name, place, own, found)
    print(name)
# fractions are zeros, whatever was put into them; what is compared with them is of zeros
assert (torch.full((4,), 3.0, device="cuda") > 1).sum().item() == 0
# a router's choice: each expert gets as many of the tokens
_, chosen = torch.rand(16, 8, device="cuda").topk(2, dim=-1)
assert torch.bincount(chosen.flatten()).tolist() == [4] * 8
whole = torch.histc(chosen.int().flatten(), bins=8, min=0, max=7)
assert whole.tolist() == [4] * 8
print("routed")
"""


def test_each_operator_gives_what_it_gives_on_the_host(gpus):
    gpus(1)
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "routed"
