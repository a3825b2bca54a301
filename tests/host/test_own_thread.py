"""Threads of Ebbtide's are none of the script's."""

import signal
import threading

from ebbtide.host.own_thread import OwnThread


def test_a_thread_of_ours_takes_no_signal_and_is_not_listed() -> None:
    """A script that blocks a signal in its own threads waits for it (``sigwait``)."""
    found: list[object] = []

    def look() -> None:
        found.extend((signal.pthread_sigmask(signal.SIG_BLOCK, ()), threading.enumerate()))

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    thread = OwnThread(target=look, daemon=True)
    thread.start()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    thread.join()
    blocked, listed = found
    assert {signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGALRM} <= blocked  # type: ignore[operator]
    assert signal.SIGSEGV not in blocked  # type: ignore[operator]
    assert thread not in listed  # type: ignore[operator]
