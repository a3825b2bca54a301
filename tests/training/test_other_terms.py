"""What a recipe may not carry over: settings, kernels, threads and modes that are others by then."""

import importlib
import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import ebbtide
from ebbtide import _torch
from tests.helpers import child
from tests.training.looks_at_what_is_made_anew import Doubles, recipes
from tests.training.test_making_anew import _made, by_numpy

pytestmark = pytest.mark.in_child({"EBBTIDE_POLICY": "demand"})


def precision_changes(how: str) -> list[int]:
    """What a recipe needs would be another setting by the time it runs. Return the recipes, before the change and after
    it."""
    with ebbtide.Session(fast="1GiB"):
        _torch.want_all_recipes(True)
        _, _, made = _made()
        _torch.evict([made])
        counts = [_torch.recipes()]
        before = torch._C._set_deterministic_algorithms
        if how == "property":
            torch.backends.mkldnn.deterministic = True
        else:
            (before if how == "python" else before.__wrapped__)(True)
        counts.append(_torch.recipes())
        made.clone()
    return counts


def made_by_mul() -> int:
    """Return the number of recipes where all that is large was made by one multiplication."""
    with ebbtide.Session(fast="1GiB"):
        _torch.want_all_recipes(True, one_in=0)
        source = torch.arange(2**20)
        before = _torch.recipes()
        product = source.mul(3)
        assert product[5] == 15
        return _torch.recipes() - before


def test_an_operator_with_a_kernel_of_the_scripts_makes_nothing_anew() -> None:
    """What it has made in a step is made before it gets one."""

    def repeats() -> bool:
        return _torch.repeats("aten::silu", "")

    with ebbtide.Session(fast="1GiB"), recipes(1):
        found = [repeats()]
        made = nn.functional.silu(_made()[0])
        _torch.evict([made])
        away = not _torch.is_resident(made)
        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("silu", by_numpy, "CPU")
            there = _torch.is_resident(made)
            found.append(repeats())
            before = _torch.recipes()
            more = nn.functional.silu(made)
            found.append(away and there)
            found.append(_torch.recipes() > before)
            del more
        found = [*found[:2], repeats(), *found[2:]]
    assert found == [True, False, True, True, False]


def a_kernel_comes_with_a_library() -> None:
    """As C++ brings one: no function of PyTorch's in Python is called."""
    impl = torch.library.Library.impl
    with ebbtide.Session(fast="1GiB"), recipes(1), torch.library._scoped_library("aten", "IMPL") as library:
        made = nn.functional.silu(_made()[0])
        _torch.evict([made])
        getattr(impl, "__wrapped__", impl)(library, "silu", by_numpy, "CPU")
        assert "_testbuffer" not in sys.modules
        importlib.import_module("_testbuffer")
        made.clone()


@pytest.mark.in_child
def test_no_kernel_passes_for_pytorchs_by_the_name_of_its_directory() -> None:
    """Its sources lie in a directory like PyTorch's."""
    known = dict[str, Any](torch=torch)
    exec(compile('library = torch.library.Library("aten", "IMPL")', "/home/me/my_pytorch/csrc/ours.py", "exec"), known)
    known["library"].impl("silu", by_numpy, "AutogradCPU")
    assert _torch.repeats("aten::silu", "") is False


def test_threads_that_share_a_threads_work_and_round_otherwise_keep_their_bits() -> None:
    """They began while the thread flushed denormal numbers."""

    def run() -> bytes:
        made = torch.full((512, 512), 1e-30) * torch.full((512, 512), 1e-12)
        if ebbtide.active():
            _torch.evict([made])
            assert not _torch.is_resident(made)
        read: list[Tensor] = []
        reader = threading.Thread(target=lambda: read.append(made[:1].clone()))
        reader.start()
        reader.join()
        return made.numpy().tobytes()

    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    torch.ones(1 << 20).mul(2)
    torch.set_flush_denormal(False)
    plain = run()
    with ebbtide.Session(fast="1GiB"), recipes(1):
        assert run() == plain
        assert plain != bytes(len(plain))


