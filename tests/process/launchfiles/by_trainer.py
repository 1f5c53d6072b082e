"""Trains as files for the Trainer say, with transformers' own classes, and prints what was seen.

    torchrun by_trainer.py MODEL OUTPUT FOLDER...

Each folder has ``training_args.json`` and what is said beside it in ``beside.json``; the main
process prints a line of JSON for each.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

# beside this file, as torchrun starts it
from launched import Collectives, _is_checkpointed
from transformers import HfArgumentParser, Trainer, TrainingArguments

from tests.process.moving import moved, values_of
from workers.probe.quantized import quantized_linears

DOCUMENTS, STEPS = (5, 3), 2


def trained(folder, model, output):
    """What two optimizer steps did, on this rank's device: a CPU, whatever the file is for."""
    file = json.loads((folder / "training_args.json").read_text())
    more = {"use_cpu": True, "output_dir": output, "max_steps": STEPS, "report_to": "none"}
    quiet = {"disable_tqdm": True, "save_strategy": "no", "learning_rate": 1e-3}
    (args,) = HfArgumentParser(TrainingArguments).parse_dict({**file, **more, **quiet})
    beside = json.loads((folder / "beside.json").read_text())
    load = next(text.partition("\n")[2] for text in beside if "from_pretrained" in text)
    names = {"MODEL": model}
    exec(load, names)
    packing = next(text for text in beside if "data_collator=" in text)
    collator = packing[packing.index("lambda rows") :].partition(". Its rows have ")[0]
    torch.manual_seed(0)
    count = STEPS * args.gradient_accumulation_steps * args.per_device_train_batch_size * 2
    rows = [
        {"documents": [torch.randint(0, 64, (length,)).tolist() for length in DOCUMENTS]}
        for _ in range(count)
    ]
    before = values_of(names["model"])
    trainer = Trainer(names["model"], args, train_dataset=rows, data_collator=eval(collator, names))
    with Collectives() as collectives:
        ended = trainer.train()
    return {
        "processes": args.world_size,
        "optimizer_steps": ended.global_step,
        "loss": ended.training_loss,
        "optimizer": type(trainer.optimizer.optimizer).__name__,
        "collectives": dict(collectives.counts),
        "checkpointed": sum(_is_checkpointed(m) for m in names["model"].modules()),
        "quantized": len(quantized_linears(names["model"])),
        "moved": moved(names["model"], before),
    }


def main():
    model, output, *folders = sys.argv[1:]
    for folder in folders:
        found = trained(Path(folder), model, output)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()
    os._exit(0)  # threads of libraries that still run can abort an orderly end


if __name__ == "__main__":
    main()
