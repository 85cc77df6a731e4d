"""Whether an error is that of an exchange whose other side is gone, and not of a program that is wrong."""

import re

from train.last_words import AGAIN

# What the layers below say when the other side is gone.
BROKEN = ("gloo", "connection", "socket closed", "unavailable", "deadline exceeded", "heartbeat", "nccl", "barrier")
# At its first call a program's error is a plain ValueError that begins with a status of XLA's.
STATUS = re.compile(r"(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|FAILED_PRECONDITION|DEADLINE_EXCEEDED): ")
EXCHANGES = ("gloo", "nccl", "connection", "socket closed", "heartbeat")


class PeerLost(Exception):
    """A collective failed since a process is gone."""


def raise_lost(error: BaseException) -> None:
    """Raises PeerLost where `error` is that of a collective whose other side is gone, or such a one led to it."""
    import jax

    if jax.process_count() == 1:
        return
    one: BaseException | None = error
    while one is not None:
        said = " ".join(str(one).split())
        if _is_lost(one, said.lower(), jax.errors.JaxRuntimeError):
            raise PeerLost(f"a process was lost ({said[:160]}); {AGAIN}") from error
        one = one.__cause__


def _is_lost(error: BaseException, said: str, kind: type[BaseException]) -> bool:
    if isinstance(error, kind):
        return any(word in said for word in BROKEN)
    return type(error) is ValueError and bool(STATUS.match(str(error))) and any(word in said for word in EXCHANGES)
