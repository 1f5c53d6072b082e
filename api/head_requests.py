"""HEAD wherever there is GET: the same status and headers, without the body."""

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Heads:
    """ASGI middleware next to the routes: they see a GET, and what they send is cut off.

    Middlewares around it, logs and metrics among them, see the HEAD that it is.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        with anyio.CancelScope() as body:

            async def head(message: Message) -> None:
                if message["type"] != "http.response.start":
                    return
                scope["method"] = "HEAD"  # the server asks it whether a body is to come
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                if not any(name == b"content-length" for name, _ in message["headers"]):
                    body.cancel()  # a stream, which would go on and on

            scope["method"] = "GET"
            try:
                await self._app(scope, receive, head)
            finally:
                scope["method"] = "HEAD"
