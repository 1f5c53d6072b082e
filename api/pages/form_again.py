"""A study's question and terms as they would be typed, to be asked again with changes."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from api.pages.form import initial_texts, texts_of
from api.pages.form_fields import (
    CLUSTER,
    CONFIG,
    CPU,
    FRAMEWORK,
    GPU,
    GPUS_PER_NODE,
    MODEL,
    MODEL_NAME,
    NODES,
    Kind,
    specs,
)
from api.pages.paths import NEW, local_path
from api.sessions import MOST_FIELDS
from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.cluster import Cluster, Device, parse_cluster
from tuner.request import MOST_PROBES
from tuner.study import HEADROOM, Question, Study, Terms


def path_with(form: bytes) -> str:
    """The form's address, with what was typed into it; without, where that would be too long.

    Args:
        form: the body that the browser sent, which may be anybody's.
    """
    text = form.decode("utf-8", "replace") if form.count(b"&") < MOST_FIELDS else ""
    typed, initial = texts_of(parse_qsl(text, keep_blank_values=True)), initial_texts()
    # What was emptied must not come back as an empty form holds it.
    texts = {name: given for name, given in typed.items() if any(given) or name in initial}
    path = f"{NEW}?{urlencode(texts, doseq=True)}" if texts else NEW
    return path if local_path(path) == path else NEW


def texts_of_study(study: Study) -> dict[str, list[str]]:
    """The form as it would ask a study's question again, on its terms."""
    texts = {**_texts_of_question(study.question), **_texts_of_terms(study.terms)}
    return {name: value if isinstance(value, list) else [value] for name, value in texts.items()}


def _texts_of_question(question: Question) -> dict[str, Any]:
    workload = question.workload
    texts: dict[str, Any] = {
        "workload.sequence_length": str(workload.sequence_length),
        "workload.global_batch_size": str(workload.global_batch_size),
        "workload.optimizer": str(workload.optimizer),
        "workload.precision": str(workload.precision),
        "workload.reduce_dtype": str(workload.reduce_dtype),
        FRAMEWORK: str(question.framework.name),
    }
    texts |= {f"knobs.{name}": _knob_texts(name, v) for name, v in question.knobs.items()}
    return {**texts, **_texts_of_model(question), **_texts_of_cluster(question)}


def _texts_of_model(question: Question) -> dict[str, str]:
    model = question.workload.model
    if models.find(model.name) and models.read(model.name).as_config() == model.as_config():
        return {MODEL: model.name}
    return {CONFIG: json.dumps(model.as_config(), indent=2), MODEL_NAME: model.name}


def _texts_of_cluster(question: Question) -> dict[str, str]:
    cluster = question.cluster
    if not _is_spelled(cluster):
        return {CLUSTER: json.dumps(cluster.as_dict(), indent=2)}
    kind = CPU if cluster.gpu.device is Device.CPU else cluster.gpu.name
    return {GPU: kind, NODES: str(cluster.nodes), GPUS_PER_NODE: str(cluster.gpus_per_node)}


def _is_spelled(cluster: Cluster) -> bool:
    """Whether its short spelling says all of it; CPU ranks are of whichever worker takes them."""
    if cluster.gpu.device is Device.CPU:
        return True
    known = cluster.gpu.name in gpu_kinds()
    return known and parse_cluster(cluster.name, allow_files=False) == cluster


def _knob_texts(name: str, values: Sequence[Any]) -> list[str] | str:
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    return ", ".join(texts) if specs()[f"knobs.{name}"].kind is Kind.WHOLES else texts


def _texts_of_terms(terms: Terms) -> dict[str, str]:
    texts = {
        "fidelity": str(terms.fidelity),
        "tolerance": f"{terms.tolerance:g}",
        "pool": terms.pool,
    }
    if terms.max_probes != MOST_PROBES[terms.fidelity]:  # a default has further ones with it
        texts["budget.max_probes"] = str(terms.max_probes)
    for name, seconds in (("budget.wall_s", terms.wall_s), ("budget.gpu_s", terms.device_s)):
        if seconds is not None:
            texts[name] = f"{seconds:g}s"
    if terms.memory_limit_bytes is not None:
        texts["memory_limit_gib"] = f"{terms.memory_limit_bytes / 2**30:.10g}"
    elif terms.headroom != HEADROOM:
        texts["headroom"] = f"{terms.headroom:g}"
    return texts
