"""How many threads share a thread's work: in OpenMP's loops, and in MKL's products."""

import threading

import ebbtide._torch as _torch


def here_and_in_a_new_thread() -> tuple[int, ...]:
    """Return both numbers of this thread, then of a new one, which has PyTorch's from its first loop there on."""
    new: list[int] = []
    thread = threading.Thread(target=lambda: new.extend(_torch.threads_now()))
    thread.start()
    thread.join()
    return (*_torch.threads_now(), *new)


def give(openmp: int, mkl: int, openmp_of_new: int, mkl_of_new: int) -> None:
    """Give this thread such numbers, and those whose first operator is yet to come."""
    _torch.give_threads((openmp, mkl), (openmp_of_new, mkl_of_new))
