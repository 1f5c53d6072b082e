import pytest

from tuner.core.workload import Workload
from tuner.errors import UsageError
from tuner.model import load_model


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("sequence_length", 1, r"from 2 to 4194304"),  # nothing to predict: the loss is no number
        ("sequence_length", True, r"from 2 to 4194304"),
        ("sequence_length", 257, r"takes 256 at most"),
        ("global_batch_size", 0, r"from 1 to 1048576"),
    ],
)
def test_impossible_sizes_are_refused(field: str, value: int, allowed: str) -> None:
    sizes = {"sequence_length": 128, "global_batch_size": 8} | {field: value}
    with pytest.raises(UsageError, match=rf"^{field}: got {str(value).lower()}; .*{allowed}"):
        Workload(model=load_model("stories15m"), **sizes)
