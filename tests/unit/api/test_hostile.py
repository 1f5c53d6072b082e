"""Configurations of models that somebody made up to do harm: they are data, and nothing else."""

import json
import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tests.profiles import examples
from tests.unit.api.studies import PREDICTED, TINY, WORKLOAD
from tuner.model.fields import ARCHITECTURES
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
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    with open_store(f"sqlite:///{folder}/studies.db") as store:
        yield create_app(store, Settings(_env_file=None, max_open_studies=10**6))


TOUCHES = ("open", "os.", "socket.", "subprocess.", "shutil.", "glob.", "pathlib.", "ctypes.dlopen")
"""Beginnings of the names of what this Python tells its hooks of files, sockets and processes."""


class Watch:
    """What is touched while it is on, by the thread of a request or any other that it starts.

    A hook stays for as long as the process lives, so there is one, which mostly does nothing. The
    database's own files are left out: SQLite opens them below Python.
    """

    def __init__(self):
        self.is_on = False
        self.touched = []
        self._stat = os.stat

    def hook(self, name, arguments):
        if self.is_on and name.startswith(TOUCHES):
            self.touched.append(f"{name} {arguments[:1]}")

    def stat(self, path, *arguments, **more):
        """In the place of ``os.stat``, of which no hook is told: so is ``Path.exists``."""
        if self.is_on and not str(path).startswith(self.allowed):
            self.touched.append(f"stat {path}")
        return self._stat(path, *arguments, **more)

    allowed = "\0"
    """Beginning of what may be looked at: the database's, which is looked for by its path."""


@pytest.fixture(scope="session")
def watch():
    found = Watch()
    sys.addaudithook(found.hook)
    return found


@pytest.fixture
def guarded(app, watch, monkeypatch):
    """Posts a body while nothing may be opened, looked at, started or called."""
    url = app.state.context.store.transactions.engine.url
    watch.allowed = str(url.database)
    monkeypatch.setattr(os, "stat", watch.stat)
    monkeypatch.setattr(os, "lstat", watch.stat)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        for model in (TINY, "llama-3.1-8b", "meta-llama/Llama-3.1-8B", "no/such-model"):
            # Our own files, which are read once.
            client.post("/tune", json={**PREDICTED, "workload": {**WORKLOAD, "model": model}})

        def post(body):
            text = json.dumps(body)  # surrogates are escaped, as a caller may
            headers = {"content-type": "application/json"}
            watch.touched.clear()
            watch.is_on = True
            try:
                answer = client.post("/tune", content=text, headers=headers)
            finally:
                watch.is_on = False
            assert not watch.touched, f"touched {watch.touched}"
            return answer

        yield post


def check(response):
    assert response.status_code in (202, 400, 409, 413, 422), response.text
    if response.status_code != 202:
        assert response.headers["content-type"] == "application/problem+json"
        assert len(response.text) < 2000
    assert "Traceback" not in response.text
    assert "root:" not in response.text


def hostile(count):
    limits = settings(max_examples=examples(count), suppress_health_check=list(HealthCheck))
    return lambda test: limits(given(config=HOSTILE)(test))


@hostile(25)
def test_hostile_configurations_touch_nothing(guarded, config):
    """Many times as many in ``make test-long``."""
    check(guarded({**PREDICTED, "workload": {**WORKLOAD, "model": config}}))


def test_words_that_tempt_are_only_words(guarded):
    for text in TEMPTING:
        for body in (
            {**PREDICTED, "workload": {**WORKLOAD, "model": text}},
            {**PREDICTED, "cluster": text},
            {**PREDICTED, "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": text}},
            {**PREDICTED, "framework": {"name": "torch", "versions": {"torch": text}}},
            {**PREDICTED, text: 1},
        ):
            check(guarded(body))


def test_a_question_of_many_settings_ends(guarded):
    """The largest batch and cluster that there may be, with all their divisors."""
    workload = {**WORKLOAD, "global_batch_size": 720_720, "sequence_length": 256}
    check(guarded({**PREDICTED, "workload": workload, "cluster": "65536x1024xh100-80gb"}))
    check(guarded({**PREDICTED, "workload": workload, "cluster": "9009x80xh100-80gb"}))
    asked = {**PREDICTED, "workload": workload, "cluster": "8xh100-80gb"}
    refused = guarded(asked)
    check(refused)
    body = refused.json()
    assert (refused.status_code, body["field"]) == (422, "knobs")
    assert "must leave at most 2500 legal settings, and leaves more" in body["allowed"]
    proposed = json.loads(body["allowed"].partition("such as ")[2])
    assert guarded({**asked, "knobs": proposed}).status_code == 202
