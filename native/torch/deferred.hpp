// Updates of parameters that an optimizer's step has put off: they are carried out before anybody looks. And memory of updates that
// were made before the step: whoever looks before it would see another number, so the one that guards it is told.
//
// Readers and writers of a parameter, its gradient or its state use an operator. Every operator comes by here before its first
// kernel, with all its arguments. That includes views, and operators that are composed of others. Whoever reads in another way
// (an address, an array, a file) has a door in Python (doors/tensors.py), which asks here as well.
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

// Defers update `number`, which reads and writes these tensors and `gradient`; others may have parts of the gradient. Returns
// false, and defers nothing, if another deferred update has some of it. The update is made in the calling thread's modes of now
// (autocast, inference, ...).
bool defer(UpdateNumber number, const std::vector<at::Tensor>& own, const at::Tensor& gradient);

// Guards these tensors, besides those that `number` has already. `reached` is called with the number, as an updater is, each time that
// somebody is about to use one of them. Returns false, and guards none, if others lie across one, or, with `alone`, if another thread
// is in an operator: it may use them already.
bool guard(UpdateNumber number, const std::vector<at::Tensor>& tensors, pybind11::object reached, bool alone);

// Notes that it has been made, or is guarded no more.
void carried_out(UpdateNumber number);

// What `number` guards was updated for a step that is not made. Returns false if it guards nothing any more.
bool step_will_not_come(UpdateNumber number);

// A storage that is freed is guarded no more: others get its address.
void end_guards_of(const void* storage, std::uint64_t nbytes);

// Returns address and bytes of the tensors' storages.
std::vector<std::pair<std::uintptr_t, std::size_t>> places_of(const std::vector<at::Tensor>& tensors);

// Says whether nobody else may reach this tensor's memory unseen: it is an arena's and no array shares it, or too small for one.
bool is_unshared(const at::Tensor& tensor);

// Carries out the updates of an operator's arguments, of a tensor, of a range of memory, or of all, which somebody is about to use.
void look_at(at::ArrayRef<const c10::IValue> arguments);
void look_at(const at::Tensor& tensor);
void look_at(const void* address, std::size_t nbytes);
void look_at_all();
void look_before_a_setting();  // of operators changes: all but what was updated for a step that is not made

// Carries out updates that wait; who guards memory is not told.
void carry_out(const std::vector<UpdateNumber>& numbers);
void carry_out_all();

// Makes an update by its number. It is called with the GIL, for one update at a time on each thread. It returns None, or an
// exception type to be raised on this thread: nothing can be raised from within an operator's beginning.
void set_updater(pybind11::object updater);

// Runs an update of the backward pass. Its own operators are not looked at.
void make_early(const pybind11::function& make);

// Runs `make` in the modes of the optimizer's step, and with its thread's arithmetic. Only its own operators are not looked at.
void make_in_its_scene(UpdateNumber number, const pybind11::function& make);

// Forgets updates that wait, in a forked child. What is guarded stays so.
void abandon_deferred();

// Binds what Python calls.
void bind_deferred(pybind11::module_& m);

}  // namespace ebbtide
