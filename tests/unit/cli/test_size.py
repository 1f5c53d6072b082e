"""``tuner size``, and the same from Python."""

import json

import pytest

import tuner

ASKED = ("--model", "stories42m", "--global-batch-size", "96", "--sequence-length", "512",
         "--knob", "sharding=full_shard,ddp", "--knob", "tp_size=1")  # fmt: skip
PYTHON = {
    "model": "stories42m",
    "global_batch_size": 96,
    "sequence_length": 512,
    "knobs": {"sharding": ["full_shard", "ddp"], "tp_size": [1]},
}


def test_rows_are_the_best_first_and_python_says_the_same(cli):
    clusters = ("4xa100-80gb", "4xh100-80gb")
    options = [one for cluster in clusters for one in ("--cluster", cluster)]
    found = cli("size", *ASKED, *options, "--price", "2", "--tokens", "1B", "--json")
    assert found.code == 0, found.err
    rows = found.json["rows"]
    assert [row["cluster"] for row in rows] == ["4xh100-80gb", "4xa100-80gb"]
    costs = [row["fewest"]["cost_per_billion_tokens"]["value"] for row in rows]
    assert costs == sorted(costs)
    assert rows[0]["fewest"]["provenance"] == "predicted"
    same = tuner.size(cluster=clusters, price_per_gpu_hour=2, tokens=1e9, **PYTHON)
    assert json.loads(json.dumps(same.as_dict())) == found.json
    assert same.best is same.rows[0].fewest
    assert (same.best.gpus, same.best.best.fits_surely) == (1, True)


def test_a_price_in_the_cluster_s_file_goes_before_that_of_all(cli, tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text('nodes = 1\ngpus_per_node = 2\ngpu = "a100-80gb"\nprice_per_gpu_hour = 1.25\n')
    options = ("--cluster", str(file), "--cluster", "2xa100-80gb")
    rows = cli("size", *ASKED, *options, "--price", "5", "--json").json["rows"]
    assert [row["price_per_gpu_hour"] for row in rows] == [1.25, 5]
    prices = [row["whole"]["cost_per_billion_tokens"]["value"] for row in rows]
    assert prices[1] == pytest.approx(4 * prices[0])
    file.write_text(file.read_text().replace("1.25", "-1"))
    wrong = cli("size", *ASKED, "--cluster", str(file))
    assert (wrong.code, "price_per_gpu_hour: got -1; must be a price" in wrong.err) == (2, True)


def test_people_read_what_was_predicted_and_that_it_was(cli):
    shown = cli("size", *ASKED, "--cluster", "4xa100-80gb", "--tokens", "1B", "--within", "1d")
    assert shown.code == 0, shown.err
    for words in ("reached by", "longest sequence", "largest micro-batch", "80% interval"):
        assert words in shown.out
    assert "All figures are predicted by arithmetic" in shown.out.splitlines()[-1]


def test_what_is_reached_nowhere_or_fits_nowhere_has_exit_codes(cli):
    slow = cli("size", *ASKED, "--cluster", "2xa100-80gb", "--tokens-per-s", "1T")
    assert (slow.code, "the goal is not reached: 2xa100-80gb: 2 GPUs are" in slow.err) == (1, True)
    small = cli("size", *ASKED, "--cluster", "2xa100-80gb", "--memory-limit", "300MiB", "--json")
    assert (small.code, small.json["rows"][0]["fewest"]) == (3, None)
    assert "it fits on none of these: 2xa100-80gb: nothing is sure to fit" in small.err


def test_why_nothing_is_sharded_is_said_where_nothing_fits_for_it(cli):
    job = ("--model", "llama-3.1-8b", "--adapter", "lora", "--framework", "trainer")
    place = ("--cluster", "8xrtx-4090", "--sequence-length", "8192", "--global-batch-size", "32")
    found = cli("size", *job, *place)
    assert found.code == 3
    assert "sharding must be ddp with an adapter: the Trainer shards" in found.err
    refused = cli(
        "suggest", *job, *place, "--fidelity", "predicted", "--knob", "sharding=full_shard"
    )
    assert refused.code == 2
    assert "got 'full_shard'; must be ddp with an adapter: the Trainer shards" in refused.err


def test_a_family_s_largest_model_is_found(cli):
    options = ("--cluster", "4xa100-80gb", "--memory-limit", "1600MiB", "--json")
    rows = cli("size", *ASKED[2:], "--family", "stories42m", *options).json["rows"]
    assert (rows[0]["model"], rows[0]["largest_model"]["model"]) == ("stories42m", "stories42m")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--within", "1d"), "within_s: got 86400.0; needs tokens"),
        (("--tokens", "1B", "--within", "1d", "--tokens-per-s", "5"), "tokens_per_s: got 5"),
        (("--family", "lama"), "family: got 'lama'; no such name"),
        (("--price", "many"), "price: got 'many'"),
        (("--knob", "tp_size=3"), "tp_size: got 3"),
        (("--cluster", "4xb"), "cluster: got"),
    ],
)
def test_mistakes_are_told(cli, options, words):
    result = cli("size", *ASKED[:6], "--cluster", "4xa100-80gb", *options)
    assert (result.code, words in result.err) == (2, True), result.err


def test_the_cost_is_of_the_tokens_that_are_asked_about(cli):
    asked = ("size", *ASKED, "--cluster", "4xa100-80gb", "--price", "2")
    (one,) = cli(*asked, "--json").json["rows"]
    each = one["fewest"]["cost_per_billion_tokens"]["value"]
    shown = cli(*asked, "--tokens", "4B").out
    assert "cost of 4B tokens" in shown
    assert f"{4 * each:,.2f} (" in shown


@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_wider_than_the_terminal(cli, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    found = cli("size", *ASKED, "--cluster", "4x8xh100-80gb", "--price", "2", "--tokens", "1T")
    assert found.code == 0, found.err
    assert max(map(len, found.out.splitlines())) <= width
    assert "…" not in found.out
    assert "cost of 1T tokens" in found.out  # in the table, or else under it
    assert "1T tokens take" in found.out
