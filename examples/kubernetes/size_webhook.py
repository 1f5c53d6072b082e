"""Sizes a Kubeflow TrainJob before it is admitted: a mutating webhook that asks POST /size.

    TUNER_URL=http://tuner:8765 python size_webhook.py --certificate tls.crt --key tls.key

A TrainJob that wants it has the annotation `tuner/size`, the body of POST /size as JSON: the
model, its sequences and batch, the cluster that there is, and a goal. The webhook puts the fewest
GPUs into spec.trainer.numNodes and resourcesPerNode, so that quotas and schedulers see what is
needed, and the figures into the annotation `tuner/sized`. A job without the annotation, or whose
question has no answer, is admitted as it is; the latter with a warning.
"""

import argparse
import base64
import json
import os
import ssl
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ASKED, SIZED = "tuner/size", "tuner/sized"
GPU = os.environ.get("TUNER_GPU_RESOURCE", "nvidia.com/gpu")
# Kubernetes waits 30 seconds at most; the webhook's timeoutSeconds should be more than this.
TIMEOUT_S = float(os.environ.get("TUNER_TIMEOUT_S", "20"))
MOST_BYTES = 8 * 2**20  # of a review: Kubernetes keeps objects of 1.5 MiB


def size(question: dict[str, Any]) -> dict[str, Any]:
    """The best cluster's row for a question; ValueError says why there is none."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("TUNER_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    url = os.environ["TUNER_URL"].rstrip("/") + "/size"
    request = urllib.request.Request(url, json.dumps(question).encode(), headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            row = json.load(response)["rows"][0]
    except urllib.error.HTTPError as error:
        detail = json.load(error).get("detail", error.reason)
        raise ValueError(f"the question is refused: {detail}") from error
    except OSError as error:
        raise ValueError(f"tuner cannot be reached: {error}") from error
    wanted = "reaching" if "tokens_per_s" in question or "within_s" in question else "fewest"
    if row[wanted] is None:
        raise ValueError(row["why"] or "nothing fits")
    return row[wanted]


def patch_of(job: dict[str, Any], sized: dict[str, Any]) -> list[dict[str, Any]]:
    """The changes of a TrainJob, as RFC 6902 has them."""
    trainer = dict(job["spec"].get("trainer") or {})
    resources = dict(trainer.get("resourcesPerNode") or {})
    for part in ("requests", "limits"):
        resources[part] = {**(resources.get(part) or {}), GPU: str(sized["gpus_per_node"])}
    trainer |= {"numNodes": sized["nodes"], "resourcesPerNode": resources}
    figures = {
        "gpus": sized["gpus"],
        "settings": sized["settings"],
        "tokens_per_s": sized["tokens_per_s"],
        "provenance": sized["provenance"],
    }
    notes = {**job["metadata"]["annotations"], SIZED: json.dumps(figures)}
    return [
        {"op": "add", "path": "/spec/trainer", "value": trainer},
        {"op": "add", "path": "/metadata/annotations", "value": notes},
    ]


def review(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to an AdmissionReview: the job is admitted, sized where that can be done."""
    request = asked["request"]
    answer: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    job = request["object"]
    question = (job["metadata"].get("annotations") or {}).get(ASKED)
    if question is not None:
        try:
            patch = patch_of(job, size(json.loads(question)))
            answer |= {"patchType": "JSONPatch"}
            answer |= {"patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        except (ValueError, KeyError, TypeError) as error:
            answer["warnings"] = [f"not sized: {error}"[:250]]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}


class Webhook(BaseHTTPRequestHandler):
    """Answers one review at a time in each connection."""

    timeout = TIMEOUT_S  # of a caller that says nothing, whose connection would stay open

    def do_POST(self) -> None:
        size_bytes = int(self.headers["Content-Length"])
        if not 0 <= size_bytes <= MOST_BYTES:
            self.send_error(413)
            return
        body = self.rfile.read(size_bytes)
        text = json.dumps(review(json.loads(body))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=8443)
    options.add_argument("--certificate")
    options.add_argument("--key")
    given = options.parse_args()
    server = ThreadingHTTPServer(("", given.port), Webhook)
    if given.certificate:  # the API server speaks to webhooks over TLS alone
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(given.certificate, given.key)
        # A caller that says nothing holds its own thread only.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    print(f"listening on {server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
