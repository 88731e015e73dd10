"""An ASGI application on loopback, on a port that the system picks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def on_loopback(app: Any) -> Iterator[str]:
    """Serve the application in a thread; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    begun = threading.Event()
    startup = server.startup

    async def started(*args: Any, **more: Any) -> None:
        await startup(*args, **more)
        begun.set()

    server.startup = started
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert begun.wait(30)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(30)
