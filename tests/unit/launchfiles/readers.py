"""Reads the settings back out of formats, by the format's own parser."""

import ast
import json
import shlex
import tomllib

import yaml

from tuner.core.configuration import Settings


def settings_in(format_name, text, question):
    """The settings that a file's own fields say, comments left aside."""
    return Settings.from_dict(READERS[format_name](text, question))


def header_of(text):
    """The comments that a file has, as one text without line breaks."""
    lines = (line[2:] for line in text.splitlines() if line.startswith("# "))
    return " ".join(" ".join(lines).split())


def _sharding(shards, reshards, replicas=1):
    if not shards:
        return "ddp"
    if replicas > 1:
        return "hybrid_shard"
    return "full_shard" if reshards else "shard_grad_op"


def _trainer_flags(text, question):
    command = text[text.index("exec torchrun") :].replace("\\\n", " ")
    words = iter(shlex.split(command.partition('"$@"')[2]))
    values = {}
    for flag in words:
        name = flag.removeprefix("--")
        values[name] = True if name == "fsdp" else next(words)
    return _of_arguments({n: _value(v) for n, v in values.items()})


def _value(text):
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _of_arguments(values):
    fsdp = values.get("fsdp_config", {})
    sync = values["accelerator_config"]["gradient_accumulation_kwargs"]["sync_each_batch"]
    by_model = values.get("gradient_checkpointing", values.get("activation_checkpointing"))
    full = by_model or fsdp.get("activation_checkpointing", False)
    return {
        "sharding": _sharding("fsdp" in values, fsdp.get("reshard_after_forward", False)),
        "micro_batch_size": values["per_device_train_batch_size"],
        "gradient_accumulation_steps": values["gradient_accumulation_steps"],
        "sync_each_batch": sync,
        "activation_checkpointing": "full" if full else "none",
        "cpu_offload": fsdp.get("cpu_offload", False),
    }


def _torch(text, question):
    assigned = (node for node in ast.parse(text).body if isinstance(node, ast.Assign))
    values = {node.targets[0].id: ast.literal_eval(node.value) for node in assigned}
    assert values.pop("WORLD_SIZE") == question.cluster.world_size
    return {name.lower(): value for name, value in values.items()}


def variables_in(text):
    """What a shell script exports."""
    lines = (line for line in text.splitlines() if line.startswith("export "))
    return dict(shlex.split(line)[1].split("=", 1) for line in lines)


def _shell(text, question):
    return _of_variables(variables_in(text))


def _of_variables(values):
    return {name: values[f"TUNED_{name.upper()}"] for name in Settings().all_values()}


def _kubernetes(text, question):
    env = yaml.safe_load(text)["spec"]["trainer"]["env"]
    return _of_variables({one["name"]: one["value"] for one in env})


def _torchtitan(text, question):
    values = tomllib.loads(text)
    parallelism, training = values["parallelism"], values["training"]
    replicas = parallelism["data_parallel_replicate_degree"]
    shards = parallelism["data_parallel_shard_degree"]
    ranks = replicas * shards
    micro = training["local_batch_size"]
    return {
        "sharding": _sharding(
            shards > 1, parallelism["fsdp_reshard_after_forward"] == "always", replicas
        ),
        "tp_size": parallelism["tensor_parallel_degree"],
        "pp_size": parallelism["pipeline_parallel_degree"],
        "micro_batch_size": micro,
        "gradient_accumulation_steps": training["global_batch_size"] // (micro * ranks),
        "sync_each_batch": True,
        "activation_checkpointing": values["activation_checkpoint"]["mode"],
        "cpu_offload": training["enable_cpu_offload"],
    }


# Of formats that the product itself does not read, and of the Trainer's.
READERS = {
    "trainer": lambda text, question: _of_arguments(json.loads(text)),
    "trainer-flags": _trainer_flags,
    "torch": _torch,
    "torchrun": _shell,
    "torchtitan": _torchtitan,
    "sbatch": _shell,
    "kubernetes": _kubernetes,
    "env": _shell,
}
