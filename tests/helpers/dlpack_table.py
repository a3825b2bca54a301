"""Takes tensors as libraries do that know DLPack's table of C functions, without a call of Python's."""

import ctypes
from ctypes import POINTER, Structure, c_int, c_int32, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object

import torch


class _View(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", c_int32 * 2),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class _Table(Structure):
    _fields_ = [
        ("version", c_uint32 * 2),
        ("prev_api", c_void_p),
        ("allocator", c_void_p),
        ("managed_from_python", c_void_p),
        ("managed_to_python", c_void_p),
        ("view_from_python", c_void_p),
        ("stream", c_void_p),
    ]


def _table() -> _Table:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [py_object, ctypes.c_char_p]
    capsule = torch.Tensor.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    return _Table.from_address(pointer(capsule, b"dlpack_exchange_api"))


def address_of(tensor: torch.Tensor) -> int:
    """Return a tensor's address, as a C function sees it that was called with it."""
    export = ctypes.PYFUNCTYPE(c_int, py_object, POINTER(_View))(_table().view_from_python)
    view = _View()
    assert export(tensor, ctypes.byref(view)) == 0
    return int(view.data + view.byte_offset)


def keep(tensor: torch.Tensor) -> None:
    """Take a tensor's memory and never give it back."""
    export = ctypes.PYFUNCTYPE(c_int, py_object, POINTER(c_void_p))(_table().managed_from_python)
    assert export(tensor, ctypes.byref(c_void_p())) == 0
