"""The operator that raised an error, in models that fake tensors cannot run."""

import json
import subprocess
import sys
from types import ModuleType

import pytest

from tests.process.preloaded import Preloaded

pytestmark = pytest.mark.xdist_group("dry_program")

SERVE = """
import sys
import torch
from transformers.models.llama import modeling_llama
from workers.probe.dry import server
def forward(mlp, x):
    if mlp.intermediate_size == 192: x = x * x.max().item()
    if mlp.intermediate_size == 160: x = x * torch.nonzero(x).sum()
    if mlp.intermediate_size == 144: raise KeyError("no operator")
    if mlp.intermediate_size == 136: raise OSError("no space left on device")
    while mlp.intermediate_size == 128: x = x + 1
    return mlp.down_proj(mlp.up_proj(x))
modeling_llama.LlamaMLP.forward = forward
write = lambda line: print(line, flush=True)
limit_s = float(sys.argv[1])
server.Server(0, write, is_heard=lambda: True, limit_s=limit_s, wall_s=400.0, jobs=2).run()
"""
ERRORS = {
    192: ("", "aten._local_scalar_dense.default"),
    160: ("", "aten.nonzero.default"),
    144: ("stack", ""),
    136: ("", ""),
    128: ("time_limit", "aten.add.Tensor"),
}
"""The rule and the operator of the error of each; a machine's errors have neither."""


def test_errors_name_the_operator_that_raised(preloaded: Preloaded, measured: ModuleType) -> None:
    spec = measured.spec("llama", 2, sharding="full_shard")
    requests = [
        measured.request(str(size), {**spec, "model": {**spec["model"], "intermediate_size": size}})
        for size in (*ERRORS, 256)
    ]
    for limit_s in (4.0, 20.0, 100.0):  # until it leaves the one without a fault the time
        ended = subprocess.run(
            preloaded([sys.executable, "-P", "-c", SERVE, str(limit_s)]),
            input="\n".join(map(json.dumps, requests)),
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-2000:]
        found = {answer["id"]: answer for answer in map(json.loads, ended.stdout.splitlines())}
        if "trace" in found["256"]:
            break
    assert "trace" in found["256"], found["256"]
    for size, expected in ERRORS.items():
        error = found[str(size)]["error"]
        assert (error["rule"], error["operator"]) == expected, error
        assert error["phase"] == "forward"
