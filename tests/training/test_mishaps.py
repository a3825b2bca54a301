"""What goes wrong around a session, and unusual training in one: the same bits, or an error that says what to do.

Each compares the bits with the same training without a session, and shows that bytes really moved.
"""

import contextlib
import ctypes
import errno
import gc
import os
import resource
import signal
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ebbtide
from ebbtide import _torch
from ebbtide.errors import BudgetError, PlatformError, SessionError
from ebbtide.units import GIB, MIB
from tests.helpers import child
from tests.helpers.at_once import at_once
from tests.helpers.paths import SCRIPTS
from tests.helpers.zoo_features import mlp
from tests.training.same_bits import CASES, Run, Snapshot, begin, step, train, train_in_turn, train_plainly

PLANNED = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_PROGRESS": "off"}
PAGES = PLANNED | {"EBBTIDE_POLICY": "demand"}  # where a plan would change nothing, its two seconds are saved
TRAIN_RANKS = str(SCRIPTS / "train_ranks.py")
pytestmark = pytest.mark.in_child(PAGES)
BASE = CASES["weight-averaging"]
FAST = "45%"
STEPS = 5


def moved_bytes(session: ebbtide.Session) -> int:
    """In and out, of the steps under the budget."""
    bounded = [step for step in session.report().steps if step.mode != "recorded"]
    evicted, fetched = (sum(getattr(s, name).total for s in bounded) for name in ("evicted_bytes", "fetched_bytes"))
    assert evicted > 0
    assert fetched > 0
    return evicted + fetched


def check_same(plain: Snapshot, ours: Run, session: ebbtide.Session) -> None:
    assert plain.differences(ours) == ()
    assert moved_bytes(session) > 0


def test_a_session_in_a_thread() -> None:
    """Begun, used and ended by a thread, while the main thread waits; then one that only its steps are made by."""
    plain = train_plainly(BASE, STEPS)

    def whole() -> None:
        with ebbtide.Session(fast=FAST) as session:
            ours = begin(BASE)
            train(ours, STEPS, session)
        check_same(plain, ours, session)

    at_once(whole, 1)
    gc.collect()
    with ebbtide.Session(fast=FAST) as session:
        ours = begin(BASE)
        at_once(lambda: train(ours, STEPS, session), 1)
    check_same(plain, ours, session)


def test_nested_sessions() -> None:
    """The inner one is refused, by a clear error, at every stage of a step; the outer one goes on."""
    plain = train_plainly(BASE, STEPS)

    def refused() -> None:
        with pytest.raises(SessionError, match="already active"), ebbtide.Session(fast="50%"):
            pass

    with ebbtide.Session(fast=FAST) as session:
        ours = begin(BASE)
        for _ in range(STEPS):
            refused()
            with session.step():
                refused()
                step(ours)
    check_same(plain, ours, session)


def test_a_second_session() -> None:
    """What was born between two sessions, when the arena is there and manages nothing, is taken by the second one."""
    plain = train_plainly(BASE, STEPS)
    with ebbtide.Session(fast=FAST) as first:
        ours = begin(BASE)
        train(ours, STEPS, first)
    check_same(plain, ours, first)
    ours = begin(BASE)
    nbytes = sum(parameter.nbytes for parameter in ours.model.parameters())
    with ebbtide.Session(fast=FAST) as second:
        train(ours, STEPS, second)
    check_same(plain, ours, second)
    assert second.report().adopted_bytes > 0.9 * nbytes
    assert second.report().steps[-1].evicted_bytes.parameter > 0


def test_forks_in_the_middle_of_steps_harm_neither_side() -> None:
    """They are forked from another thread, and compute."""
    plain = train_plainly(BASE, STEPS)
    stopping = threading.Event()
    statuses: list[int] = []

    def fork_often() -> None:
        while not stopping.is_set():
            pid = os.fork()
            if pid == 0:
                fresh = torch.ones(16_000) + 1  # managed in the parent; too small for OpenMP, which a fork breaks
                os._exit(0 if not _torch.is_managed(fresh) and float(fresh[-1]) == 2.0 else 1)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            time.sleep(0.002)

    with ebbtide.Session(fast=FAST) as session:
        ours = begin(BASE)
        thread = threading.Thread(target=fork_often)
        thread.start()
        try:
            train(ours, STEPS, session)
        finally:
            stopping.set()
            thread.join()
    assert set(statuses) == {0}
    check_same(plain, ours, session)
    assert len(statuses) > 10


