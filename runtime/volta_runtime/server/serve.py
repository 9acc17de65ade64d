"""Running the server: load, listen, tell systemd, and leave cleanly on SIGTERM."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn

from volta_runtime import env, ops
from volta_runtime.checkpoint import open_checkpoint
from volta_runtime.engine import Engine, EngineConfig, Tokenizer
from volta_runtime.errors import EngineDeadError, ModelError, VoltaError
from volta_runtime.models import load_model
from volta_runtime.server.app import create_app
from volta_runtime.server.listen import bind_error

log = logging.getLogger(__name__)

# Streams may finish for this long after SIGTERM; then they get an error event.
_GRACE_S = 3
_CLOSE_S = 2

# A CPU reads a prompt as fast in pieces of 64 as in larger ones; a GPU needs large ones.
_PROMPT_TOKENS_PER_STEP = {"cpu": 64, "cuda": 2048}


@dataclass(frozen=True)
class ServeConfig:
    """What `volta-serve serve` was asked for."""

    model: Path
    names: tuple[str, ...]
    host: str
    port: int
    device: str
    max_model_len: int | None
    max_num_seqs: int
    seed: int | None
    api_key: str | None


def serve(config: ServeConfig, sock: socket.socket) -> None:
    """Serve on a bound socket until SIGTERM or SIGINT.

    Raises VoltaError when it cannot start, and EngineDeadError after the engine has failed: by
    then the running requests have been told so.
    """
    checkpoint = open_checkpoint(config.model)
    tokenizer = Tokenizer(config.model)
    device = _device(config.device)
    log.info("loading %s on %s (kernels: %s)", config.model, device, ops.kernels_info())
    model = load_model(checkpoint, device, config.max_model_len)
    engine = Engine(
        model,
        tokenizer,
        EngineConfig(
            max_num_seqs=config.max_num_seqs,
            prompt_tokens_per_step=_PROMPT_TOKENS_PER_STEP[device.type],
            seed=config.seed,
        ),
    )
    app = create_app(engine, config.names, config.api_key)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",  # our own lines say what uvicorn's would
            access_log=False,
            server_header=False,
            lifespan="off",  # the app has no startup of its own
            timeout_graceful_shutdown=_GRACE_S + _CLOSE_S,
        ),
        engine,
        config,
    )
    try:
        asyncio.run(server.serve([sock]))
    finally:
        engine.stop()
    if engine.failure is not None:
        raise EngineDeadError(f"the engine has failed: {engine.failure}")
    log.info("stopped")


def _device(name: str) -> torch.device:
    """The device to run on; "auto" means CUDA where torch sees a GPU."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ModelError(
            f"--device cuda: torch {torch.__version__} sees no usable GPU; run volta-doctor check"
        )
    device = torch.device("cuda" if available and name != "cpu" else "cpu")
    if device.type == "cuda" and not ops.kernels_info()["cuda"]:
        raise VoltaError(
            "torch sees a GPU, but the compiled kernels were built without CUDA; build them with "
            "CUDA or pass --device cpu"
        )
    return device


class _Server(uvicorn.Server):
    """uvicorn that tells systemd of readiness, and returns on SIGTERM or a failure of the engine.

    A server without its engine would only hold the port: whatever supervises the process is to
    start a new one.
    """

    def __init__(self, config: uvicorn.Config, engine: Engine, asked: ServeConfig) -> None:
        super().__init__(config)
        self._engine = engine
        self._asked = asked
        self._watchdog_s = env.watchdog_s()
        self._next_beat = 0.0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave, loop)
        yield

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        log.info("stopping: running requests have %d s to finish", _GRACE_S)
        self.should_exit = True
        loop.call_later(_GRACE_S, self._engine.abort)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None, "we bind before uvicorn starts"
        try:
            await super().startup(sockets)
        except OSError as error:  # another process listened there while the model was read
            raise bind_error(self._asked.host, self._asked.port, error) from None
        port = sockets[0].getsockname()[1]
        log.info("serving %s at http://%s:%d", ", ".join(self._asked.names), self._asked.host, port)
        notify("READY=1")

    async def on_tick(self, counter: int) -> bool:
        self._beat()
        return await super().on_tick(counter) or self._engine.failure is not None

    def _beat(self) -> None:
        """Tell systemd's watchdog that we live; an engine that hangs in a step does not."""
        now = time.monotonic()
        if self._watchdog_s is None or now < self._next_beat:
            return
        if self._engine.step_s < self._watchdog_s / 2:
            notify("WATCHDOG=1")
            self._next_beat = now + self._watchdog_s / 4


def notify(state: str) -> None:
    """Tell systemd, if it asked to be told (sd_notify(3))."""
    address = env.notify_socket()
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.connect(address.replace("@", "\0", 1) if address[0] == "@" else address)
            sock.sendall(state.encode())
