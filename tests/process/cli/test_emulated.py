"""An emulated probe of a tiny model, as it is shown."""

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.long
def test_an_emulated_probe_shows_its_parts(cli: Any, tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        "nodes = 1\ngpus_per_node = 4\n"
        f'[gpu]\nname = "cpu"\ndevice = "cpu"\nmemory_bytes = {2**28}\n'
        "[intra_node]\nbytes_per_s = 1e9\nlatency_s = 1e-5\n"
    )
    arguments = [
        *("--model", tiny, "--cluster", str(path), "--fidelity", "emulated"),
        *("--global-batch-size", "8", "--sequence-length", "32"),
        *("--settings", "sharding=full_shard,micro_batch_size=1"),
    ]
    shown = cli("probe", *arguments)
    assert shown.code == 0, shown.err
    for words in ("emulated: memory and computing of rank 0 alone", "computing", "exposed"):
        assert words in shown.out
    assert "prefetched" in shown.out
    assert "loss" not in shown.out
