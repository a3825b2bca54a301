// Names the operators whose result depends on their inputs alone: run again, they make the same bits.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace ebbtide {

// Says whether the operator allocates its result, writes to nothing else, and makes the same bits when it runs again.
// Callers MUST see to what a name does not say:
// - All tensors are dense, on one device (a number may be on the CPU), and wrapped by nothing: no subclass, no vmap. They have the sizes, strides, offsets,
//   types, conjugate and negative bits that they had. A number that PyTorch wrapped in a tensor is still marked as wrapped.
// - Operands and result lie where they lay, or a multiple of 64 bytes from there. Products, convolutions and attention have
//   other bits elsewhere.
// - The number of threads, the default type of numbers and the settings of PyTorch, MKL and oneDNN are those of the first run.
//   Whether gradients are recorded makes no difference.
// - aten::native_batch_norm writes to its running statistics where it trains, which no schema says. Run again, it gets none in
//   place of them, and makes the same bits.
bool is_repeatable(const c10::OperatorName& op);

// The same of operators that write to their first argument alone: what it holds afterwards depends on what the arguments held.
// Another argument may lie in the storage that is written to. aten::copy_, fill_ and zero_ read nothing of the first argument.
bool is_repeatable_in_place(const c10::OperatorName& op);

// The same of those that fill a result that others allocated: operators above call them for that.
bool is_repeatable_out(const c10::OperatorName& op);

// Says whether all that runs on a CPU or a CUDA device when the operator is called is PyTorch's own. torch.library gives operators
// other kernels, and so does a C++ extension. What those compute, nobody has tried: but who has added an operator's name says so.
// That one has to make its results, to change nothing, and to run without Python.
bool has_known_kernels(const c10::OperatorHandle& op);

// The same of an operator that had them when it was looked at: it is quick, unless a library was loaded since.
bool still_has_known_kernels(const c10::OperatorHandle& op);

// Above 0. It changes where operators come or go, or one that was repeatable may not be any more: kernels may have come, and names
// may have been left out.
std::uint64_t version_of_operators();
void hear_of_operators();  // from now on
void look_again_what_repeats();
void look_whether_kernels_came();  // with a library

// From now on this process's operators run on an accelerator, where fewer repeat.
void repeat_on_an_accelerator();

// The first do not count as repeatable from now on, and the others do, whatever the table says. "aten::silu" is every overload of it.
void change_repeatable(std::set<std::string> without, std::set<std::string> also);

std::span<const std::string_view> repeatable_operators();
std::span<const std::string_view> operators_repeatable_in_place();
std::span<const std::string_view> operators_repeatable_on_accelerators();  // without overloads and final underscores

}  // namespace ebbtide