def test_a_data_set_for_workers_of_every_epoch() -> None:
    """A data set of tensors is away, and training state fills the budget, when the next epoch's worker is forked."""
    rows, labels = torch.randn(4096, 256), torch.randint(64, (4096,))
    batch: list[torch.Tensor] = []
    case = replace(BASE, batch=lambda _: tuple(batch))

    def train_epochs(run: Run, session: Any) -> None:
        for _ in range(STEPS):
            if session:
                _torch.evict([rows, labels])
                assert not _torch.is_resident(rows)
            loader = DataLoader(TensorDataset(rows, labels), 32, num_workers=1, multiprocessing_context="fork")
            for batch[:] in islice(loader, 2):
                train(run, 1, session)

    plain_run = begin(case)
    train_epochs(plain_run, None)
    plain = Snapshot.of(plain_run)
    del plain_run
    with ebbtide.Session(fast="40%") as session:
        ours = begin(case)
        train_epochs(ours, session)
    check_same(plain, ours, session)


class Interrupting(nn.Module):
    """A model that is interrupted in the middle of one of its passes, forward or backward."""

    def __init__(self, network: nn.Module, at: int, number: int, where: str) -> None:
        super().__init__()
        self.network = network
        self.calls, self.at, self.number, self.where = 0, at, number, where

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.network.network[:3](rows)
        if self.calls == self.at:
            if self.where == "forward":
                self._interrupt()
            hidden.register_hook(self._interrupt)
        return self.network(rows) + 0.0 * hidden.sum()

    def _interrupt(self, *_: object) -> None:
        signal.raise_signal(self.number)


def _train_until_interrupted(number: int, where: str, session: Any, path: Path) -> Run:
    """As a script with a handler that saves: what was interrupted is dropped, a checkpoint written, and it goes on."""
    case = replace(BASE, model=lambda: Interrupting(BASE.model(), at=4, number=number, where=where))
    run = begin(case)
    caught = 0
    for _ in range(STEPS):
        try:
            with session.step() if session else contextlib.nullcontext():
                step(run)
        except KeyboardInterrupt:
            caught += 1
            if session:
                _torch.evict([tensor for _, tensor in run.tensors()])
            torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, path)
    assert caught == 1
    return run


@pytest.mark.parametrize("order", ["as-written", "deferred"])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_script_that_is_interrupted_saves_and_goes_on_with_the_same_bits(
    name: str, where: str, order: str, tmp_path: Path
) -> None:
    """By SIGINT as Python handles it, or SIGTERM with a handler that raises: the checkpoint holds the same bits."""
    number = getattr(signal, name)

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(number, handler)
    paths = [tmp_path / who for who in ("plain", "ours")]
    plain = Snapshot.of(_train_until_interrupted(number, where, None, paths[0]))
    with ebbtide.Session(fast=FAST, optimizer=order) as session:
        ours = _train_until_interrupted(number, where, session, paths[1])
    check_same(plain, ours, session)
    saved = [torch.load(path, weights_only=True) for path in paths]
    assert saved[0]["model"].keys() == saved[1]["model"].keys()
    for key, value in saved[0]["model"].items():
        assert torch.equal(value, saved[1]["model"][key]), key


def test_descriptors_used_up() -> None:
    """By the script, from the fourth step on: the session ends and reports all the same."""
    plain = train_plainly(BASE, STEPS)
    held, limits = [], resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    with ebbtide.Session(fast=FAST) as session:
        ours = begin(BASE)
        train(ours, STEPS - 2, session)
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        train(ours, 2, session)
    assert held
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for file in held:
        os.close(file)
    check_same(plain, ours, session)


def test_a_full_spill_directory_is_an_error_that_says_so_and_training_can_go_on() -> None:
    """As on a full disk, the spill file cannot grow, and a step comes that needs more than is reserved."""

    def limit(nbytes: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))

    said = refused_in_mid_step(lambda: limit(largest_unlinked_file()), lambda: limit(resource.RLIM_INFINITY))
    assert "spill directory" in said
    assert "File too large" in said
    assert "lift the limit on a file's size (RLIMIT_FSIZE, ulimit -f unlimited)" in said
    assert "--spill DIR" in said


