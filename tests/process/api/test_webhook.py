"""``examples/kubernetes/size_webhook.py``: a service sizes a TrainJob before it is admitted."""

import base64
import json
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.process.api.live import serving
from tests.unit.api.studies import WORKLOAD

EXAMPLES = Path(__file__).parents[3] / "examples" / "kubernetes"
QUESTION = {"workload": {**WORKLOAD, "global_batch_size": 64}, "cluster": "2x2xa100-80gb"}
TRAINER = {"image": "mine", "resourcesPerNode": {"limits": {"cpu": "4"}}}


@contextmanager
def webhook(url, *options):
    """The webhook as a process; gives its address."""
    argv = [sys.executable, str(EXAMPLES / "size_webhook.py"), "--port", "0", *options]
    environment = {"TUNER_URL": url, "TUNER_TIMEOUT_S": "60"}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = process.stdout.readline().split()[-1]
            yield f"{'https' if options else 'http'}://127.0.0.1:{port}"
        finally:
            process.kill()


def reviewed(address, annotations, verify=True):
    """The webhook's response to a TrainJob with these annotations."""
    job = {"metadata": {"name": "train", "annotations": annotations}, "spec": {"trainer": TRAINER}}
    review = {"request": {"uid": "u-1", "operation": "CREATE", "object": job}}
    found = httpx.post(address, json=review, timeout=60, verify=verify).json()
    assert (found["kind"], found["response"]["uid"]) == ("AdmissionReview", "u-1")
    assert found["response"]["allowed"]
    return found["response"]


def patched(response):
    """What the patch puts, by path."""
    return {one["path"]: one["value"] for one in json.loads(base64.b64decode(response["patch"]))}


def test_a_job_is_sized_or_admitted_as_it_is(app):
    with serving(app) as url, webhook(url) as address:
        values = patched(reviewed(address, {"tuner/size": json.dumps(QUESTION), "mine": "kept"}))
        trainer = values["/spec/trainer"]
        assert (trainer["numNodes"], trainer["image"]) == (1, "mine")
        assert trainer["resourcesPerNode"] == {
            "requests": {"nvidia.com/gpu": "1"},
            "limits": {"cpu": "4", "nvidia.com/gpu": "1"},
        }
        notes = values["/metadata/annotations"]
        assert (notes["mine"], json.loads(notes["tuner/sized"])["provenance"]) == (
            "kept",
            "predicted",
        )
        work = {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 64}
        large = {**QUESTION, "workload": work, "knobs": {"tp_size": [1]}}
        fast = httpx.post(f"{url}/size", json=large, timeout=60).json()["rows"][0]["whole"]
        goal = {**large, "tokens_per_s": fast["tokens_per_s"]["value"]}
        trainer = patched(reviewed(address, {"tuner/size": json.dumps(goal)}))["/spec/trainer"]
        assert (trainer["numNodes"], trainer["resourcesPerNode"]["requests"]) == (
            2,
            {"nvidia.com/gpu": "2"},
        )
        for question, words in (
            ("no JSON", "not sized"),
            (json.dumps({**QUESTION, "cluster": "8xnothing"}), "the question is refused: cluster"),
            (json.dumps({**QUESTION, "memory_limit_gib": 0.1}), "nothing is sure to fit"),
        ):
            response = reviewed(address, {"tuner/size": question})
            assert "patch" not in response
            assert words in response["warnings"][0]
        assert set(reviewed(address, None)) == {"uid", "allowed"}


def test_without_the_service_jobs_are_admitted():
    with webhook("http://127.0.0.1:9") as address:
        response = reviewed(address, {"tuner/size": json.dumps(QUESTION)})
        assert "tuner cannot be reached" in response["warnings"][0]


def certified(folder):
    """A certificate of this address and its key, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "webhook")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1)
    ).add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
    certificate, private = folder / "tls.crt", folder / "tls.key"
    pem = serialization.Encoding.PEM
    certificate.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem))
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    return str(certificate), str(private)


def test_a_caller_that_says_nothing_keeps_no_other_waiting(tmp_path):
    certificate, key = certified(tmp_path)
    options = ["--certificate", certificate, "--key", key]
    with webhook("http://127.0.0.1:9", *options) as address:
        where = ("127.0.0.1", int(address.rpartition(":")[2]))
        with socket.create_connection(where):
            trusted = ssl.create_default_context(cafile=certificate)
            assert set(reviewed(address, None, trusted)) == {"uid", "allowed"}


def test_the_manifest_lets_jobs_pass_where_the_webhook_does_not_answer():
    issuer, certificate, configured, service, deployment = yaml.safe_load_all(
        (EXAMPLES / "size_webhook.yaml").read_text()
    )
    assert certificate["spec"]["issuerRef"]["name"] == issuer["metadata"]["name"]
    trusted = configured["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert trusted == f"default/{certificate['metadata']['name']}"
    assert certificate["spec"]["dnsNames"] == [f"{service['metadata']['name']}.default.svc"]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert {"secretName": certificate["spec"]["secretName"]} in [v.get("secret") for v in volumes]
    (hook,) = configured["webhooks"]
    assert (hook["failurePolicy"], hook["sideEffects"]) == ("Ignore", "None")
    assert hook["clientConfig"]["service"]["name"] == service["metadata"]["name"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == service["spec"]["selector"]
    port = deployment["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]
    assert port == hook["clientConfig"]["service"]["port"] == 8443
