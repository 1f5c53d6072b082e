"""An Optuna study of your own, with tuner's sampler: ``python examples/optuna_study.py``.

The sampler knows what the cost model predicts of each configuration, learns from each trial what
that is off by, and never proposes what is illegal. Here it finds a configuration for an 8B model on
eight A100s; ``train`` stands for a few steps of your own training script, and every name of this
file but ``sampler`` is yours. Optuna's own parameters may stand beside the knobs.
"""

import optuna

import tuner

GIB = 2**30

sampler = tuner.cost_model_sampler(
    model="llama-3.1-8b", cluster="8xa100-80gb", global_batch_size=64, sequence_length=4096
)


def train(configuration: tuner.Settings, prefetch: int) -> tuple[float, float]:
    """Seconds of a step and the bytes that it needed; made up here, measured by you."""
    shards = 1 if configuration.sharding == "ddp" else 8
    again = configuration.activation_checkpointing == "full"
    activations = configuration.micro_batch_size * (4 if again else 30)
    needed = (100 / shards / configuration.tp_size + activations / configuration.tp_size) * GIB
    overhead = 1 + 0.2 * (configuration.tp_size > 1) + 0.3 / configuration.micro_batch_size
    return 9.0 * overhead * (1.3 if again else 1.0) * (1 + 0.01 / prefetch), needed


def objective(trial: optuna.Trial) -> float:
    """One trial: a configuration, and a parameter that is none of tuner's."""
    configuration = sampler.suggest(trial)  # one parameter for each active knob
    prefetch = trial.suggest_int("prefetch", 1, 4)
    seconds, needed_bytes = train(configuration, prefetch)
    trial.set_constraint("memory_over_limit_bytes", needed_bytes - sampler.limit_bytes)
    if needed_bytes > sampler.limit_bytes:
        raise optuna.TrialPruned("out of memory")
    return seconds


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=12)
    print(f"best of {len(study.trials)}: {study.best_value:.2f} s with {study.best_params}")
