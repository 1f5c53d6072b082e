"""``/new`` over HTTP: what becomes of a form."""

import json

from api.app import create_app
from api.pages.form import CONFIG, FRAMEWORK, GPU, GPUS_PER_NODE, MODEL, MODEL_NAME, NODES
from tests.unit.api.browsers import Browser
from tests.unit.api.studies import MEASURED, TINY, WORKLOAD, probe, question_of
from tests.unit.pages.html import read_page
from tuner.core.study import Limits
from tuner.space import enumerate_space

QUESTION = {
    MODEL: "",
    CONFIG: json.dumps(TINY),
    MODEL_NAME: "our model",
    GPU: "cpu",
    NODES: "1",
    GPUS_PER_NODE: "2",
    "workload.sequence_length": "32",
    "workload.global_batch_size": "16",
    FRAMEWORK: "accelerate",
    "fidelity": "measured",
    "budget.max_probes": "4",
}


def _ask(store, number=0, model="m"):
    workload = {**WORKLOAD, "model_name": model, "global_batch_size": 16 + 2 * number}
    return store.ask(question_of({**MEASURED, "workload": workload}), Limits())


def _page(browser, path):
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    return read_page(answer.text)


def test_the_form_begins_empty(browser):
    page = _page(browser, "/new")
    assert page.by_id("f-workload-model")["value"] == ""
    assert page.by_id("f-cluster-gpus-per-node")["value"] == "8"
    offers = page.by_id("f-workload-model-offers").find("option")
    assert "llama-3.1-8b" in [one["value"] for one in offers]
    assert not page.find(id="errors")
    assert page.by_id("question")["method"] == "post"


def test_a_form_starts_a_study(browser, store):
    answer = browser.submit("/new", QUESTION, page="/new")
    assert answer.status_code == 303, answer.text
    (study,) = store.studies(2)
    assert answer.headers["location"] == f"/studies/{study.id}"
    assert study.model_name == "our model"
    assert store.study(study.id).question.as_dict() == (
        question_of({**MEASURED, "workload": {**WORKLOAD, "model_name": "our model"}}).as_dict()
    )
    assert store.study(study.id).limits.max_probes == 4


def test_errors_stand_beside_their_fields(browser, store):
    wrong = {
        **QUESTION,
        "workload.sequence_length": "<b>long</b>",
        CONFIG: '{"model_type": "llama", "hidden_size": "</textarea><script>"}',
        "headroom": "2",
        "knobs.tp_size": "1, x",
        "knobs.sharding": ["ddp", "zero9"],
    }
    answer = browser.submit("/new", wrong, page="/new")
    assert answer.status_code == 422
    page = read_page(answer.text)
    assert len(store.studies(5)) == 0
    links = [a["href"].removeprefix("#") for a in page.by_id("errors").find("a")]
    assert links == [
        "f-config",
        "f-workload-sequence-length",
        "f-knobs-sharding",
        "f-knobs-tp-size",
        "f-headroom",
    ]
    for link in links:
        field = page.by_id(link)
        assert field["aria-invalid"] == "true"
        assert f"{link}-error" in field["aria-describedby"].split()
        assert page.by_id(f"{link}-error").text.strip().startswith("Error: ")
    assert page.by_id("f-workload-sequence-length")["value"] == "<b>long</b>"
    assert page.by_id("f-config").text == wrong[CONFIG]
    assert page.by_id("f-workload-model-name")["value"] == "our model"
    ticked = [
        one["value"] for one in page.find("input", type="checkbox") if "checked" in one.attributes
    ]
    assert ticked == ["ddp"]
    assert all("open" in one.attributes for one in page.find("details"))


def test_too_many_open_studies_are_told_and_the_form_is_kept(store, settings):
    _ask(store, 3)
    app = create_app(store, settings.model_copy(update={"max_open_studies": 1}))
    browser = Browser(app, address="127.0.0.1")
    answer = browser.submit("/new", QUESTION, page="/new")
    assert answer.status_code == 429
    assert answer.headers["retry-after"]
    page = read_page(answer.text)
    assert "1 studies are open" in page.by_id("errors").text
    assert page.by_id("f-workload-sequence-length")["value"] == "32"


def test_a_form_can_be_filled_in_like_a_study(browser, store):
    study = _ask(store, model="our model")
    page = _page(browser, f"/new?like={study.id}")
    assert json.loads(page.by_id("f-config").text)["hidden_size"] == TINY["hidden_size"]
    assert page.by_id("f-workload-global-batch-size")["value"] == "16"
    assert page.by_id("f-cluster-gpu")["value"] == "cpu"


def test_how_much_there_is_to_try_is_said_before_it_is_asked(browser, store):
    def size(**more):
        answer = browser.submit("/new", {**QUESTION, "check": "true", **more}, page="/new")
        assert answer.status_code == (422 if more else 200)
        page = read_page(answer.text)
        assert page.by_id("f-workload-sequence-length")["value"] == "32"
        return page.by_id("size").text

    said = size()
    legal = len(enumerate_space(question_of(MEASURED)).legal)
    for words in ("2 CPU ranks", "512 tokens", f"{legal} legal", "up to 4 probes", "not known"):
        assert words in said, (words, said)
    assert size(headroom="2") == ""
    assert store.studies() == [], "nothing was asked"
    probe(store, _ask(store).id)
    assert "each here)" in size()


def test_a_study_that_is_not_there_is_said_in_words(browser):
    for path in ("/studies/st-nope", "/studies/st-ffffffffffff", "/new?like=st-ffffffffffff"):
        answer = browser.get(path)
        assert answer.status_code == 404
        page = read_page(answer.text)
        assert page.one("h1").text.startswith("There is no study st-")
        assert page.one("form", role="search")["action"] == "/"
