// Finds who holds the memory of the storages that Python reaches: the proof that a storage alone owns its memory.
//
// [Note: what proves it]  Whoever shares a storage's memory without a reference to something could lose it at any moment. So an
// alias holds a reference: to the StorageImpl (a slice), to a TensorImpl (DLPack, a C++ library), or to a tensor's Python object
// (NumPy, and what stands on NumPy). So references are counted, and each has to be explained:
//   - a StorageImpl's by the tensors that lie in it, by its Python object and by the slices made of it,
//   - a TensorImpl's by its Python object, its gradient accumulator, the tensor whose gradient it is, its views, and by
//     what DistributedDataParallel and torch.jit hold in C++,
//   - a Python object's by what the collector's objects and the locals of this thread's functions refer to, and by the
//     TensorImpl, which holds one while C++ holds it.
// A reference that is left over is somebody unknown's, and then the storage is left alone. So is a storage whose range overlaps
// another's, whatever holds that. A tensor that nothing here reaches leaves a reference to its storage unexplained.
//
// An operator may work on a tensor without a reference of its own (a method of the tensor, what adds to a gradient). So no other thread
// is in one meanwhile [standstill.hpp].
//
// Left out: an address that somebody kept without any reference, which nothing can tell. So is an operator that another thread began
// before the recorder did.
#pragma once

#include <Python.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ebbtide {

// A storage on the CPU outside the arena, and who else holds its memory; "" for nobody.
struct Found {
  c10::intrusive_ptr<c10::StorageImpl> storage;
  std::string holder;
};

// Finds storages of `min_bytes` and more that `objects` (objects.hpp) lead to. `owners` is as in cpp_owners.hpp. The list `locals` is
// what this thread's functions hold besides them. The GIL is held, and has been since the objects were listed.
std::vector<Found> find_unmanaged(std::vector<PyObject*> objects, PyObject* owners, PyObject* locals, std::size_t min_bytes);

// Reads the deleter off a sliced UntypedStorage: torch keeps it to itself.
void learn_slice_deleter(const c10::StorageImpl& slice);
bool is_slice(const c10::DataPtr& data);
// Memory of a storage from there on, as Python's slices of one have it.
c10::DataPtr slice_of(c10::Storage whole, std::size_t begin);

struct Adopted {
  std::uint64_t bytes = 0;
  std::vector<std::pair<std::uint64_t, std::string>> left_alone;  // bytes, and who else holds the storage
};

// Moves into the arena what nobody else holds. Callers MUST be at a step boundary, since data pointers change. Where another thread
// stays in an operator, nothing is done or returned.
std::optional<Adopted> adopt_all(PyObject* attributes, PyObject* locals, PyObject* roots);

}  // namespace ebbtide
