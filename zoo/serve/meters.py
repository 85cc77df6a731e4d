"""What GET /metrics tells, in Prometheus' text format."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
SPEEDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


class Meters:
    """The counts of one server; their own registry, so that two servers of one process do not meet.

    Attributes:
        requests: answers by route and status; 499 where the client had gone before its answer.
        seconds: of requests by route.
        prompt, generated: tokens read and made.
        first_token: seconds from the reading of a request to the first token of a text, be it the end itself.
        speed: tokens a second of a text after its first.
    """

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self):
        disable_created_metrics()  # a further line for each, of when it was made
        self._registry = CollectorRegistry()
        given = {"registry": self._registry, "namespace": "oneblock"}
        self.requests = Counter("requests", "Answers by route and status.", ("route", "status"), **given)
        self.seconds = Histogram("request_seconds", "Time of requests.", ("route",), buckets=SECONDS, **given)
        self.prompt = Counter("prompt_tokens", "Tokens of prompts and of embedded texts.", **given)
        self.generated = Counter("generated_tokens", "Tokens made.", **given)
        self.first_token = Histogram("first_token_seconds", "Time to the first token.", buckets=SECONDS, **given)
        self.speed = Histogram("tokens_per_second", "Tokens a second of one text.", buckets=SPEEDS, **given)

    def gauge(self, name: str, about: str, read: Callable[[], float]) -> None:
        """A number that is read when it is asked for."""
        Gauge(name, about, registry=self._registry, namespace="oneblock").set_function(read)

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)
