// Gathers of rows from a table that does not fit into memory: in the order of the rows, so that each piece of the table comes
// once [Note: pieces]. The same bytes are copied as by PyTorch's kernels, which take all other cases.
#include "gathers.hpp"

#include <ATen/CPUFunctions.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "operands.hpp"
#include "repeatable.hpp"
#include "silence.hpp"

namespace ebbtide {

namespace {

// All that is asked of a table that cannot be one; nothing that is smaller is looked at further.
bool is_large(const at::Tensor& table) {
  const at::TensorImpl& impl = *table.unsafeGetTensorImpl();
  return impl.has_storage() && !impl.has_symbolic_sizes_strides() &&
         table.storage().nbytes() >= least_in_pieces.load(std::memory_order_relaxed);
}

// A dense tensor with the strides that PyTorch gives to a new one, so that a result of such tensors has those, too.
bool is_row_major(const at::Tensor& tensor) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage() || impl.has_symbolic_sizes_strides() || impl.layout() != c10::kStrided || !tensor.device().is_cpu())
    return false;
  if (tensor.is_conj() || tensor.is_neg() || tensor.is_quantized() || tensor.numel() == 0) return false;
  std::int64_t stride = 1;
  for (std::int64_t d = tensor.dim() - 1; d >= 0; stride *= tensor.size(d--)) {
    if (tensor.stride(d) != stride) return false;
  }
  return true;
}

bool comes_by_faults(const at::Tensor& table) {
  if (!is_row_major(table)) return false;
  const void* storage = managed_storage(table);
  return storage != nullptr &&
         the_arena()->comes_by_faults({storage, Access::Read, 0, bytes_of(table, table.storage().nbytes())});
}

constexpr std::size_t kSortedAtOnce = std::size_t{1} << 22;  // rows: what is sorted takes memory that no budget counts

// The rows that an index of a table asks for, by their places in it.
class Rows {
 public:
  Rows(const at::Tensor& index, std::int64_t rows, bool from_the_end)
      : places_(static_cast<std::size_t>(index.numel())), rows_(rows), from_the_end_(from_the_end) {
    if (index.scalar_type() == at::kLong) longs_ = index.const_data_ptr<std::int64_t>();
    if (index.scalar_type() == at::kInt) ints_ = index.const_data_ptr<std::int32_t>();
  }
  std::size_t size() const { return places_; }
  std::int64_t operator[](std::size_t place) const {
    std::int64_t row = longs_ != nullptr ? longs_[place] : ints_[place];
    return row < 0 && from_the_end_ ? row + rows_ : row;
  }
  bool exist() const {  // else PyTorch has something to say about one
    if (longs_ == nullptr && ints_ == nullptr) return false;
    for (std::size_t i = 0; i < places_; ++i) {
      if (std::int64_t row = (*this)[i]; row < 0 || row >= rows_) return false;
    }
    return true;
  }

 private:
  std::size_t places_;
  std::int64_t rows_;
  bool from_the_end_;
  const std::int64_t* longs_ = nullptr;
  const std::int32_t* ints_ = nullptr;
};

// Null where it is not a plain gather of rows. `allocate` makes the result in the way of PyTorch's kernel, so that the step's
// allocations are the same.
template <typename Allocate>
std::optional<at::Tensor> gather(const at::Tensor& table, const at::Tensor& index, bool from_the_end, Allocate allocate) {
  if (!is_large(table) || !comes_by_faults(table) || table.dim() == 0 || !is_row_major(index) || index.numel() == 0)
    return std::nullopt;
  const Rows rows(index, table.size(0), from_the_end);
  if (!rows.exist()) return std::nullopt;
  std::vector<std::int64_t> sizes(index.sizes().begin(), index.sizes().end());
  sizes.insert(sizes.end(), table.sizes().begin() + 1, table.sizes().end());
  at::Tensor result = allocate(sizes);
  std::size_t row_bytes = result.nbytes() / rows.size();
  auto* to = static_cast<char*>(result.mutable_data_ptr());
  const auto* from = static_cast<const char*>(table.const_data_ptr());
  for (std::size_t begin = 0; begin < rows.size(); begin += kSortedAtOnce) {
    std::vector<std::size_t> order(std::min(kSortedAtOnce, rows.size() - begin));
    std::iota(order.begin(), order.end(), begin);
    std::ranges::sort(order, {}, [&](std::size_t i) { return rows[i]; });
    for (std::size_t i : order) std::memcpy(to + i * row_bytes, from + static_cast<std::size_t>(rows[i]) * row_bytes, row_bytes);
  }
  return result;
}

at::Tensor index_select(const at::Tensor& self, std::int64_t dim, const at::Tensor& index) {
  if (self.dim() > 0 && index.dim() == 1 && (dim == 0 || dim == -self.dim())) {
    auto allocate = [&](at::IntArrayRef sizes) {
      at::Tensor result = at::empty({0}, self.options());
      at::native::resize_output(result, sizes);
      return result;
    };
    if (auto gathered = gather(self, index, false, allocate)) return *gathered;
  }
  return at::native::index_select_cpu_(self, dim, index);
}

at::Tensor index(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices) {
  if (indices.size() == 1) {
    if (std::optional<at::Tensor> only = indices.get(0); only.has_value() && only->defined()) {
      at::Tensor converted;  // PyTorch's kernel has one, too
      auto allocate = [&](at::IntArrayRef sizes) {
        if (only->scalar_type() == at::kInt) converted = only->to(at::kLong);
        return at::Tensor(at::detail::empty_cpu(sizes, self.scalar_type()));
      };
      if (auto gathered = gather(self, *only, true, allocate)) return *gathered;
    }
  }
  return at::cpu::index(self, indices);
}

}  // namespace

void install_gathers() {
  static torch::Library* library = nullptr;  // never destroyed: threads may gather while the process ends
  if (library != nullptr) return;
  library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  Silence silence;
  auto is_pytorchs = [](const char* name, const char* overload) {  // else it is the script's, and stays
    auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    return op.has_value() && has_known_kernels(*op);
  };
  if (is_pytorchs("aten::index_select", "")) library->impl("index_select", TORCH_FN(index_select));
  if (is_pytorchs("aten::index", "Tensor")) library->impl("index.Tensor", TORCH_FN(index));
}

}  // namespace ebbtide
