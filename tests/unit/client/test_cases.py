"""Cases: one line each, strictly read, and one answer each, in order, whatever is in them."""

import io
import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tuner.client.cases import Policy, answer_cases, reading
from tuner.client.cases.reading import LARGEST_LINE_BYTES, parse_line, read_batches
from tuner.core.quantity import UNKNOWN
from tuner.cost.memory.device import WORKSPACE_BYTES, WORKSPACES
from tuner.cost.prediction import predict
from tuner.errors import UsageError

QUANTITY = {"value", "low", "high", "provenance"}
UNCOVERED = {"cluster": "8xr300"}


def test_a_prediction(lab, desk):
    [answer] = desk.answer(lab.case())
    memory = answer["memory"]
    assert answer["fits"] is True
    assert answer["provenance"] == "predicted"
    assert answer["reason"] == ""
    assert memory["basis"] == "arithmetic"
    assert sum(memory["breakdown"].values()) == pytest.approx(memory["allocated_gib"]["value"])
    assert memory["limit_gib"] == pytest.approx(0.95 * 80, rel=0.01)
    assert answer["canonical"]["gradient_accumulation_steps"] == 2
    assert answer["precision"] == "bf16"
    [trainer] = desk.answer(lab.case(framework="trainer"))
    assert trainer["precision"] == "bf16_mixed"


def test_memory_that_is_not_covered_is_unknown_with_the_reason(lab, desk, monkeypatch):
    def predicted(*given, **options):
        return replace(predict(*given, **options), needed_bytes=UNKNOWN, fits=False, why="odd")

    monkeypatch.setattr("tuner.cost.prediction.predict", predicted)
    [answer] = desk.answer(lab.case())
    assert (answer["fits"], answer["provenance"], answer["reason"]) == (None, "unknown", "odd")
    assert answer["memory"]["limit_gib"] is None
    assert answer["canonical"]["gradient_accumulation_steps"] == 2


def test_a_dry_run_decides_memory(lab, desk):
    [answer] = desk.answer(lab.case(), policy=Policy.ALL)
    memory = answer["memory"]
    assert memory["basis"] == "dry_run"
    beside = 2 * WORKSPACE_BYTES / 2**30
    total = pytest.approx(2 / 1024 + beside)  # a MiB a sequence
    assert memory["allocated_gib"]["value"] == total
    assert memory["breakdown"] == {
        "activations": pytest.approx(2 / 1024),
        WORKSPACES: pytest.approx(beside),
    }
    assert memory["by_phase"] == dict.fromkeys(("backward", "optimizer"), total)


def test_a_gpu_without_rates_has_memory_and_no_speed(lab, desk):
    cluster = {"nodes": 1, "gpus_per_node": 8, "gpu": {"name": "mine", "memory_bytes": 2**36}}
    [answer] = desk.answer(lab.case(cluster=cluster))
    assert answer["fits"] is True
    assert answer["memory"]["allocated_gib"]["provenance"] == "predicted"
    assert answer["step_time_s"] == dict.fromkeys(QUANTITY - {"provenance"}) | {
        "provenance": "unknown"
    }
    assert answer["provenance"] == "unknown"
    assert "mine" in answer["reason"]


def test_what_is_not_covered_is_unknown_with_the_reason(lab, desk):
    [answer] = desk.answer(lab.case(**UNCOVERED))
    assert answer["provenance"] == "unknown"
    assert "r300" in answer["reason"]
    assert answer["fits"] is None
    assert answer["memory"]["allocated_gib"]["value"] is None
    assert answer["canonical"] is None
    assert "error" not in answer


def test_what_does_not_fit_at_an_unknown_speed_says_both(lab, desk):
    [answer] = desk.answer(lab.case(cluster="cpu:2", memory_limit_gib=0.0001))
    assert answer["fits"] is False
    assert "needs" in answer["reason"]
    assert "CPU" in answer["reason"]


def test_a_script_may_need_more(lab, desk):
    plain, keeping = desk.answer(lab.case(), lab.case(script={"keeps_outputs": True}))
    sizes = [answer["memory"]["allocated_gib"]["value"] for answer in (plain, keeping)]
    assert sizes[0] < sizes[1]


def test_an_error_is_all_that_is_added(lab, desk):
    case = lab.case(settings={"tp_size": 3})
    [answer] = desk.answer(case)
    assert {name: answer[name] for name in case} == case
    assert set(answer) - set(case) == {"error"}
    assert set(answer["error"]) == {"field", "message", "errors"}
    assert answer["error"]["field"] == "settings.tp_size"
    assert answer["error"]["message"].startswith("got 3; must divide heads (4)")


def test_padding_of_experts_is_told(lab, desk):
    mixtral = {"model": "mixtral-8x7b", "sequence_length": 2048, "global_batch_size": 512}
    [answer] = desk.answer(lab.case(workload=mixtral, cluster="8x8xh100-80gb"))
    (note,) = [note for note in answer["notes"] if "packed experts" in note]
    assert "each of the 64 ranks that shard has room for 1 of 8, which is 8 times" in note
    [alone] = desk.answer(lab.case(workload=mixtral, cluster="8xh100-80gb"))
    assert not any("packed experts" in note for note in alone["notes"])


