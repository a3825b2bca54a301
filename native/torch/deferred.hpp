// Updates of parameters that an optimizer's step has put off: they are carried out before anybody looks.
//
// Whoever reads or writes a parameter, its gradient or its state does so with an operator, and every operator comes by
// here before its first kernel, with all its arguments: also a view, and one that is composed of others. Whoever reads
// in another way (an address, an array, a file) has a door in Python (doors/tensors.py), which asks here as well.
//
// Left out: a kernel that is called without PyTorch's dispatcher, on an address that it had before.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace ebbtide {

using UpdateNumber = std::uint64_t;

inline std::atomic<std::size_t> deferred_updates = 0;
inline bool anything_deferred() { return deferred_updates.load(std::memory_order_relaxed) != 0; }

// Update `number` reads and writes these tensors, and reads and writes `gradient`, of which others may have parts. False,
// and nothing is deferred: some of it is another deferred update's. The calling thread's modes (autocast, inference, ...)
// are those that it will be made in.
bool defer(UpdateNumber number, const std::vector<at::Tensor>& own, const at::Tensor& gradient);

// It has been made.
void carried_out(UpdateNumber number);

// Of the tensors' storages: address and bytes.
std::vector<std::pair<std::uintptr_t, std::size_t>> places_of(const std::vector<at::Tensor>& tensors);

// Whether nobody else may reach this tensor's memory unseen: it is an arena's and no array shares it, or too small for one.
bool is_unshared(const at::Tensor& tensor);

// Carries out the updates of what an operator is about to use, of a tensor, or of a range of memory.
void look_at(at::ArrayRef<const c10::IValue> arguments);
void look_at(const at::Tensor& tensor);
void look_at(const void* address, std::size_t nbytes);

void carry_out(const std::vector<UpdateNumber>& numbers);
void carry_out_all();

// Makes an update, by its number: called with the GIL, for one at a time on each thread. It returns None, or an
// exception type that is to be raised on this thread: nothing can be raised from within an operator's beginning.
void set_updater(pybind11::object updater);

// Runs what makes it as the optimizer's step would have run: only its own operators are not looked at.
void make_in_its_modes(UpdateNumber number, const pybind11::function& make);

// In a forked child: nothing is looked at.
void abandon_deferred();

// What Python calls of this.
void bind_deferred(pybind11::module_& m);

}  // namespace ebbtide
