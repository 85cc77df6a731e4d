"""SIGTERM and Ctrl-C as a request to finish the step at work and save."""

import signal
import threading


class Signals:
    """Attributes:
    received: number of the signal that came, or 0. A second one ends the program at once.
    """

    def __init__(self):
        self.received = 0
        self._before = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def _receive(self, number, frame):
        del frame
        self.received = number
        self._restore()

    def _restore(self):
        while self._before:
            signal.signal(*self._before.popitem())

    def __exit__(self, *_) -> None:
        self._restore()
