"""A storage of a device moves only where nobody else has its memory, and nobody reaches it unseen."""

import pytest
import torch
from torch import Tensor

import ebbtide
import ebbtide._torch as _torch
from ebbtide.errors import SettingError
from tests.device import lagging
from tests.training.device_jobs import KEPT

pytestmark = pytest.mark.in_child({"OMP_NUM_THREADS": "1"}, lagging.load)
NUMBERS = 1 << 16


def managed(chaos_rate: float = 0.0) -> ebbtide.Session:
    return ebbtide.Session("100%", policy="demand", chaos_rate=chaos_rate, **KEPT)


def numbers() -> Tensor:
    return torch.zeros(NUMBERS, device=lagging.DEVICE).add_(1)


def leaves(tensor: Tensor) -> bool:
    return _torch.evict([tensor]) > 0


def test_what_is_to_be_kept_stays_until_the_session_ends() -> None:
    """What was away comes back; what lies elsewhere, or is small, is left alone."""
    layer = torch.nn.Linear(256, 256).to(lagging.DEVICE)
    for _ in range(2):  # the next session knows nothing of it
        with managed() as session:
            away = numbers()
            assert leaves(away)
            assert leaves(layer.weight)
            session.keep([layer, {"away": away}, torch.ones(NUMBERS)])
            assert _torch.is_resident(away)
            assert not leaves(away)
            assert not leaves(layer.weight)
            assert away.sum().item() == NUMBERS
            with pytest.raises(SettingError, match="what is to be kept is a module"):
                session.keep(3)


def test_what_is_kept_stays_while_all_else_leaves() -> None:
    net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]).to(lagging.DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    there, left = [], []
    with managed(chaos_rate=0.5) as session:
        session.keep(net[0])
        for _ in range(4):
            with session.step():
                optimizer.zero_grad()
                net(torch.ones(128, 64).to(lagging.DEVICE)).square().mean().backward()
                there.append(_torch.is_resident(net[0].weight))
                left.append(any(not _torch.is_resident(layer.weight) for layer in net[1:]))
                optimizer.step()
    assert all(there)
    assert any(left)


def test_sliced_memory_stays_where_it_was() -> None:
    with managed():
        whole = numbers()
        assert leaves(whole)
        part = torch.empty(0, device=lagging.DEVICE).set_(whole.untyped_storage()[: NUMBERS * 2])
        assert not leaves(whole)
        assert not leaves(part)
        part.add_(1)
        assert whole.sum().item() == NUMBERS * 3 / 2


def test_exported_memory_stays_where_it_was() -> None:
    for module in (torch, torch.utils.dlpack):
        with managed():
            tensor = numbers()
            assert leaves(tensor)
            held = module.to_dlpack(tensor)
            assert not leaves(tensor)
            del held
            assert not leaves(tensor)  # whoever took it tells nobody when he is done


def test_imported_memory_stays_where_it_was() -> None:
    with managed():
        tensor = numbers()
        other = torch.from_dlpack(torch.to_dlpack(tensor)) if hasattr(torch, "from_dlpack") else tensor
        other.add_(1)
        assert not leaves(other)
        assert tensor.sum().item() == 2 * NUMBERS
