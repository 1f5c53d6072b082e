"""Files for the Trainer, trained by it: adapters on packed documents."""

import json
import sys
from pathlib import Path

import pytest

from tests.process.launchfiles.launching import ROOT, all_json, launched, save_tiny_llama
from tests.unit.launchfiles.cases import ABOUT, Case, trainer
from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.packing import Packing, PackingVariant
from tuner.core.workload import Precision
from tuner.launchfiles import FORMATS, export

DDP = "sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2"
PACKED = {"packing": Packing(variant=PackingVariant.POSITION_IDS, documents=((3, 1), (5, 1)))}
QLORA, LORA = Adapter(rank=2, method=AdapterMethod.QLORA), Adapter(rank=2)
MIXED = {**PACKED, "precision": Precision.BF16_MIXED, "adapter": QLORA}
# The recipe's question, and one that is asked of this machine.
ASKED = {
    "qlora": Case(
        cluster="2xrtx-4090", sequence_length=8, framework=trainer(), workload=MIXED,
        settings=f"{DDP},sync_each_batch=false,activation_checkpointing=every_2"),
    "lora": Case(
        cluster="cpu:2", model="stories15m", sequence_length=8, framework=trainer(),
        workload={**PACKED, "precision": Precision.FP32, "adapter": LORA},
        settings=f"{DDP},sync_each_batch=true"),
}  # fmt: skip


@pytest.mark.slow
def test_two_processes_train_adapters_on_packed_documents(tmp_path):
    """Two steps of a tiny Llama: adapters move and nothing else does, and gradients are reduced
    as often as the file says."""
    folders = []
    for name, case in ASKED.items():
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        text = export("trainer", *case.parts(), ABOUT)
        (folders[-1] / "training_args.json").write_text(text, encoding="utf-8")
        said = FORMATS["trainer"].beside(*case.parts())
        (folders[-1] / "beside.json").write_text(json.dumps(said), encoding="utf-8")
    model = save_tiny_llama(tmp_path / "model")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(Path(__file__).parent / "by_trainer.py")]
    out = launched([*command, str(model), *map(str, [tmp_path, *folders])], PYTHONPATH=str(ROOT))
    qlora, lora = all_json(out)
    linears = 2 * 7  # each with two matrices beside it
    same = {"processes": 2, "optimizer_steps": 2, "optimizer": "AdamW"}
    for found in (qlora, lora):
        assert {key: found[key] for key in same} == same
        assert found["moved"] == {"trained": [2 * linears] * 2, "frozen": [0, 2 * 9 + 3]}
        assert found["loss"] == pytest.approx(4.16, abs=0.1)  # of 64 tokens, nothing learned
    assert (qlora["quantized"], lora["quantized"]) == (linears, 0)
    assert (qlora["checkpointed"], lora["checkpointed"]) == (1, 0)
    assert qlora["collectives"] == {"allreduce torch.float32": 2}
    assert lora["collectives"] == {"allreduce torch.float32": 2 * 2}
