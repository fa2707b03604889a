"""The request to stop, as SIGTERM and SIGINT bring it."""

import logging
import os
import select
import signal
import threading

log = logging.getLogger(__name__)


class Stopping:
    """Takes over both signals. `seconds` after the first the process ends, whatever it waits for.

    Ending there is safe at any instant; exit code 0, for nothing is lost. A pipe rather than an Event: a
    signal handler must not take a lock that the code it interrupts may hold.
    """

    def __init__(self, seconds: float) -> None:
        self.asked = False
        self._seconds = seconds
        self._ear, self._mouth = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def wait(self, seconds: float) -> bool:
        """Wait until asked, at most so long. True when asked."""
        if not self.asked:
            select.select([self._ear], [], [], seconds)
        return self.asked

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            return
        self.asked = True
        os.write(self._mouth, b"x")
        timer = threading.Timer(self._seconds, _give_up)
        timer.daemon = True
        timer.start()


def _give_up() -> None:
    log.warning("Postgres does not answer: what is not written stays in the journal")
    os._exit(0)
