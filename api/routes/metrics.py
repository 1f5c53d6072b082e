"""``GET /metrics``: for Prometheus."""

from fastapi import APIRouter, Response

from api.documented import problems, text_answer
from api.metrics import Metrics

EXAMPLE = """# HELP tuner_probes Probes in each state.
# TYPE tuner_probes gauge
tuner_probes{state="queued"} 3.0
"""


def metrics_router(metrics: Metrics) -> APIRouter:
    """The route of a process's metrics."""
    router = APIRouter(tags=["operations"])

    @router.get(
        "/metrics",
        summary="Figures of the queue and latencies of requests, for Prometheus",
        response_class=Response,
        responses={200: text_answer("text/plain", EXAMPLE, "The figures."), **problems()},
    )
    def read_metrics() -> Response:
        """In Prometheus's text format. A database that cannot be read is a figure, too."""
        body, media_type = metrics.text()
        return Response(body, media_type=media_type)

    return router