def test_new_threads_have_the_number_that_the_script_set() -> None:
    """Another makes something anew with a number of its own meanwhile."""
    torch.set_num_threads(2)
    seen: set[int] = set()
    with ebbtide.Session(fast="1GiB"), recipes(1):
        one = _made()[0]
        made: list[Tensor] = []

        def make() -> None:
            torch.set_num_threads(1)
            made.append(torch.sin(one))

        maker = threading.Thread(target=make)
        maker.start()
        maker.join()

        def look() -> None:
            for _ in range(300):
                thread = threading.Thread(target=lambda: seen.add(torch.get_num_threads()))
                thread.start()
                thread.join()

        looks = threading.Thread(target=look)
        looks.start()
        while looks.is_alive():
            _torch.evict(made)
            made[0][:1].clone()
        assert _torch.counters()["made_anew_bytes"] > made[0].nbytes
    assert seen == {1}


def test_what_an_operator_frees_and_another_thread_gets_is_that_threads() -> None:
    """Operators of the other free what lay there."""
    size = 1 << 18
    wrong = moved = 0
    with ebbtide.Session(fast="1GiB"), recipes(1):
        ends = threading.Event()
        logits, target, weight = torch.randn(size), torch.rand(size), torch.rand(size)

        def lose() -> None:
            while not ends.is_set():
                nn.functional.binary_cross_entropy_with_logits(logits, target, weight)

        other = threading.Thread(target=lose)
        other.start()
        for number in range(400):
            tensor = torch.empty(size)
            tensor.fill_(number)
            moved += _torch.evict([tensor])
            wrong += tensor[5].item() != number
        assert moved >= 100 * tensor.nbytes
        ends.set()
        other.join()
    assert wrong == 0


@pytest.mark.in_child({"EBBTIDE_REMAKE": "check", "EBBTIDE_POLICY": "demand"})
@pytest.mark.parametrize("read", ["operator", "numpy"])
def test_what_is_made_of_a_weight_knows_nothing_of_an_update_that_waits(read: str) -> None:
    with ebbtide.Session(fast="1GiB", optimizer="deferred"), recipes():
        weight = nn.Parameter(_made()[0])
        optimizer = torch.optim.SGD([weight], lr=1.0)
        made = weight.detach() * 2
        plain = made.clone()
        weight.square().sum().backward()
        optimizer.step()
        _torch.evict([made])
        assert _torch.deferred_count() == 1
        assert not _torch.is_resident(made)
        found = made.clone() if read == "operator" else torch.from_numpy(made.numpy())
        assert torch.equal(found, plain)


class _Noise(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.mul.Tensor:
            out.uniform_(generator=torch.Generator().manual_seed(3))
        return out


def _in_a_mode(one: Tensor, other: Tensor) -> Tensor:
    with _Noise():
        return one * other


def _in_a_mode_that_fills(one: Tensor, other: Tensor) -> Tensor:
    with Doubles():
        return one * other


def _with_hooks(one: Tensor, other: Tensor) -> Tensor:
    both = torch.stack([one, other]).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.clone(), lambda saved: saved):
        low, _high = torch.aminmax(both, dim=0)
    return low.detach()


def _without_denormals(one: Tensor, other: Tensor) -> Tensor:
    torch.set_flush_denormal(True)
    made = torch.full((512, 512), 1e-20) * torch.full((512, 512), 1e-20)
    torch.set_flush_denormal(False)
    return made


@torch.inference_mode()
def _autocast(one: Tensor, other: Tensor) -> Tensor:
    """The product that autocast calls has a call too many for a recipe, for it casts; the one around it has not."""
    row = torch.sin(one)
    for _ in range(13):
        row = row * 1.01
    with torch.autocast("cpu", torch.bfloat16):
        return torch.mm(row, other).float()


