"""Configurations of models that somebody made up to do harm: they are data, and nothing else."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tests.api.studies import PREDICTED, TINY, WORKLOAD
from tuner.model_fields import ARCHITECTURES
from tuner.store import open_store

TEMPTING = [
    "/etc/passwd", "../../../etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/x",
    "\\\\host\\x", "os.system", "__import__('os').system('id')", "${jndi:ldap://127.0.0.1/x}",
    "org/repo", "a\x00b", "config.json", "cluster.toml", "local", "$(id)", "`id`", "%s%n", "\ud800",
    "\u202e", "x" * 5000, "sqlite:////tmp/x", "!!python/object/apply:os.system", "NaN", "-1",
    "1e999",
]  # fmt: skip
NAMES = [
    "auto_map", "trust_remote_code", "attn_implementation", "_attn_implementation", "torch_dtype",
    "quantization_config", "rope_scaling", "rope_parameters", "architectures", "_name_or_path",
    "tokenizer_class", "kernel_config", "__class__", "__proto__", "text_config",
    "base_model_tp_plan", *TINY,
]  # fmt: skip
KINDS = [{}, {"model_type": "evil"}, *({"model_type": name} for name in ARCHITECTURES)]

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(TEMPTING)
    | st.text(max_size=20)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=12,
)
HOSTILE = st.builds(
    lambda base, changes, kind: {**base, **kind, **changes},
    st.sampled_from([TINY, {}]),
    st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=12), VALUES, max_size=5),
    st.sampled_from(KINDS),
)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    folder = tmp_path_factory.mktemp("hostile")
    with open_store(f"sqlite:///{folder}/studies.db") as store:
        yield create_app(store, Settings(_env_file=None, max_open_studies=10**6))


@pytest.fixture
def guarded(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Posts a body while no file may be opened, no process started and nobody called."""
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        for model in (TINY, "llama-3.1-8b", "meta-llama/Llama-3.1-8B"):
            # Our own files, which are read once.
            client.post("/tune", json={**PREDICTED, "workload": {**WORKLOAD, "model": model}})

        def refuse(*arguments: object, **more: object) -> None:
            raise AssertionError(f"touched {arguments[:1]}")

        def post(body: Any) -> Any:
            text = json.dumps(body)  # surrogates are escaped, as a caller may
            with monkeypatch.context() as patch:
                patch.setattr(Path, "open", refuse)
                patch.setattr(Path, "read_text", refuse)
                patch.setattr(Path, "read_bytes", refuse)
                patch.setattr("builtins.open", refuse)
                patch.setattr(socket.socket, "connect", refuse)
                patch.setattr(socket, "getaddrinfo", refuse)
                patch.setattr(subprocess, "Popen", refuse)
                headers = {"content-type": "application/json"}
                return client.post("/tune", content=text, headers=headers)

        yield post


def check(response: Any) -> None:
    assert response.status_code in (202, 400, 413, 422), response.text
    if response.status_code != 202:
        assert response.headers["content-type"] == "application/problem+json"
        assert len(response.text) < 2000
    assert "Traceback" not in response.text
    assert "root:" not in response.text


def hostile(count: int) -> Callable[..., Callable[..., None]]:
    limits = settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: limits(given(config=HOSTILE)(test))


@hostile(60)
def test_hostile_configurations_touch_nothing(
    guarded: Callable[[Any], Any], config: dict[str, Any]
) -> None:
    check(guarded({**PREDICTED, "workload": {**WORKLOAD, "model": config}}))


@pytest.mark.slow
@hostile(1000)
def test_a_thousand_hostile_configurations_touch_nothing(
    guarded: Callable[[Any], Any], config: dict[str, Any]
) -> None:
    check(guarded({**PREDICTED, "workload": {**WORKLOAD, "model": config}}))


@pytest.mark.parametrize("text", TEMPTING)
def test_words_that_tempt_are_only_words(guarded: Callable[[Any], Any], text: str) -> None:
    workload = {**WORKLOAD}
    for body in (
        {**PREDICTED, "workload": {**workload, "model": text}},
        {**PREDICTED, "workload": {**workload, "model_name": text}},
        {**PREDICTED, "cluster": text},
        {**PREDICTED, "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": text}},
        {**PREDICTED, "framework": text},
        {**PREDICTED, "framework": {"name": "torch", "versions": {"torch": text}}},
        {**PREDICTED, "knobs": {"sharding": [text]}},
        {**PREDICTED, "pool": text},
        {**PREDICTED, text: 1},
    ):
        response = guarded(body)
        check(response)


def test_a_question_of_many_settings_ends(guarded: Callable[[Any], Any]) -> None:
    """The largest batch and cluster that there may be, with all their divisors."""
    workload = {**WORKLOAD, "global_batch_size": 720_720, "sequence_length": 256}
    check(guarded({**PREDICTED, "workload": workload, "cluster": "65536x1024xh100-80gb"}))
    check(guarded({**PREDICTED, "workload": workload, "cluster": "8xh100-80gb"}))
