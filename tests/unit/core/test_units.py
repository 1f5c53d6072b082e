"""Numbers, durations and sizes as people write them; JSON that others can read."""

import json

import pytest

from tuner import text as units
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.words import range_text, speed_text
from tuner.core.workload import Workload
from tuner.errors import UsageError
from tuner.model import load_model

READ = [
    (
        units.read_duration,
        {"90": 90, "90s": 90, "10m": 600, "1.5h": 5400, "1h30m": 5400, " 2M ": 120, "1d": 86_400},
        "|0|0s|-5m|10 minutes|m|1w|nan|9999999h",
    ),
    (
        units.read_size,
        {
            "4GiB": 4 * 2**30,
            "0.5 gib": 2**29,
            "500MiB": 500 * 2**20,
            "80GB": 80 * 10**9,
            "1048576": 2**20,
            "12b": 12,
        },
        "|0|-1GiB|4 GiB left|4g|inf|2048TiB|1e9|80",
    ),
    (units.read_share, {"0": 0, "0.05": 0.05, "0.999": 0.999}, "|1|-0.1|5%"),
    (units.read_whole, {"1": 1, "12": 12}, "|0|-3|1.5|ten|1_000|9999999999"),
    (units.read_seconds, {"0.5": 0.5}, "0|-1|1e400|nan"),
]


def test_what_people_write_is_read_or_refused():
    for read, right, wrong in READ:
        for text, value in right.items():
            assert read("field", text) == value, text
        for text in wrong.split("|"):
            with pytest.raises(UsageError, match=r"^field: got "):
                read("field", text)


def test_figures_are_shown_with_three_digits():
    shown = [
        (
            units.duration_text,
            {0.84: "0.8 s", 9.96: "10 s", 59.6: "1:00 min", 65: "1:05 min", 3725: "1:02:05 h"},
        ),
        (speed_text, {None: "-", 3.456: "3.46", 99.94: "99.9", 1243.4: "1,243"}),
        (units.time_text, {None: "-", 0.0123: "0.0123", 1.5: "1.50", 123.4: "123"}),
        (units.moment_text, {"2026-11-21T06:30:12+00:00": "2026-11-21 06:30", "": "-"}),
        (
            lambda gib: units.size_text(gib * 2**30),
            {
                0: "0.00 KiB",
                1: "1.00 GiB",
                0.12345: "126 MiB",
                0.00012345: "129 KiB",
                79.96: "80.0 GiB",
                2048: "2048 GiB",
            },
        ),
        (lambda count: units.count_text(count, "probe"), {1: "1 probe", 2: "2 probes"}),
    ]
    for show, texts in shown:
        for value, text in texts.items():
            assert show(value) == text
    speed = Quantity(value=1243.0, low=1201.0, high=1260.4, provenance=Provenance.MEASURED)
    assert (range_text(speed), range_text(UNKNOWN)) == ("1,201 to 1,260", "- to -")


def test_counts_of_a_list_are_never_written_with_powers_of_ten():
    for value, text in ((0.0152, "0.0152"), (8.03, "8.03"), (70.6, "70.6"), (999.9, "1000")):
        assert units.three_digits(value) == text


def test_numbers_that_are_none_are_null_in_json():
    value = {"a": [1.5, float("nan"), (float("inf"), {"b": float("-inf")})], "c": "é"}
    for indent in (None, 2):
        found = json.loads(units.json_text(value, indent=indent))
        assert found == {"a": [1.5, None, [None, {"b": None}]], "c": "é"}
    other = {"a": [1, 2.5, None, True, "x"], "b": {}}
    assert units.json_text(other) == '{"a":[1,2.5,null,true,"x"],"b":{}}'


def test_a_workload_is_checked_however_it_is_made():
    for field, value, allowed in (
        ("sequence_length", 1, "from 2 to 4194304"),  # nothing to predict: the loss is no number
        ("sequence_length", True, "from 2 to 4194304"),
        ("sequence_length", 257, "takes 256 at most"),
        ("global_batch_size", 0, "from 1 to 1048576"),
    ):
        sizes = {"sequence_length": 128, "global_batch_size": 8} | {field: value}
        with pytest.raises(UsageError, match=rf"^{field}: got .*{allowed}"):
            Workload(model=load_model("stories15m"), **sizes)
