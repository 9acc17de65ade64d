"""What Prometheus scrapes; names follow vLLM's, with `volta_` for its `vllm:`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from volta_runtime.engine import Engine

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PER_TOKEN_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)
_REQUEST_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The server's own registry, so that several apps can live in one process."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "volta_request",
            "Requests by how they ended: stop, length, cancelled, error, or refused.",
            ["outcome"],
            registry=self.registry,
        )
        self.prompt_tokens = Counter(
            "volta_prompt_tokens", "Prompt tokens of accepted requests.", registry=self.registry
        )
        self.generation_tokens = Counter(
            "volta_generation_tokens", "Tokens generated.", registry=self.registry
        )
        self.time_to_first_token = self._histogram(
            "volta_time_to_first_token_seconds",
            "From a request's arrival to its first token, queueing included.",
            _FIRST_TOKEN_S,
        )
        self.time_per_token = self._histogram(
            "volta_inter_token_latency_seconds",
            "Between one token of a request and the next.",
            _PER_TOKEN_S,
        )
        self.request_latency = self._histogram(
            "volta_e2e_request_latency_seconds",
            "From a request's arrival to its last token.",
            _REQUEST_S,
        )
        self._gauge("volta_num_requests_running", "Requests that hold a slot.").set_function(
            lambda: engine.running
        )
        self._gauge("volta_num_requests_waiting", "Requests in the queue.").set_function(
            lambda: engine.waiting
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)
