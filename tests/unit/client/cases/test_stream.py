"""Many lines: one answer each, in order, whatever is in them."""

import io
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tuner.client.cases import Policy, answer_cases
from tuner.client.cases.lines import LARGEST_LINE_BYTES


def test_wrong_lines_are_answered_among_the_others(lab: Any, desk: Any) -> None:
    huge = b'{"id": "' + b"x" * LARGEST_LINE_BYTES + b'"}'
    answers = desk.answer(
        lab.case(id=1), b"", b"nope", b"  \t\r", huge, b"\xff", lab.case(id=2), [], lab.case(id=3)
    )
    assert [answer.get("id") for answer in answers] == [1, None, None, None, 2, None, 3]
    wrong = [answer["error"]["message"] for answer in answers if "error" in answer]
    assert [text.split("'")[1] for text in wrong] == ["line 3", "line 5", "line 6", "line 8"]
    assert all(set(answer) == {"error"} for answer in answers if "error" in answer)


def test_the_answers_keep_the_order_of_the_cases(lab: Any, desk: Any) -> None:
    shardings = ("ddp", "shard_grad_op", "full_shard")
    cases = [
        lab.case(id=n, settings={"sharding": shardings[n % 3], "micro_batch_size": 1 + n % 2})
        for n in range(30)
    ]
    answers = desk.answer(*cases, policy=Policy.ALL)  # made the last first
    assert [answer["id"] for answer in answers] == list(range(30))
    assert {answer["memory"]["basis"] for answer in answers} == {"dry_run"}


def test_answers_do_not_wait_for_dry_runs_of_later_cases(lab: Any, desk: Any) -> None:
    cases = [lab.case(cluster="8xb300"), lab.case(settings={"tp_size": 3}), lab.case()]
    stream = io.BytesIO("\n".join(map(json.dumps, cases)).encode())
    with desk.dry_runs(Policy.AUTO) as dry_runs:
        answers = answer_cases(stream, dry_runs)
        assert next(answers)["provenance"] == "unknown"
        assert next(answers)["error"]
        assert desk.runner.requests == []
        assert next(answers)["memory"]["basis"] == "dry_run"
        assert len(desk.runner.requests) == 1


def test_one_case_at_a_time_is_answered_at_once(lab: Any, desk: Any) -> None:
    """As for a program that writes a case, and reads its answer before it writes the next."""
    written: list[bytes] = []

    class Pipe:
        def read1(self, size: int = -1) -> bytes:
            return written.pop(0) if written else b""

    written.append(json.dumps(lab.case(id=1)).encode() + b"\n")
    with desk.dry_runs(Policy.NONE) as dry_runs:
        answers = answer_cases(Pipe(), dry_runs)
        assert next(answers)["id"] == 1
        written.append(json.dumps(lab.case(id=2)).encode() + b"\n")
        assert next(answers)["id"] == 2
        assert next(answers, None) is None


def test_nothing_in_nothing_out(desk: Any) -> None:
    assert desk.answer(b"\n\n  \n") == []


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["llama-3.1-8b", "8xh100-80gb", "torch", "full_shard", "llama", "", "\ud800"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["model", "model_type", "gpu", "nodes", "name", "versions", "tp_size"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
PATHS = (
    "workload",
    "workload__model",
    "workload__model__model_type",
    "workload__model__hidden_size",
    "workload__model__num_hidden_layers",
    "workload__model__rope_scaling",
    "workload__model_name",
    "workload__sequence_length",
    "workload__global_batch_size",
    "workload__optimizer",
    "workload__precision",
    "workload__reduce_dtype",
    "cluster",
    "framework",
    "framework__name",
    "framework__versions",
    "settings",
    "settings__sharding",
    "settings__tp_size",
    "settings__pp_size",
    "settings__micro_batch_size",
    "settings__sync_each_batch",
    "headroom",
    "memory_limit_gib",
    "script",
    "extra",
)


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.sampled_from(PATHS), JSON), min_size=1, max_size=3))
def test_a_changed_case_gets_one_answer(lab: Any, changes: list[tuple[str, Any]]) -> None:
    case = lab.case()
    for path, value in changes:
        *parents, name = path.split("__")
        inside = case
        for parent in parents:
            inside = inside.get(parent) if isinstance(inside, dict) else None
        if isinstance(inside, dict):
            inside[name] = value
    _check(lab, json.dumps(case).encode())


@settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))
@given(
    line=st.binary(max_size=60)
    | st.text(alphabet='{}[]":,0e9.-\\u nulltrefasworkd', max_size=60).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    )
)
def test_any_line_gets_one_answer(lab: Any, line: bytes) -> None:
    _check(lab, line.replace(b"\n", b""))


def _check(lab: Any, line: bytes) -> None:
    answers = lab.desk().answer(line)
    assert len(answers) == bool(line.strip())
    for answer in answers:
        json.dumps(answer, allow_nan=False)
        if "fits" not in answer:
            assert answer["error"]["field"]
            assert answer["error"]["message"]
