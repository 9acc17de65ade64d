"""What is decided before a request's body is parsed: its key and its size."""

import hmac

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from volta_runtime.server.errors import error_response

# A prompt of a million tokens is some 4 MiB of text; JSON may double it.
MAX_BODY_BYTES = 8 * 2**20


def install_middleware(app: FastAPI, api_key: str | None) -> None:
    """Guard the app; the key, if any, is asked for everything under /v1/."""
    app.add_middleware(BodyLimit)
    if api_key is not None:
        app.add_middleware(ApiKey, key=api_key)


class ApiKey:
    """401 for requests to the API without `Authorization: Bearer <key>`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            sent = Headers(scope=scope).get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(sent, self._expected):
                response = error_response(
                    401,
                    "missing or wrong API key; send `Authorization: Bearer <key>`",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """413 for bodies beyond MAX_BODY_BYTES, announced or sent; no more than that is ever held."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages: list[Message] = []
        size = 0
        announced = Headers(scope=scope).get("content-length", "0")
        too_large = announced.isdigit() and int(announced) > MAX_BODY_BYTES
        while not too_large:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            too_large = size > MAX_BODY_BYTES
            if not message.get("more_body", False):
                break
        if too_large:
            response = error_response(
                413,
                f"the body is larger than {MAX_BODY_BYTES} bytes, this server's limit",
                code="body_too_large",
                headers={"Connection": "close"},
            )
            await response(scope, receive, send)
            return
        messages.reverse()

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)
