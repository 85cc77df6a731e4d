"""The service on a socket: uvicorn, its bounds on connections, and an orderly end."""

import asyncio
import contextlib
import errno
import socket

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from zoo.errors import InputError
from zoo.serve.app import Service

# Seconds for a request's head, and between two requests of one connection.
HEAD_SECONDS, IDLE_SECONDS = 20.0, 60
# Seconds in which a client that has something to read must read some of it.
STUCK_SECONDS = 60.0
# Connections beyond those that can have a request in the queue.
SPARE_CONNECTIONS = 64


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; clients that come before the model is ready wait.

    Raises:
        InputError: the port is in use or may not be taken, the host is not this machine's.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"port is {port}; it must be from 0 (any that is free) to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError):
        raise InputError(f'host "{host:.80}" is unknown; 127.0.0.1 serves this machine, 0.0.0.0 all') from None
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(128)
    except OSError as error:
        taken.close()
        known = {
            errno.EADDRINUSE: "is in use: choose another with --port, or 0 for any that is free",
            errno.EACCES: "may not be taken by this user: choose one above 1023 with --port",
            errno.EADDRNOTAVAIL: "is no address of this machine: 127.0.0.1 serves this machine, 0.0.0.0 all",
        }
        raise InputError(f"{host}:{port} {known.get(error.errno, error.strerror)}") from None
    taken.setblocking(False)
    return taken


class _Protocol(H11Protocol):
    """HTTP/1.1 with bounds on connections, on the time of a head, and on clients that do not read."""

    most = 1024
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)  # which calls resume_writing

    def pause_writing(self) -> None:
        if self._stuck is None:
            self._await_reading()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def _await_reading(self, before: int | None = None) -> None:
        """Ends the connection where no byte of what waits has gone in time; one slow read after the other is enough."""
        waits = self.transport.get_write_buffer_size()
        if before is not None and waits >= before:
            self.transport.abort()
        else:
            self._stuck = self.loop.call_later(STUCK_SECONDS, self._await_reading, waits)

    def _watch(self) -> None:
        """The clock runs while a head is awaited, whatever arrives of it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self._end)

    def _end(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Server(uvicorn.Server):
    """A Service, served until a signal or `should_exit`.

    Requests at work when it ends have `grace` seconds; what is left then is told so.
    """

    def __init__(self, service: Service):
        limits = service.served.limits
        most = limits.concurrency + limits.max_waiting + SPARE_CONNECTIONS
        config = uvicorn.Config(
            service.app(),
            http=type("Protocol", (_Protocol,), {"most": most}),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=int(limits.grace) + 5,
        )
        super().__init__(config)
        self._service = service

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves; the threads of the service end with it."""
        self._service.engine.start()
        try:
            with contextlib.closing(self._service):
                super().run(sockets)
        finally:
            for one in sockets or ():
                one.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        engine = self._service.engine
        engine.stop()
        end = asyncio.get_running_loop().call_later(self._service.served.limits.grace, engine.tell_all)
        await super().shutdown(sockets)
        end.cancel()
