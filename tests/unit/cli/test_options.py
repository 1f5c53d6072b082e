"""Options that stand in a file, and sizes as people write them."""

import json

import pytest

from tuner.errors import UsageError
from tuner.text import read_length, read_tokens


@pytest.fixture
def written(tmp_path):
    """Writes a question as a file, with some lines in the place of its own; its path."""

    def write(**changes):
        values = {
            "model": "llama-3.1-8b", "cluster": "8xh100-80gb", "sequence-length": "4k",
            "global_batch_size": 64, "settings": "sharding=full_shard", "dry_runs": "none",
        }  # fmt: skip
        path = tmp_path / "question.toml"
        lines = (f"{name} = {json.dumps(value)}" for name, value in {**values, **changes}.items())
        path.write_text("\n".join(lines))
        return str(path)

    return write


def test_a_question_is_read_from_a_file(cli, written):
    found = cli("predict", "-f", written(), "--json")
    assert found.code == 0, found.err
    assert found.json["workload"]["sequence_length"] == 4096
    assert found.json["canonical"]["gradient_accumulation_steps"] == 8
    # what is given at the command line goes before it
    found = cli("predict", "-f", written(), "--global-batch-size", "128", "--json")
    assert found.json["canonical"]["gradient_accumulation_steps"] == 16


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"modle": "x"}, "file: got 'modle'; is no option of predict (did you mean model?), in "),
        ({"model": "lama-3.1-8b"}, "model: got 'lama-3.1-8b'; no such name; did you mean llama-3"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(cli, written, changes, said):
    found = cli("predict", "-f", written(**changes))
    assert found.code == 2
    assert said in found.err


def test_a_file_that_is_not_there_or_no_toml(cli, tmp_path):
    assert "there is no such file" in cli("suggest", "-f", "no.toml").err
    (tmp_path / "bad.toml").write_text("model = ")
    found = cli("suggest", "-f", str(tmp_path / "bad.toml"))
    assert (found.code, "must be a TOML file of options: " in found.err) == (2, True)


def test_sizes_in_units_of_1024_and_tokens_in_thousands():
    lengths = {"8k": 8192, "4K": 4096, "2048": 2048, " 1k ": 1024, "1048576": 2**20}
    assert {text: read_length("sequence_length", text) for text in lengths} == lengths
    tokens = {"1T": 1e12, "300B": 3e11, "1.5e9": 1.5e9, "20000": 2e4}
    assert {text: read_tokens("tokens", text) for text in tokens} == tokens
    for text in ("k", "8kk", "0k", "1.5k", "-8k", ""):
        with pytest.raises(UsageError, match="must be a positive whole number"):
            read_length("sequence_length", text)
    for text in ("", "T", "0", "1Q", "-1B", "1e99"):
        with pytest.raises(UsageError, match="must be a number of tokens"):
            read_tokens("tokens", text)