def refused_in_mid_step(fill: Callable[[], None], empty: Callable[[], None]) -> str:
    """What a step raises that needs more than there is once ``fill`` was called, in words.

    Then there is room again, and the step is made again from where it began, and one more after it: the same bits.
    """
    case = replace(BASE, model=mlp)
    larger = replace(case, loss=loss_of_many)
    cases = (case, case, case, larger, case)
    expected = train_in_turn(cases)
    with ebbtide.Session(fast=FAST) as session:
        ours = begin(case)
        train(ours, 3, session)
        drawn = ours.generator.get_state()
        ours.case = larger
        fill()
        with pytest.raises(torch.OutOfMemoryError) as raised:
            train(ours, 1, session)
        empty()
        assert "loss_of_many" in {entry.name for entry in raised.traceback}  # in mid-step, before any update
        said = str(raised.value)
        del raised  # it holds the frames, and they the activations
        ours.generator.set_state(drawn)
        for ours.case in cases[3:]:
            train(ours, 1, session)
    check_same(expected, ours, session)
    return said


def loss_of_many(model: nn.Module, batch: Any) -> torch.Tensor:
    """With so many activations of 2 MiB that they take a third of a GiB."""
    hidden = model[0](batch[0])
    for _ in range(176):
        hidden = hidden.sin()
    return BASE.loss(model, batch) + hidden.square().sum()