def test_host_memory_for_inputs_of_layers_is_told(lab, desk):
    gemma = {"model": "gemma-2-2b", "sequence_length": 8192, "global_batch_size": 8}
    told = []
    for how in ("full", "offload"):
        settings = f"sharding=full_shard,activation_checkpointing={how}"
        [answer] = desk.answer(lab.case(workload=gemma, cluster="8xh100-80gb", settings=settings))
        told += [[note for note in answer["notes"] if "host memory" in note]]
    (none, (note,)) = told
    # 26 layers x 8192 x 2304 in bf16: 36 MiB each, in blocks of 64 MiB, on eight ranks
    assert none == []
    assert "keeps 936 MiB of" in note
    assert "take 13.0 GiB of a node's memory" in note


class Pieces:
    """A stream that hands out given pieces, as a pipe does."""

    def __init__(self, *pieces):
        self._pieces = iter(pieces)

    def read1(self, size=-1):
        return next(self._pieces, b"")


def test_a_huge_line_is_not_kept(monkeypatch):
    monkeypatch.setattr(reading, "LARGEST_LINE_BYTES", 8)
    found = [x for batch in read_batches(Pieces(*[b"x" * 6] * 50, b"\nnext\n")) for x in batch]
    assert [len(found[0]) > 8, len(found[0]) < 30, found[1:]] == [True, True, [b"next"]]


def test_a_stream_that_breaks_is_the_files_fault():
    class Broken:
        def read1(self, size=-1):
            raise OSError(5, "Input/output error")

    with pytest.raises(UsageError, match=r"cases: .*Input/output error"):
        list(read_batches(Broken()))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nope", "must be JSON: Expecting value at character 1"),
        (b'{"a": NaN}', "must be JSON: NaN is not JSON"),
        (b'{"a": 1e999}', "must be JSON: 1e999 is too large a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is too large a number"),
        (b'{"a": 1} {"b": 2}', "must be JSON: Extra data"),
        (b'{"a": "\xff"}', "must be JSON in UTF-8"),
        (b"[1]", "must be a JSON object"),
        (b'{"a": ' + b"[" * 100_000, "may have 12 levels"),
        (b'{"a": "' + b"x" * LARGEST_LINE_BYTES + b'"}', f"must be {LARGEST_LINE_BYTES} bytes"),
    ],
    ids=lambda value: str(value[:20]),
)
def test_a_line_that_is_no_case(line, why):
    with pytest.raises(UsageError) as caught:
        parse_line(line, 7)
    assert caught.value.field == "case"
    assert caught.value.given == "line 7"
    assert why in caught.value.allowed


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (b'{"a": 1, "a": 2}', "a"),
        (b'{"a": {"b": [1, {"c": 1, "d": {}, "c": 2}]}}', "a.b.c"),
        (b'{"": 1, "": 2}', "case"),
    ],
)
def test_a_name_given_twice_is_found(line, path):
    with pytest.raises(UsageError, match="must be given once") as caught:
        parse_line(line, 1)
    assert caught.value.field == path


def test_wrong_lines_are_answered_among_the_others(lab, desk):
    huge = b'{"id": "' + b"x" * LARGEST_LINE_BYTES + b'"}'
    answers = desk.answer(
        lab.case(id=1), b"", b"nope", b"  \t\r", huge, b"\xff", lab.case(id=2), [], lab.case(id=3)
    )
    assert [answer.get("id") for answer in answers] == [1, None, None, None, 2, None, 3]
    wrong = [answer["error"]["message"] for answer in answers if "error" in answer]
    assert [text.split("'")[1] for text in wrong] == ["line 3", "line 5", "line 6", "line 8"]
    assert all(set(answer) == {"error"} for answer in answers if "error" in answer)


def test_answers_do_not_wait_for_dry_runs_of_later_cases(lab, desk):
    cases = [lab.case(cluster="8xr300"), lab.case(settings={"tp_size": 3}), lab.case()]
    stream = io.BytesIO("\n".join(map(json.dumps, cases)).encode())
    with desk.dry_runs(Policy.AUTO) as dry_runs:
        answers = answer_cases(stream, dry_runs)
        assert next(answers)["provenance"] == "unknown"
        assert next(answers)["error"]
        assert desk.runner.requests == []
        assert next(answers)["memory"]["basis"] == "dry_run"
        assert len(desk.runner.requests) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["llama-3.1-8b", "8xh100-80gb", "torch", "full_shard", "", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["model", "gpu", "nodes", "name", "tp_size"]), inner),
    max_leaves=8,
)  # fmt: skip
PATHS = [
    "workload", "workload__model", "workload__model__model_type", "workload__model__hidden_size",
    "workload__model__rope_scaling", "workload__model_name", "workload__sequence_length",
    "workload__optimizer", "workload__global_batch_size", "workload__reduce_dtype", "cluster",
    "framework", "framework__name", "framework__versions", "settings", "settings__sharding",
    "settings__tp_size", "settings__micro_batch_size", "settings__sync_each_batch", "headroom",
    "memory_limit_gib", "script", "extra",
]  # fmt: skip


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.sampled_from(PATHS), JSON), min_size=1, max_size=3))
def test_a_changed_case_gets_one_answer(lab, changes):
    case = lab.case()
    for path, value in changes:
        *parents, name = path.split("__")
        inside = case
        for parent in parents:
            inside = inside.get(parent) if isinstance(inside, dict) else None
        if isinstance(inside, dict):
            inside[name] = value
    (answer,) = lab.desk().answer(json.dumps(case).encode())
    json.dumps(answer, allow_nan=False)
    if "fits" not in answer:
        assert answer["error"]["field"]
        assert answer["error"]["message"]
