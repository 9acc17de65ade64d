"""Every refusal and failure as OpenAI's error body: {"error": {message, type, param, code}}."""

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import Counter
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from volta_runtime.errors import EngineDeadError, QueueFullError, RequestError, VoltaError
from volta_runtime.server.compat import HARMLESS, shown
from volta_runtime.server.protocol import NESTED, ChatRequest, CompletionRequest

log = logging.getLogger(__name__)

_RETRY_AFTER_S = "5"

_BODIES: Mapping[str, type[BaseModel]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
}


def error_body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """A response with OpenAI's error object; its type follows from the status."""
    kind = {401: "authentication_error", 503: "service_unavailable"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    return JSONResponse(error_body(message, kind, param, code), status, headers)


def install_handlers(app: FastAPI, requests: Counter) -> None:
    """Let the app answer every exception in this form; requests refused as sent are counted."""

    def refused(message: str) -> None:
        requests.labels("refused").inc()
        log.info("refused: %s", message)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        message, param, code = describe(_BODIES[request.url.path], error.errors()[0])
        refused(message)
        return error_response(400, message, param=param, code=code)

    @app.exception_handler(VoltaError)
    async def _volta(_: Request, error: VoltaError) -> JSONResponse:
        if isinstance(error, RequestError):
            refused(str(error))
        return from_volta_error(error)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return error_response(error.status_code, message, headers=error.headers)

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> JSONResponse:
        return error_response(500, f"internal error: {type(error).__name__}; see the server's log")


def from_volta_error(error: VoltaError) -> JSONResponse:
    """The response for an error of the engine or of the request's meaning."""
    message = str(error)
    match error:
        case RequestError():
            status = 404 if error.code == "model_not_found" else 400
            return error_response(status, message, param=error.param, code=error.code)
        case QueueFullError():
            return error_response(
                503, message, code="queue_full", headers={"Retry-After": _RETRY_AFTER_S}
            )
        case EngineDeadError():
            return error_response(503, message, code="engine_dead")
    return error_response(500, message)


def describe(body: type[BaseModel], error: Mapping[str, Any]) -> tuple[str, str | None, str | None]:
    """Message, field and code for the first of pydantic's errors on a request body."""
    kind, where, value = error["type"], list(error["loc"][1:]), error["input"]
    if kind == "json_invalid":
        return f"the body is not valid JSON: {error['ctx']['error']}", None, "invalid_json"
    if kind == "broken_unicode":
        return error["msg"], None, kind
    if kind == "unsupported_value":
        _, path, _ = _locate(body, where)
        field = error["ctx"]["field"]
        path = f"{path}.{field}" if path else field
        return f"{path}: {error['msg']}", path, kind
    if not where:
        return (
            "the body must be a JSON object, sent with Content-Type: application/json",
            None,
            "invalid_body",
        )
    owner, path, expected = _locate(body, where)
    if kind == "extra_forbidden":
        known = [*owner.model_fields, *(HARMLESS if owner is body else ())]
        close = get_close_matches(str(where[-1]), known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        path = f"{path}.{where[-1]}" if path else str(where[-1])
        return f"{path}: unknown field{hint}", path, "unknown_field"
    if kind == "missing":
        return f"{path}: missing; expected {expected}", path, "missing_field"
    return f"{path}: expected {expected}, got {shown(value)}", path, "invalid_value"


def _locate(body: type[BaseModel], where: list[Any]) -> tuple[type[BaseModel], str, str | None]:
    """The innermost model and field that an error's location reaches, and what the field expects.

    pydantic goes on into the branches of unions and the items of plain lists; those say less than
    the field's own description, so the walk ends there.
    """
    owner, path, expected = body, "", None
    for step in where:
        if isinstance(step, int):
            path += f"[{step}]"
            continue
        field = owner.model_fields.get(step)
        if field is None:
            break
        path = f"{path}.{step}" if path else step
        expected = field.description
        if step not in NESTED:
            break
        owner = NESTED[step]
    return owner, path, expected
