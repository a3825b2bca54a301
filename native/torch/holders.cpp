#include "holders.hpp"

#include <ATen/MapAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "allocator.hpp"
#include "cpp_owners.hpp"
#include "plain_recorder.hpp"

namespace ebbtide {

namespace {

c10::DeleterFnPtr slice_deleter = nullptr;

constexpr const char* kUnknown =
    "its memory is held by something that neither PyTorch nor Python lists (a NumPy array, DLPack, a library, a function's argument)";
constexpr const char* kOverlap = "another storage lies in the same memory";
constexpr const char* kMapped = "a file that is mapped and only read: its pages are the kernel's page cache";
constexpr const char* kWhole = "the storage that it is a slice of is held by something else too";

struct Tensor {
  c10::TensorImpl* impl;
  std::uint32_t explained;  // references
};

struct Storage {
  c10::StorageImpl* impl;
  std::uint32_t explained;  // references
  std::vector<std::size_t> tensors{};
  bool overlapped = false;
};

template <typename Impl>
PyObject* wrapper_of(Impl* impl) {
  return impl->pyobj_slot()->load_pyobj();
}

template <typename Impl>
std::uint32_t references(Impl* impl) {
  return c10::raw::intrusive_ptr::use_count(impl);
}

template <typename Impl>
Py_ssize_t preserved(Impl* impl) {  // what C++ holds of the Python object, as long as C++ holds the other
  return references(impl) > 1 ? 1 : 0;
}

// The storage that this one is a slice of, or null.
c10::StorageImpl* whole_of(const c10::DataPtr& data) {
  bool slice = slice_deleter != nullptr && data.get_deleter() == slice_deleter;
  return slice ? static_cast<c10::StorageImpl*>(data.get_context()) : nullptr;
}

// The pointer as it is: no copy on write, no complaint.
const c10::DataPtr& data_of(c10::StorageImpl& storage) { return storage._mutable_data_ptr_no_checks(); }

using Accumulator = decltype(std::declval<torch::autograd::AutogradMeta&>().grad_accumulator_.lock());

// Another thread may be making it, without the GIL: then none, which leaves its reference unexplained.
Accumulator accumulator_of(torch::autograd::AutogradMeta& meta) {
  std::unique_lock lock(meta.mutex_, std::try_to_lock);
  return lock ? meta.grad_accumulator_.lock() : Accumulator();
}

class Census {
 public:
  Census(std::vector<PyObject*> objects, PyObject* owners) : objects_(std::move(objects)) {
    for (PyObject* object : objects_) {
      if (!PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass))) continue;
      const at::Tensor& tensor = THPVariable_Unpack(object);
      if (tensor.defined()) number(tensor.unsafeGetTensorImpl());
    }
    if (owners != nullptr) each_held_in_cpp(owners, [this](const at::Tensor& held) { explain(held); });
    for (std::size_t i = 0; i < tensors_.size(); ++i) explain_from(*tensors_[i].impl);  // which may find more
    for (std::size_t i = 0; i < tensors_.size(); ++i) explain_gradient(*tensors_[i].impl);
    for (std::size_t i = 0; i < tensors_.size(); ++i) place(i);
    for (std::size_t i = 0; i < storages_.size(); ++i) explain_whole(*storages_[i].impl);
    note_overlaps();
  }

