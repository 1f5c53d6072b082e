"""Words of memory figures: what memory is for, when it is needed, and what stands behind it."""

from enum import StrEnum


class Category(StrEnum):
    """What memory is for."""

    PARAMETERS = "parameters"  # this rank's parameters and buffers, between steps
    GRADIENTS_SHARDED = "gradients_sharded"  # this rank's part of reduced gradients
    GRADIENTS_UNSHARDED = "gradients_unsharded"  # whole gradients: of DDP, or on their way
    OPTIMIZER_STATE = "optimizer_state"  # what the optimizer keeps between steps
    ACTIVATIONS = "activations"  # what forward leaves for backward
    GATHERED_PARAMETERS = "gathered_parameters"  # gathered or cast, and the gathering's buffers
    LOGITS_AND_LOSS = "logits_and_loss"  # logits, the loss's copies of them, their gradients
    DDP_BUCKETS = "ddp_buckets"  # DDP's buffers of gradients
    TEMPORARIES = "temporaries"  # all else: it dies in the phase that made it


class Phase(StrEnum):
    """Parts of an optimizer step, in order; the first three happen in each micro-batch."""

    FORWARD = "forward"  # embedding and decoder layers
    LOSS = "loss"  # forward from the output head on
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Basis(StrEnum):
    """What a predicted memory figure was computed from."""

    DRY_RUN = "dry_run"  # the step itself, run on tensors without memory
    ARITHMETIC = "arithmetic"  # the cost model's formulas
