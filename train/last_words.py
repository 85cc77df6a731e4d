"""Standard error of one process of several, where the page that jax's runtime prints as it ends becomes one line.

jax ends a process from C++, uncatchably, when another one is lost or does not come: a status, a source location and a
stack. This file is run as a program of its own beside the process and passes on all that it prints but that page.
"""

import os
import re
import select
import subprocess
import sys
from typing import TextIO

# A line of the runtime about its coordination; others may follow that belong to it.
BEGINS = re.compile(rb"^[EFWI]\d{4} .*(coordination_service|client\.h|distributed)")
FATAL = b"Terminating process because the JAX distributed service"
HOLD = 3.0  # seconds that such lines are kept back, to see whether the end follows
AGAIN = "run the same command again in every process: it goes on from the last complete checkpoint"


def fold(num_processes: int | str, process_id: int | str, join_within: int, lost_after: int) -> TextIO:
    """Puts the filter behind this process's standard error, and gives the real one, for a live display."""
    reading, writing = os.pipe()
    real = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="replace")
    words = [sys.executable, "-I", "-S", __file__, *map(str, (num_processes, process_id, join_within, lost_after))]
    # In a session of its own, Ctrl-C at the terminal does not reach it: it ends when its input does.
    subprocess.Popen(words, stdin=reading, stdout=subprocess.DEVNULL, stderr=real, start_new_session=True)
    os.close(reading)
    os.dup2(writing, 2)
    os.close(writing)
    return real


def told(page: str, num_processes: str, process_id: str, join_within: str, lost_after: str) -> str:
    """The one line for what jax's runtime printed."""
    lost = re.search(r"stopped sending heartbeats\):?\s*((?:(?:/job:\S*/task:)?\d+[,\s]+)+)", page)
    if lost:
        numbers = sorted({int(number) for number in re.findall(r"(\d+)[,\s]", lost[1])})
        which = f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
        return f"{which} of {num_processes} lost: no sign of life for {lost_after} s; {AGAIN}"
    if "RegisterTask" in page:
        if "Unexpected task" in page:
            return f"process {process_id} is not among those that process 0 waits for; give all the same num_processes"
        if "DEADLINE_EXCEEDED" in page:
            return (
                f"not all of {num_processes} processes joined within {join_within} s; are all running, with the same "
                "num_processes and coordinator, each with a process_id of its own?"
            )
        if "ALREADY_EXISTS" in page or "ABORTED" in page:
            return f"another process has joined as process {process_id}; each needs a process_id of its own"
    if "leader task" in page or "Failed to send RPC" in page:
        return f"process 0 of {num_processes}, which coordinates, has ended; see its own output; {AGAIN}"
    status = re.search(r"absl::Status: (.*)", page)
    return f"the job of {num_processes} processes has ended: {(status[1] if status else page)[:300]}; {AGAIN}"


def filtered(reading: int, writing: int, about: list[str]) -> None:
    """Copies until the end; then says the line, where the page came and no error of our own did."""
    held: list[bytes] = []
    rest, fatal, said = b"", False, False
    while True:
        ready = not held or fatal or select.select([reading], [], [], HOLD)[0]
        chunk = os.read(reading, 65536) if ready else None
        if chunk == b"":
            break
        *lines, rest = (rest + chunk).split(b"\n") if chunk else (rest,)
        for line in lines:
            said = said or line.startswith(b"error: ")
            fatal = fatal or FATAL in line
            if line.startswith(b"error: ") or not (held or fatal or BEGINS.match(line)):
                os.write(writing, line + b"\n")
            else:
                held.append(line)
        if chunk is None:  # nothing followed: news of a running process
            os.write(writing, b"\n".join(held) + b"\n")
            held = []
    if fatal and not said:
        page = b"\n".join(held).decode(errors="replace")
        os.write(writing, f"error: {told(page, *about)}\n".encode())
    elif not fatal:
        os.write(writing, b"".join(line + b"\n" for line in held) + rest)


if __name__ == "__main__":
    filtered(0, 2, sys.argv[1:])
