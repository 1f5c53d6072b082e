"""A service that really listens: streams do not come through a client in this process."""

import threading
import time
from contextlib import contextmanager
from functools import partial

import uvicorn

from api.limits import Connections, Protocol


@contextmanager
def serving(app):
    guarded = partial(Protocol, Connections(1000))
    config = uvicorn.Config(app, port=0, http=guarded, timeout_graceful_shutdown=1, log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        (socket,) = server.servers[0].sockets
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        app.state.stopping()
        server.should_exit = True
        thread.join(timeout=60)
