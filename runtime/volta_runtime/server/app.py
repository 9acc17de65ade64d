"""The routes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from volta_runtime.engine import Engine, Output
from volta_runtime.errors import VoltaError
from volta_runtime.server.errors import error_response, from_volta_error, install_handlers
from volta_runtime.server.generate import Service
from volta_runtime.server.middleware import install_middleware
from volta_runtime.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from volta_runtime.server.responses import Answer, ChatAnswer, CompletionAnswer, event

T = TypeVar("T")

_CLIENT_CLOSED = 499  # nginx's status; nobody receives it, but logs show it


def create_app(engine: Engine, names: tuple[str, ...], api_key: str | None = None) -> FastAPI:
    """The ASGI application; `names` are the model names that requests may use, the first ours."""
    app = FastAPI(title="volta-serve", docs_url=None, redoc_url=None)
    service = Service(engine, names)
    install_handlers(app, service.metrics.requests)
    install_middleware(app, api_key)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The served names."""
        return {"object": "list", "data": [_model(name, engine.max_len) for name in names]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One served name."""
        service.check_name(name)
        return _model(name, engine.max_len)

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest, raw: Request) -> Response:
        """Continue a text."""
        return await _answer(service, request, CompletionAnswer, raw)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: ChatRequest, raw: Request) -> Response:
        """Answer a conversation."""
        return await _answer(service, request, ChatAnswer, raw)

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        """200 while requests are being served."""
        if engine.alive:
            return JSONResponse({"status": "ok"})
        return error_response(503, f"the engine has stopped: {engine.failure}", code="engine_dead")

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return PlainTextResponse(
            generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST
        )

    return app


def _model(name: str, max_len: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "owned_by": "volta", "max_model_len": max_len}


async def _answer(
    service: Service, request: GenerationRequest, kind: type[Answer], raw: Request
) -> Response:
    job = await service.prepare(request)
    answer = kind(request.model or service.names[0], len(job.prompt))
    outputs = service.generate(request, job)
    if not request.stream:
        text, last = await _while_connected(raw, _collect(outputs))
        return JSONResponse(answer.full(text, last))
    # The first output is awaited here, so that a refusal is a status and not a broken stream.
    first = await _while_connected(raw, anext(outputs))
    return StreamingResponse(
        _events(answer, request.include_usage, first, outputs),
        headers={"Cache-Control": "no-cache"},
        media_type="text/event-stream",
    )


async def _collect(outputs: AsyncGenerator[Output, None]) -> tuple[str, Output]:
    """The whole text, and the last output with its counts and reason."""
    parts = []
    async with aclosing(outputs):
        async for output in outputs:
            parts.append(output.text)
    return "".join(parts), output


async def _events(
    answer: Answer, include_usage: bool, first: Output, outputs: AsyncGenerator[Output, None]
) -> AsyncIterator[str]:
    """A stream's events; an error after its start is an event too, as there is no status left."""
    try:
        async with aclosing(outputs):
            for chunk in answer.opening():
                yield event(chunk)
            output = first
            if output.text or output.last:
                yield event(answer.delta(output))
            async for output in outputs:
                if output.text or output.last:
                    yield event(answer.delta(output))
        if include_usage:
            yield event(answer.usage(output))
    except VoltaError as error:
        yield event(bytes(from_volta_error(error).body).decode())
    yield event("[DONE]")


async def _while_connected(raw: Request, work: Awaitable[T]) -> T:
    """The work's result, unless the client goes away first: then the work is cancelled."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(raw.receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(_CLIENT_CLOSED, "the client closed the connection")
        return await task
    finally:
        gone.cancel()
        task.cancel()