def _list_changes(one: Tensor, other: Tensor) -> Tensor:
    """TorchScript's operators get the script's own lists."""
    script = "def flipped(one, dims: List[int]):\n  made = one.flip(dims)\n  dims[0] = 1\n  return made\n"
    flipped: Tensor = torch.jit.CompilationUnit(script).flipped(one, [0])
    return flipped


def _of_another_kernel(one: Tensor, other: Tensor) -> Tensor:
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("silu", by_numpy, "AutogradCPU")
        return nn.functional.silu(one)


def _cloned_lazily(one: Tensor, other: Tensor) -> Tensor:
    """The clone has the address of its original up to its first write, which is none to the original."""
    made = nn.functional.silu(one)
    clone = torch._lazy_clone(made)
    clone.mul_(0.5)
    return made


def _normalized(dtype: torch.dtype, strided: bool) -> Tensor:
    """A batch norm without weights, whose kernel looks at the statistics' type, and whether they are contiguous."""
    operand = torch.sin(torch.arange(16 * 64 * 32 * 32).reshape(16, 64, 32, 32)).to(dtype)
    statistics = torch.stack((torch.zeros(64), torch.ones(64)), dim=1 if strided else 0)
    mean, variance = (statistics[:, 0], statistics[:, 1]) if strided else (statistics[0], statistics[1])
    made: Tensor = nn.functional.batch_norm(operand, mean, variance, training=True)
    return made.float() if dtype == torch.bfloat16 else made


def _normalized_in_bfloat16(one: Tensor, other: Tensor) -> Tensor:
    return _normalized(torch.bfloat16, strided=False)


def _normalized_by_strided_statistics(one: Tensor, other: Tensor) -> Tensor:
    return _normalized(torch.float32, strided=True)


MORE = {
    "kernel": _of_another_kernel,
    "mode": _in_a_mode,
    "mode-out": _in_a_mode_that_fills,
    "hooks": _with_hooks,
    "denormals": _without_denormals,
    "autocast": _autocast,
    "list": _list_changes,
    "clone": _cloned_lazily,
    "statistics": _normalized_in_bfloat16,
    "strided-statistics": _normalized_by_strided_statistics,
}


@pytest.mark.in_child({"EBBTIDE_REMAKE": "1", "EBBTIDE_POLICY": "demand"})
@pytest.mark.parametrize("name", MORE)
def test_what_a_mode_a_hook_or_a_setting_adds_to_an_operator_is_not_lost(name: str) -> None:
    one, other, _ = _made()
    plain = MORE[name](one, other).numpy().tobytes()
    with ebbtide.Session(fast="1GiB"), recipes(1):
        one, other, _ = _made()
        made = MORE[name](one, other)
        _torch.evict([made])
        assert not _torch.is_resident(made)
        assert made.clone().numpy().tobytes() == plain


@pytest.mark.parametrize("how", ["python", "property"])
def test_before_a_setting_of_pytorch_changes_all_is_made(how: str) -> None:
    before, after = precision_changes(how)
    assert before > after == 0


@pytest.mark.here
def test_other_settings_of_pytorch_are_an_error_and_not_another_number() -> None:
    with pytest.raises(child.ChildError, match=r"settings .* were changed within a step.*EBBTIDE_REMAKE=0"):
        child.run(precision_changes, "C++", env={"EBBTIDE_POLICY": "demand"})


@pytest.mark.here
def test_an_operator_that_is_left_out_makes_nothing_anew() -> None:
    assert child.run(made_by_mul, env={"EBBTIDE_POLICY": "demand"}) == 1
    assert child.run(made_by_mul, env={"EBBTIDE_POLICY": "demand", "EBBTIDE_REMAKE": "-aten::mul"}) == 0


@pytest.mark.here
def test_a_kernel_that_comes_with_a_library_is_an_error_for_what_is_away() -> None:
    with pytest.raises(child.ChildError, match=r"aten::silu: a library that was loaded since gave it another kernel"):
        child.run(a_kernel_comes_with_a_library, env={"EBBTIDE_POLICY": "demand"})