def largest_unlinked_file() -> int:
    """Bytes of the largest file that this process has open and that has no name: what its spill file may hold."""
    files = [os.stat(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    return max(file.st_size for file in files if stat.S_ISREG(file.st_mode) and file.st_nlink == 0)


def test_a_limited_address_space_is_an_error_that_names_the_limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (64 * GIB, resource.RLIM_INFINITY))
    with pytest.raises(PlatformError) as refused, ebbtide.Session(fast="50%"):
        pass
    said = str(refused.value)
    assert "address space" in said
    assert "ulimit -v unlimited" in said
    assert "--spill" not in said


class Large(nn.Module):
    """Thirty square layers of 1 MiB: 30 MiB of parameters, and as much of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(30))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = torch.tanh(layer(rows))
        return rows[:, :64]


def test_what_was_managed_may_be_in_memory_after_the_session() -> None:
    ours = begin(BASE)
    with ebbtide.Session(fast=FAST) as session:
        train(ours, STEPS, session)
    moved_bytes(session)
    train(ours, 2)
    before = _torch.counters()
    train(ours, 2)
    after = _torch.counters()
    assert (before["evicted_bytes"], before["fetched_bytes"]) == (after["evicted_bytes"], after["fetched_bytes"])
    assert train_plainly(BASE, STEPS + 4) == Snapshot.of(ours)


def test_a_kernel_that_moves_no_pages_is_refused_before_anything_runs() -> None:
    """A filter refuses mremap (system call 25) with MREMAP_DONTUNMAP (4), as Linux before 5.7 does."""
    loads = struct.pack("HBBI", 0x20, 0, 0, 0), struct.pack("HBBI", 0x20, 0, 0, 40)
    jumps = struct.pack("HBBI", 0x15, 0, 3, 25), struct.pack("HBBI", 0x45, 0, 1, 4)
    ends = struct.pack("HBBI", 6, 0, 0, 0x50000 | errno.EINVAL), struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
    code = ctypes.create_string_buffer(b"".join((loads[0], jumps[0], loads[1], jumps[1], *ends)))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 6, ctypes.addressof(code)))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0  # PR_SET_SECCOMP
    with pytest.raises(PlatformError, match=r"Invalid argument.*Linux 5\.7"):
        ebbtide.Session(fast="50%").start()
    assert ebbtide.active() is None


@pytest.mark.in_child(PAGES | {"EBBTIDE_ARENA": "12MiB"})
def test_a_model_can_be_built_larger_than_the_budget() -> None:
    """The parameters alone are 30 MiB."""
    case = replace(CASES["accumulation-and-clipping"], model=Large, batch=lambda g: _small_rows(g), micro_batches=1)
    case = replace(case, clip=None)
    plain = train_plainly(case, STEPS)
    with ebbtide.Session() as session:
        ours = begin(case)
        assert sum(parameter.nbytes for parameter in ours.model.parameters()) == 30 * MIB
        train(ours, STEPS, session)
    check_same(plain, ours, session)
    report = session.report()
    assert report.arena_budget_bytes == 12 * MIB
    assert report.arena_peak_bytes <= 12 * MIB
    assert not report.budget_violated


def _small_rows(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, 512, generator=generator), torch.randint(64, (64,), generator=generator)


def test_operators_that_come_and_go() -> None:
    """One may have the address of another that has gone, and another schema."""
    changes, takes_many = "(Tensor(a!) x) -> ()", "(Tensor(a!)[] x) -> Tensor"
    schemas = (changes, "(Tensor x, Tensor y) -> (Tensor, Tensor)", takes_many)
    kernels: tuple[Callable[..., Any], ...] = (
        lambda x: (x.mul_(0.5), None)[1],
        lambda x, y: (x * 2, y + 1),
        lambda x: x[0].add_(1).clone(),
    )
    names = [f"operator_{number}_of_a_script" for number in range(3)]

    def use(tensor: torch.Tensor, turn: int) -> None:
        library = torch.library.Library("comes_and_goes", "FRAGMENT")
        for number, name in enumerate(names):
            library.define(f"{name}{schemas[(number + turn) % 3]}")
            library.impl(name, kernels[(number + turn) % 3], "CPU")
        for number, name in enumerate(names):
            operator = getattr(torch.ops.comes_and_goes, name).default
            kind = (number + turn) % 3
            operator(*([tensor], [tensor, tensor], [[tensor]])[kind])
        library._destroy()
        for name in names:
            vars(torch.ops.comes_and_goes).pop(name, None)
        del library, operator
        gc.collect()

    def run() -> torch.Tensor:
        tensor = torch.ones(1 << 16)
        for turn in range(40):
            use(tensor, turn)
        return tensor

    plain = run()
    with ebbtide.Session("1GiB"):
        assert torch.equal(run(), plain)


def test_lbfgs() -> None:
    """Its state is lists of flat tensors as large as the model, and its step calls the model many times."""
    case = CASES["accumulation-and-clipping"]

    def train_by_closure(session: Any) -> Run:
        run = begin(case)
        run.optimizer = torch.optim.LBFGS(run.model.parameters(), lr=0.1, max_iter=3, history_size=3)
        batch = case.batch(run.generator)

        def closure() -> torch.Tensor:
            run.optimizer.zero_grad()
            loss = case.loss(run.model, batch)
            loss.backward()
            run.losses.append(loss.detach())
            return loss

        for _ in range(4):
            with session.step() if session else contextlib.nullcontext():
                run.optimizer.step(closure)
        return run

    plain_run = train_by_closure(None)
    plain = Snapshot.of(_without_state(plain_run))
    history = [bytes(t.numpy()) for t in plain_run.optimizer.state[next(iter(plain_run.optimizer.state))]["old_dirs"]]
    del plain_run
    with ebbtide.Session(fast="70%") as session:
        ours = train_by_closure(session)
    state = ours.optimizer.state[next(iter(ours.optimizer.state))]
    assert [bytes(t.numpy()) for t in state["old_dirs"]] == history
    check_same(plain, _without_state(ours), session)
    assert sum(s.evicted_bytes.optimizer_state for s in session.report().steps) > 0


def _without_state(run: Run) -> Run:
    """LBFGS's state is no dictionary of tensors, so it is compared by itself."""
    return replace(run, optimizer=torch.optim.SGD(run.model.parameters(), lr=1.0))


def test_shared_memory() -> None:
    """``share_memory_`` of a model that is mostly away: others see it, and training goes on."""
    plain_run = begin(BASE)
    train(plain_run, 3)
    plain_run.model.share_memory()
    train(plain_run, 2)
    plain = Snapshot.of(plain_run)
    del plain_run
    with ebbtide.Session(fast=FAST) as session:
        ours = begin(BASE)
        train(ours, 3, session)
        weights = [parameter.detach() for parameter in ours.model.parameters()]
        large = [weight for weight in weights if _torch.is_managed(weight)]
        _torch.evict(large)
        assert sum(not _torch.is_resident(weight) for weight in large) >= 3
        ours.model.share_memory()
        assert not any(_torch.is_managed(weight) for weight in weights)
        content = [bytes(weight.numpy()) for weight in weights]
        pid = os.fork()
        if pid == 0:
            os._exit(0 if [bytes(weight.numpy()) for weight in weights] == content else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        train(ours, 2, session)
    check_same(plain, ours, session)


def train_rank(rank: int, world: int, port: int, fast: str, result: str) -> int:
    """One rank of data-parallel training over gloo, in a session or (``fast`` is "") not; the bytes moved."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    from tests.scripts.train_ranks import train_here

    if not fast:
        train_here(STEPS, Path(result))
        return 0
    with ebbtide.Session(fast=fast) as session:
        train_here(STEPS, Path(result), session)
    return moved_bytes(session)


@pytest.mark.in_child(PLANNED)
def test_a_compiled_gpt_block_trains_to_the_same_bits() -> None:
    """Against the same compiled without a session."""
    original = CASES["gpt2-adamw-fused"]

    def compiled() -> nn.Module:
        model = original.model()
        for block in model.transformer.h:
            block.compile(backend="aot_eager")
        return model

    case = replace(original, model=compiled)
    plain = train_plainly(case, STEPS)
    with ebbtide.Session(fast="60%") as session:
        ours = begin(case)
        train(ours, STEPS, session)
    check_same(plain, ours, session)
    report = session.report()
    last = report.steps[-1]
    moved = {kind: getattr(last.evicted_bytes, kind) for kind in ("parameter", "optimizer_state", "activation")} | {
        "unbounded peak": report.unbounded_peak_bytes,
        "arena peak": report.arena_peak_bytes,
    }
    assert moved["parameter"] + moved["optimizer_state"] > 0
    assert moved["arena peak"] <= 0.61 * moved["unbounded peak"]


def test_sizes_that_are_symbols_are_no_trouble() -> None:
    """The first operator that may call MKL's vector functions speaks on standard error."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    dynamic: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(torch.ones(8, 9), symbolic_context=dynamic)
    with tempfile.TemporaryFile() as file, ebbtide.Session(fast="2GiB"):
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        with mode:
            fake.erf()
        os.dup2(before, 2)
        file.seek(0)
        assert "callback" not in file.read().decode()


@pytest.mark.in_child(PAGES | {"EBBTIDE_ARENA": "12MiB", "EBBTIDE_PIECE": "2MiB"})
def test_what_is_only_looked_at_by_its_address_is_not_held() -> None:
    """A tensor larger than the arena is asked for its address, and parameters are refused by DLPack."""
    with ebbtide.Session(fast="2GiB", policy="demand", progress="off"):
        large = torch.ones(6 << 20)
        assert large.data_ptr() % 16 == 0
        assert not _torch.counters()["over_budget"]
        weight = nn.Parameter(torch.ones(1 << 18))
        for _ in range(3):
            with pytest.raises(BufferError):
                weight.__dlpack__()
            assert _torch.evict([weight]) > 0
        assert float(large.sum()) == 6 << 20
        assert float(weight.detach().sum()) == 1 << 18


def test_arrays_that_share_tensors_memory_are_named_where_they_take_the_budget() -> None:
    """As an evaluation that keeps its outputs."""
    kept = []

    def train_and_keep() -> None:
        with ebbtide.Session(fast="50%", progress="off") as session:
            ours = begin(replace(BASE, model=mlp))
            train(ours, 4, session)
            kept.extend(torch.ones(1 << 18).numpy() for _ in range(40))
            train(ours, 2, session)

    with pytest.raises(BudgetError) as raised:
        train_and_keep()
    assert "held in memory, by NumPy or DLPack arrays" in str(raised.value)


@pytest.fixture(scope="module")
def plain_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each of two ranks ends with on plain PyTorch."""
    result = tmp_path_factory.mktemp("ranks") / "plain"
    return train_ranks("", result)[0]


def free_port() -> int:
    """Asked for just before it is used: other tests take ports meanwhile."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def train_ranks(fast: str, result: Path) -> tuple[list[str], list[int]]:
    """Two ranks at once; what each ended with, and the bytes each moved."""
    port = free_port()
    ranks = [child.Child(train_rank, (rank, 2, port, fast, str(result)), PLANNED) for rank in range(2)]
    with ranks[0], ranks[1]:
        moved = [rank.result() for rank in ranks]
    return [result.with_suffix(f".{rank}").read_text() for rank in range(2)], moved


@pytest.mark.here
def test_all_reduce_of_what_is_away_gives_the_same_bits(plain_ranks: list[str], tmp_path: Path) -> None:
    """Gloo's threads send from buckets and receive into them while the backward pass needs room."""
    ours, moved = train_ranks("45%", tmp_path / "ours")
    assert ours == plain_ranks
    assert min(moved) > 0