  std::vector<std::size_t> unmanaged(std::size_t min_bytes) {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      c10::StorageImpl& storage = *storages_[i].impl;
      const void* address = data_of(storage).get();
      if (storages_[i].tensors.empty() || address == nullptr || the_arena()->contains(address)) continue;
      if (storage.nbytes() >= std::max<std::size_t>(min_bytes, 1)) found.push_back(i);
    }
    return found;
  }

  void count_names(PyObject* locals) {
    for (const Tensor& tensor : tensors_) names_.try_emplace(wrapper_of(tensor.impl));
    for (const Storage& storage : storages_) names_.try_emplace(wrapper_of(storage.impl));
    for (PyObject* object : objects_) Py_TYPE(object)->tp_traverse(object, &Census::named, this);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(locals); ++i) named(PyList_GET_ITEM(locals, i), this);
  }

  std::string holder(std::size_t number) {
    const Storage& storage = storages_[number];
    if (std::string other = holder_of(data_of(*storage.impl)); !other.empty()) return other;
    if (storage.overlapped) return kOverlap;
    if (references(storage.impl) != storage.explained) return kUnknown;
    bool known = std::ranges::all_of(storage.tensors, [this](std::size_t tensor) { return is_explained(tensors_[tensor]); });
    if (!known) return kUnknown;
    return is_mapped(*storage.impl) && !is_of_parameter(storage) &&
                   !is_written(data_of(*storage.impl).get(), storage.impl->nbytes())
               ? kMapped
               : "";
  }

  c10::StorageImpl* storage(std::size_t number) { return storages_[number].impl; }

 private:
  std::size_t number(c10::TensorImpl* impl) {
    auto [entry, is_new] = tensor_numbers_.try_emplace(impl, tensors_.size());
    if (is_new) tensors_.push_back({impl, wrapper_of(impl) != nullptr ? 1u : 0u});
    return entry->second;
  }

  Storage& storage_of(c10::StorageImpl* impl) {
    auto [entry, is_new] = storage_numbers_.try_emplace(impl, storages_.size());
    if (is_new) storages_.push_back({impl, wrapper_of(impl) != nullptr ? 1u : 0u});
    return storages_[entry->second];
  }

  void explain(const at::Tensor& held) {
    if (held.defined()) ++tensors_[number(held.unsafeGetTensorImpl())].explained;
  }

  // Explains the references that this tensor's autograd metadata holds, but for its gradient.
  void explain_from(c10::TensorImpl& tensor) {
    auto* meta = static_cast<torch::autograd::AutogradMeta*>(tensor.autograd_meta());
    if (meta == nullptr) return;
    if (Accumulator node = accumulator_of(*meta)) {
      auto* accumulator = dynamic_cast<torch::autograd::AccumulateGrad*>(node.get());
      if (accumulator != nullptr) explain(accumulator->variable);
    }
    if (!meta->is_view_) return;
    auto* view = static_cast<torch::autograd::DifferentiableViewMeta*>(meta);
    if (view->has_bw_view()) explain(view->get_backward_view().base_);
    if (view->has_fw_view() && !view->shared_view_info()) explain(view->get_forward_view().base_);
  }

  // Only of a gradient that is known: while another thread frees one, without the GIL, its tensor still refers to it. One that
  // Python has never seen stays where it is.
  void explain_gradient(c10::TensorImpl& tensor) {
    auto* meta = static_cast<torch::autograd::AutogradMeta*>(tensor.autograd_meta());
    if (meta == nullptr) return;
    auto known = tensor_numbers_.find(meta->grad_.unsafeGetTensorImpl());
    if (known != tensor_numbers_.end()) ++tensors_[known->second].explained;
  }

  void place(std::size_t tensor) {
    c10::TensorImpl& impl = *tensors_[tensor].impl;
    if (!impl.has_storage() || !impl.unsafe_storage()) return;
    c10::StorageImpl* storage = impl.unsafe_storage().unsafeGetStorageImpl();
    if (storage->device_type() != c10::DeviceType::CPU || storage->sym_nbytes().is_heap_allocated()) return;
    Storage& known = storage_of(storage);
    ++known.explained;
    known.tensors.push_back(tensor);
  }

  void explain_whole(c10::StorageImpl& slice) {
    if (c10::StorageImpl* whole = whole_of(data_of(slice))) ++storage_of(whole).explained;
  }

  void note_overlaps() {
    struct Range {
      std::uintptr_t begin, end;
      std::size_t storage;
    };
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i].tensors.empty()) continue;  // a whole of which only slices are used
      auto begin = reinterpret_cast<std::uintptr_t>(data_of(*storages_[i].impl).get());
      if (begin != 0 && storages_[i].impl->nbytes() > 0) ranges.push_back({begin, begin + storages_[i].impl->nbytes(), i});
    }
    std::ranges::sort(ranges, {}, &Range::begin);
    Range reached{0, 0, 0};  // of those before, the one that ends last
    for (const Range& range : ranges) {
      if (range.begin < reached.end) storages_[range.storage].overlapped = storages_[reached.storage].overlapped = true;
      if (range.end > reached.end) reached = range;
    }
  }

  static bool is_mapped(c10::StorageImpl& storage) {
    c10::StorageImpl* whole = &storage;
    while (c10::StorageImpl* larger = whole_of(data_of(*whole))) whole = larger;
    return at::MapAllocator::fromDataPtr(data_of(*whole)) != nullptr;
  }

  bool is_of_parameter(const Storage& storage) {
    return std::ranges::any_of(storage.tensors, [this](std::size_t tensor) {
      PyObject* wrapper = wrapper_of(tensors_[tensor].impl);
      return wrapper != nullptr && PyType_IsSubtype(Py_TYPE(wrapper), reinterpret_cast<PyTypeObject*>(ParameterClass)) != 0;
    });
  }

  // "" when `data` lies in memory that its storage, or the whole that this is a slice of, made for itself.
  std::string holder_of(const c10::DataPtr& data) {
    // It is from the default allocator, or through ours while it managed nothing: before, between and after sessions.
    c10::DeleterFnPtr deleter = data.get_deleter();
    if (deleter == c10::GetDefaultCPUAllocator()->raw_deleter() ||
        (the_allocator() != nullptr && deleter == the_allocator()->raw_deleter()))
      return "";
    if (deleter == watched_deleter()) return "";
    if (at::RefcountedMapAllocator::fromDataPtr(data) != nullptr) return "in shared memory";
    if (auto* map = at::MapAllocator::fromDataPtr(data)) {
      bool shared = (map->flags() & (at::ALLOCATOR_MAPPED_SHARED | at::ALLOCATOR_MAPPED_SHAREDMEM)) != 0;
      return shared ? "a file mapped for sharing" : "";
    }
    if (c10::StorageImpl* whole = whole_of(data)) {
      PyObject* wrapper = wrapper_of(whole);  // from which Python could make more slices
      bool ours =
          references(whole) == storage_of(whole).explained && (wrapper == nullptr || Py_REFCNT(wrapper) == preserved(whole));
      return ours ? holder_of(data_of(*whole)) : kWhole;
    }
    return "its memory belongs to another library (from_numpy, DLPack, from_blob)";
  }

  static int named(PyObject* object, void* census) {
    auto& names = static_cast<Census*>(census)->names_;
    if (auto entry = names.find(object); entry != names.end()) ++entry->second;
    return 0;
  }

  bool is_explained(const Tensor& tensor) {
    if (references(tensor.impl) != tensor.explained) return false;
    PyObject* wrapper = wrapper_of(tensor.impl);
    if (wrapper == nullptr) return true;
    return Py_REFCNT(wrapper) == names_[wrapper] + preserved(tensor.impl);
  }

  std::vector<PyObject*> objects_;
  std::vector<Tensor> tensors_;
  std::vector<Storage> storages_;
  std::unordered_map<c10::TensorImpl*, std::size_t> tensor_numbers_;
  std::unordered_map<c10::StorageImpl*, std::size_t> storage_numbers_;
  std::unordered_map<PyObject*, Py_ssize_t> names_;  // references to their Python objects, by other objects and by functions
};

}  // namespace

void learn_slice_deleter(const c10::StorageImpl& slice) { slice_deleter = slice.data_ptr().get_deleter(); }

c10::DataPtr slice_of(c10::Storage whole, std::size_t begin) {
  char* memory = static_cast<char*>(whole.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
  return {memory + begin, whole.unsafeReleaseStorageImpl(), slice_deleter, c10::Device(c10::DeviceType::CPU)};
}

bool is_slice(const c10::DataPtr& data) { return whole_of(data) != nullptr; }

std::vector<Found> find_unmanaged(std::vector<PyObject*> objects, PyObject* owners, PyObject* locals, std::size_t min_bytes) {
  Census census(std::move(objects), owners);
  std::vector<std::size_t> numbers = census.unmanaged(min_bytes);
  if (numbers.empty()) return {};
  census.count_names(locals);
  std::vector<Found> found;
  for (std::size_t number : numbers) {
    std::string holder = census.holder(number);
    found.push_back({c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(census.storage(number)), std::move(holder)});
  }
  return found;
}

}  // namespace ebbtide
