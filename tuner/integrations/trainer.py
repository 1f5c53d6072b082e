"""A callback for transformers' Trainer: ``Trainer(..., callbacks=[TunerCallback()])``."""

from typing import Any

from transformers import TrainerCallback

from tuner.integrations import report_step


class TunerCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Reports each optimizer step of a Trainer; does nothing outside of a probe."""

    def __init__(self) -> None:
        self._loss: float | None = None

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Keep the loss: the Trainer tells it here alone, after the step that it is of."""
        self._loss = (logs or {}).get("loss", self._loss)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loss, self._loss = self._loss, None
        sequences = args.train_batch_size * args.gradient_accumulation_steps
        report_step(loss, sequences=sequences)
