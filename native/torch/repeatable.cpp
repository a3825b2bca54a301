// Tried by tests/training/repeatable.py: each name by what PyTorch's operator database and larger samples call.
#include "repeatable.hpp"

#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "../core/per_thread.hpp"

namespace ebbtide {

namespace {

// Left out: what scatters (threads race where indices meet), linear algebra of LAPACK, transforms of MKL; aten::addbmm_, which
// may resize its argument; aten::mkldnn_rnn_layer and _ctc_loss, whose last results hold bytes that nobody wrote;
// binary_cross_entropy, mse_loss, smooth_l1_loss and soft_margin_loss, whose mean lies in memory for all elements, and
// col2im, whose sums lie in memory for all its columns, with such bytes. Attention is here though its tag says that it
// draws random numbers: on the CPU it refuses to drop anything.
// clang-format off
constexpr auto kRepeatable = std::to_array<std::string_view>({
"aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d", "aten::_addmm_activation", "aten::_cdist_forward",
"aten::_conj_physical", "aten::_euclidean_dist", "aten::_grouped_mm", "aten::_log_softmax", "aten::_logcumsumexp",
"aten::_masked_softmax", "aten::_native_batch_norm_legit.no_stats", "aten::_prelu_kernel", "aten::_safe_softmax",
"aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_softmax", "aten::_to_copy", "aten::_trilinear",
"aten::_unsafe_index.Tensor", "aten::_upsample_bicubic2d_aa", "aten::_upsample_bilinear2d_aa",
"aten::_upsample_nearest_exact1d", "aten::_upsample_nearest_exact2d", "aten::_upsample_nearest_exact3d",
"aten::_weight_norm_interface", "aten::abs", "aten::acos", "aten::acosh", "aten::adaptive_max_pool2d",
"aten::adaptive_max_pool3d", "aten::add.Scalar", "aten::add.Tensor", "aten::addbmm", "aten::addcdiv", "aten::addcmul",
"aten::addmm", "aten::addmv", "aten::addr", "aten::affine_grid_generator", "aten::all", "aten::all.dim",
"aten::all.dims", "aten::amax", "aten::amin", "aten::aminmax", "aten::angle", "aten::any", "aten::any.dim",
"aten::any.dims", "aten::arange", "aten::arange.start", "aten::arange.start_step", "aten::argmax", "aten::argmin",
"aten::asin", "aten::asinh", "aten::atan", "aten::atan2", "aten::atanh", "aten::avg_pool2d", "aten::avg_pool3d",
"aten::baddbmm", "aten::binary_cross_entropy_with_logits", "aten::bitwise_and.Scalar",
"aten::bitwise_and.Scalar_Tensor", "aten::bitwise_and.Tensor", "aten::bitwise_left_shift.Scalar_Tensor",
"aten::bitwise_left_shift.Tensor", "aten::bitwise_left_shift.Tensor_Scalar", "aten::bitwise_not",
"aten::bitwise_or.Scalar", "aten::bitwise_or.Scalar_Tensor", "aten::bitwise_or.Tensor",
"aten::bitwise_right_shift.Scalar_Tensor", "aten::bitwise_right_shift.Tensor",
"aten::bitwise_right_shift.Tensor_Scalar", "aten::bitwise_xor.Scalar", "aten::bitwise_xor.Scalar_Tensor",
"aten::bitwise_xor.Tensor", "aten::block_diag", "aten::bmm", "aten::bucketize.Scalar", "aten::bucketize.Tensor",
"aten::cat", "aten::ceil", "aten::celu", "aten::channel_shuffle", "aten::clamp", "aten::clamp.Tensor",
"aten::clamp_max", "aten::clamp_max.Tensor", "aten::clamp_min", "aten::clamp_min.Tensor", "aten::clone",
"aten::complex", "aten::constant_pad_nd", "aten::conv_tbc", "aten::convolution", "aten::copysign.Scalar",
"aten::copysign.Tensor", "aten::cos", "aten::cosh", "aten::count_nonzero", "aten::count_nonzero.dim_IntList",
"aten::cummax", "aten::cummin", "aten::cumprod", "aten::cumsum", "aten::deg2rad", "aten::diag_embed",
"aten::diagonal_scatter", "aten::digamma", "aten::dist", "aten::div.Scalar", "aten::div.Scalar_mode",
"aten::div.Tensor", "aten::div.Tensor_mode", "aten::dot", "aten::elu", "aten::embedding", "aten::eq.Scalar",
"aten::eq.Tensor", "aten::erf", "aten::erfc", "aten::erfinv", "aten::exp", "aten::exp2", "aten::expm1", "aten::eye",
"aten::eye.m", "aten::flip", "aten::floor", "aten::floor_divide", "aten::floor_divide.Scalar", "aten::fmax",
"aten::fmin", "aten::fmod.Scalar", "aten::fmod.Tensor", "aten::frac", "aten::fractional_max_pool2d",
"aten::fractional_max_pool3d", "aten::frexp.Tensor", "aten::full", "aten::gather", "aten::gcd", "aten::ge.Scalar",
"aten::ge.Tensor", "aten::gelu", "aten::glu", "aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::gt.Scalar",
"aten::gt.Tensor", "aten::hardshrink", "aten::hardsigmoid", "aten::hardswish", "aten::hardtanh", "aten::heaviside",
"aten::huber_loss", "aten::hypot", "aten::i0", "aten::igamma", "aten::igammac", "aten::im2col", "aten::index.Tensor",
"aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor", "aten::index_select", "aten::isin.Scalar_Tensor",
"aten::isin.Tensor_Scalar", "aten::isin.Tensor_Tensor", "aten::isinf", "aten::isnan", "aten::isneginf",
"aten::isposinf", "aten::kthvalue", "aten::lcm", "aten::ldexp.Tensor", "aten::le.Scalar", "aten::le.Tensor",
"aten::leaky_relu", "aten::lerp.Scalar", "aten::lerp.Tensor", "aten::lgamma", "aten::linalg_cross",
"aten::linalg_vector_norm", "aten::linspace", "aten::log", "aten::log10", "aten::log1p", "aten::log2",
"aten::log_sigmoid_forward", "aten::logaddexp", "aten::logaddexp2", "aten::logcumsumexp", "aten::logical_and",
"aten::logical_not", "aten::logical_or", "aten::logical_xor", "aten::logit", "aten::logsumexp", "aten::lt.Scalar",
"aten::lt.Tensor", "aten::masked_fill.Scalar", "aten::masked_fill.Tensor", "aten::masked_scatter", "aten::max",
"aten::max.dim", "aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices", "aten::maximum", "aten::mean",
"aten::mean.dim", "aten::median", "aten::median.dim", "aten::min", "aten::min.dim", "aten::minimum", "aten::mish",
"aten::mkldnn_convolution", "aten::mm", "aten::mul.Scalar", "aten::mul.Tensor",
"aten::multi_margin_loss", "aten::mv", "aten::mvlgamma", "aten::nan_to_num", "aten::nansum", "aten::native_batch_norm",
"aten::native_channel_shuffle", "aten::native_group_norm", "aten::native_layer_norm", "aten::ne.Scalar",
"aten::ne.Tensor", "aten::neg", "aten::nextafter", "aten::nll_loss2d_forward", "aten::nll_loss_forward",
"aten::norm.Scalar", "aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype", "aten::norm.ScalarOpt_dtype",
"aten::ones", "aten::pixel_shuffle", "aten::pixel_unshuffle", "aten::polar", "aten::polygamma", "aten::pow.Scalar",
"aten::pow.Tensor_Scalar", "aten::pow.Tensor_Tensor", "aten::prod", "aten::prod.dim_int", "aten::rad2deg",
"aten::reciprocal", "aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d", "aten::relu",
"aten::remainder.Scalar", "aten::remainder.Scalar_Tensor", "aten::remainder.Tensor", "aten::renorm", "aten::repeat",
"aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d", "aten::roll", "aten::rot90",
"aten::round", "aten::round.decimals", "aten::rsqrt", "aten::rsub.Scalar", "aten::rsub.Tensor", "aten::scalar_tensor",
"aten::searchsorted.Scalar", "aten::searchsorted.Tensor", "aten::select_scatter", "aten::sgn", "aten::sigmoid",
"aten::sign", "aten::signbit", "aten::silu", "aten::sin", "aten::sinc", "aten::sinh", "aten::slice_scatter",
"aten::softplus", "aten::softshrink", "aten::sort",
"aten::sort.stable", "aten::special_entr", "aten::special_erfcx", "aten::special_i0e", "aten::special_i1",
"aten::special_i1e", "aten::special_log_ndtr", "aten::special_ndtri", "aten::special_xlog1py",
"aten::special_xlog1py.other_scalar", "aten::special_xlog1py.self_scalar", "aten::special_zeta",
"aten::special_zeta.other_scalar", "aten::special_zeta.self_scalar", "aten::sqrt", "aten::stack",
"aten::std.correction", "aten::std_mean.correction", "aten::sub.Scalar", "aten::sub.Tensor", "aten::sum",
"aten::sum.dim_IntList", "aten::take", "aten::tan", "aten::tanh", "aten::threshold", "aten::topk", "aten::trace",
"aten::tril", "aten::tril_indices", "aten::triu", "aten::triu_indices", "aten::trunc", "aten::upsample_bicubic2d",
"aten::upsample_bilinear2d", "aten::upsample_linear1d", "aten::upsample_nearest1d", "aten::upsample_nearest2d",
"aten::upsample_nearest3d", "aten::upsample_trilinear3d", "aten::var.correction", "aten::var_mean.correction",
"aten::vdot", "aten::where.self", "aten::xlogy.Scalar_Other", "aten::xlogy.Scalar_Self", "aten::xlogy.Tensor",
"aten::zeros",
});

constexpr auto kRepeatableInPlace = std::to_array<std::string_view>({
"aten::abs_", "aten::acos_", "aten::acosh_", "aten::add_.Scalar", "aten::add_.Tensor", "aten::addcdiv_",
"aten::addcmul_", "aten::addmm_", "aten::addmv_", "aten::addr_", "aten::asin_", "aten::asinh_", "aten::atan2_",
"aten::atan_", "aten::atanh_", "aten::baddbmm_", "aten::bitwise_and_.Scalar", "aten::bitwise_and_.Tensor",
"aten::bitwise_left_shift_.Tensor", "aten::bitwise_left_shift_.Tensor_Scalar", "aten::bitwise_not_",
"aten::bitwise_or_.Scalar", "aten::bitwise_or_.Tensor", "aten::bitwise_right_shift_.Tensor",
"aten::bitwise_right_shift_.Tensor_Scalar", "aten::bitwise_xor_.Scalar", "aten::bitwise_xor_.Tensor", "aten::ceil_",
"aten::celu_", "aten::clamp_", "aten::clamp_.Tensor", "aten::clamp_max_", "aten::clamp_max_.Tensor", "aten::clamp_min_",
"aten::clamp_min_.Tensor", "aten::conj_physical_", "aten::copy_", "aten::copysign_.Scalar", "aten::copysign_.Tensor",
"aten::cos_", "aten::cosh_", "aten::cumprod_", "aten::cumsum_", "aten::deg2rad_", "aten::digamma_", "aten::div_.Scalar",
"aten::div_.Scalar_mode", "aten::div_.Tensor", "aten::div_.Tensor_mode", "aten::elu_", "aten::eq_.Scalar",
"aten::eq_.Tensor", "aten::erf_", "aten::erfc_", "aten::erfinv_", "aten::exp2_", "aten::exp_", "aten::expm1_",
"aten::fill_.Scalar", "aten::fill_.Tensor", "aten::floor_", "aten::floor_divide_.Scalar", "aten::floor_divide_.Tensor",
"aten::fmod_.Scalar", "aten::fmod_.Tensor", "aten::frac_", "aten::gcd_", "aten::ge_.Scalar", "aten::ge_.Tensor",
"aten::gelu_", "aten::gt_.Scalar", "aten::gt_.Tensor", "aten::hardsigmoid_", "aten::hardswish_", "aten::hardtanh_",
"aten::heaviside_", "aten::hypot_", "aten::i0_", "aten::igamma_", "aten::igammac_", "aten::index_fill_.int_Scalar",
"aten::index_fill_.int_Tensor", "aten::lcm_", "aten::ldexp_", "aten::le_.Scalar", "aten::le_.Tensor",
"aten::leaky_relu_", "aten::lerp_.Scalar", "aten::lerp_.Tensor", "aten::lgamma_", "aten::log10_", "aten::log1p_",
"aten::log2_", "aten::log_", "aten::logical_and_", "aten::logical_not_", "aten::logical_or_", "aten::logical_xor_",
"aten::logit_", "aten::lt_.Scalar", "aten::lt_.Tensor", "aten::masked_fill_.Scalar", "aten::masked_fill_.Tensor",
"aten::masked_scatter_", "aten::mish_", "aten::mul_.Scalar", "aten::mul_.Tensor", "aten::mvlgamma_",
"aten::nan_to_num_", "aten::ne_.Scalar", "aten::ne_.Tensor", "aten::neg_", "aten::nextafter_", "aten::polygamma_",
"aten::pow_.Scalar", "aten::pow_.Tensor", "aten::rad2deg_", "aten::reciprocal_", "aten::relu_",
"aten::remainder_.Scalar", "aten::remainder_.Tensor", "aten::renorm_", "aten::round_", "aten::round_.decimals",
"aten::rsqrt_", "aten::sgn_", "aten::sigmoid_", "aten::sign_", "aten::silu_", "aten::sin_", "aten::sinc_",
"aten::sinh_", "aten::sqrt_", "aten::sub_.Scalar", "aten::sub_.Tensor", "aten::tan_", "aten::tanh_", "aten::threshold_",
"aten::tril_", "aten::triu_", "aten::trunc_", "aten::xlogy_.Scalar_Other", "aten::xlogy_.Tensor", "aten::zero_",
});

// Of those above, the ones that may run again on an accelerator, all overloads, in place too. No GPU has run this, so each has to be
// plain: one number is made of the same places of its operands (copies among them), or a row by one block in a fixed order, or it is a
// product: cuBLAS makes the same bits again of the same shapes, types and alignments, with a workspace of the stream's own.
// Left out: what may add by atomics, or scans; convolutions, which cuDNN may choose by their time; sums of a whole tensor; sorts;
// batch norms; attention, which draws random numbers; special functions that PyTorch compiles when they are first called. None is in
// the list of torch.use_deterministic_algorithms, but for what is not meant here (backward passes, sparse tensors).
constexpr auto kAlsoOnAccelerators = std::to_array<std::string_view>({
"aten::_log_softmax", "aten::_prelu_kernel", "aten::_softmax", "aten::_to_copy", "aten::abs", "aten::acos",
"aten::acosh", "aten::add", "aten::addcdiv", "aten::addcmul", "aten::addmm", "aten::angle", "aten::arange",
"aten::asin", "aten::asinh", "aten::atan", "aten::atan2", "aten::atanh", "aten::baddbmm", "aten::bitwise_and",
"aten::bitwise_left_shift", "aten::bitwise_not", "aten::bitwise_or", "aten::bitwise_right_shift", "aten::bitwise_xor",
"aten::bmm", "aten::cat", "aten::ceil", "aten::celu", "aten::clamp", "aten::clamp_max", "aten::clamp_min",
"aten::clone", "aten::complex", "aten::constant_pad_nd", "aten::copy", "aten::copysign", "aten::cos", "aten::cosh",
"aten::deg2rad", "aten::div", "aten::elu", "aten::embedding", "aten::eq", "aten::erf", "aten::erfc", "aten::erfinv",
"aten::exp", "aten::exp2", "aten::expm1", "aten::fill", "aten::flip", "aten::floor", "aten::floor_divide",
"aten::fmax", "aten::fmin", "aten::fmod", "aten::frac", "aten::full", "aten::gather", "aten::ge", "aten::gelu",
"aten::glu", "aten::gt", "aten::hardshrink", "aten::hardsigmoid", "aten::hardswish", "aten::hardtanh",
"aten::heaviside", "aten::hypot", "aten::index_select", "aten::isinf", "aten::isnan", "aten::le", "aten::leaky_relu",
"aten::lerp", "aten::log", "aten::log10", "aten::log1p", "aten::log2", "aten::log_sigmoid_forward", "aten::logaddexp",
"aten::logaddexp2", "aten::logical_and", "aten::logical_not", "aten::logical_or", "aten::logical_xor", "aten::logit",
"aten::lt", "aten::masked_fill", "aten::maximum", "aten::minimum", "aten::mish", "aten::mm", "aten::mul",
"aten::nan_to_num", "aten::native_layer_norm", "aten::ne", "aten::neg", "aten::ones", "aten::polar", "aten::pow",
"aten::rad2deg", "aten::reciprocal", "aten::relu", "aten::remainder", "aten::repeat", "aten::roll", "aten::round",
"aten::rsqrt", "aten::rsub", "aten::scalar_tensor", "aten::sgn", "aten::sigmoid", "aten::sign", "aten::signbit",
"aten::silu", "aten::sin", "aten::sinc", "aten::sinh", "aten::softplus", "aten::softshrink", "aten::sqrt",
"aten::stack", "aten::sub", "aten::tan", "aten::tanh", "aten::threshold", "aten::tril", "aten::triu", "aten::trunc",
"aten::where", "aten::xlogy", "aten::zero", "aten::zeros",
});
// clang-format on

static_assert(std::ranges::is_sorted(kAlsoOnAccelerators));
static_assert(std::ranges::is_sorted(kRepeatable) && std::ranges::is_sorted(kRepeatableInPlace));

// A set that is replaced lives on: a child of fork() may not wait for a lock.
using Names = std::atomic<const std::set<std::string>*>;
Names left_out = nullptr, added = nullptr;

bool is_among(const Names& names, const c10::OperatorName& op) {
  const auto* known = names.load();
  return known != nullptr && (known->contains(op.name) || known->contains(c10::toString(op)));
}

std::atomic<bool> on_an_accelerator = false;
std::atomic<std::uint64_t> version = 1;

constexpr std::array kKeys{"CPU: ",          "AutogradCPU: ",  "AutocastCPU: ",     "CUDA: ",
                           "AutogradCUDA: ", "AutocastCUDA: ", "ADInplaceOrView: ", "BackendSelect: "};

constexpr std::string_view kAt = "registered at ", kGenerated = "build/aten/src/ATen/RegisterCPU";

// Where PyTorch lay when it was compiled, as an operator's table has it. Empty: it does not tell.
const std::string& root_of_pytorch() {
  static const std::string root = [] {
    auto op = c10::Dispatcher::singleton().findSchema({"aten::empty", "memory_format"});
    std::string table = op ? op->dumpComputedTable() : "";
    std::size_t end = table.find(kGenerated), begin = table.rfind(kAt, end);
    return end == std::string::npos || begin == std::string::npos ? ""
                                                                  : table.substr(begin + kAt.size(), end - begin - kAt.size());
  }();
  return root;
}

// Of a line of a dispatch table: "CPU: registered at /pytorch/build/aten/src/ATen/RegisterCPU.cpp:12 [kernel]".
bool tells_of_a_kernel(std::string_view line) {
  bool asked = std::ranges::any_of(kKeys, [&](std::string_view key) { return line.starts_with(key); });
  return asked && line.find("registered") != std::string_view::npos;
}

bool is_pytorchs(std::string_view line) {
  std::size_t at = line.find(kAt);
  if (at == std::string_view::npos) return false;
  std::string_view file = line.substr(at + kAt.size());
  for (std::string_view root :
       {std::string_view(root_of_pytorch()), std::string_view("../")}) {  // some builds name files from there
    if (root.empty() || !file.starts_with(root)) continue;
    std::string_view rest = file.substr(root.size());
    if (rest.starts_with("build/aten/src/ATen/") || rest.starts_with("aten/src/ATen/") || rest.starts_with("torch/csrc/"))
      return true;
  }
  return false;
}

// It would need the interpreter's lock, which whoever waits for its result may hold. Code that is typed lies in "<stdin>" or the like.
bool is_pythons(std::string_view line) {
  return std::ranges::any_of(std::array<std::string_view, 3>{".py:", "registered at <", "registered at /dev/null"},
                             [&](std::string_view mark) { return line.find(mark) != std::string_view::npos; });
}

int take_loads(dl_phdr_info* info, std::size_t, void* loads) {
  *static_cast<unsigned long long*>(loads) = info->dlpi_adds;
  return 1;
}

// Counts the libraries that this process has loaded. One of them may bring kernels, of which nobody hears.
unsigned long long libraries_loaded() {
  unsigned long long loads = 0;
  dl_iterate_phdr(take_loads, &loads);
  return loads;
}

bool may_repeat_here(const c10::OperatorName& op) {
  if (!on_an_accelerator) return true;
  std::string_view name = op.name;
  if (name.ends_with('_')) name.remove_suffix(1);
  return std::ranges::binary_search(kAlsoOnAccelerators, name);
}

bool makes_its_results(const c10::FunctionSchema& schema) {
  return std::ranges::none_of(schema.returns(), [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

template <std::size_t kSize>
bool has(const std::array<std::string_view, kSize>& table, const c10::OperatorName& op) {
  return std::ranges::binary_search(table, std::string_view(c10::toString(op))) && may_repeat_here(op) && !is_among(left_out, op);
}

}  // namespace

bool is_repeatable(const c10::OperatorName& op) {
  return has(kRepeatable, op) || (is_among(added, op) && !is_among(left_out, op));
}

bool is_repeatable_in_place(const c10::OperatorName& op) { return has(kRepeatableInPlace, op); }

bool is_repeatable_out(const c10::OperatorName& op) {
  auto first = std::ranges::lower_bound(kRepeatable, std::string_view(op.name));
  bool known = first != kRepeatable.end() && first->substr(0, first->find('.')) == op.name;
  return known && may_repeat_here(op) && op.overload_name.ends_with("out") && !is_among(left_out, op);
}

bool has_known_kernels(const c10::OperatorHandle& op) {
  bool is_added = is_among(added, op.operator_name());
  if (is_added && (op.schema().is_mutable() || !makes_its_results(op.schema()))) return false;
  std::string table = op.dumpComputedTable();
  for (std::string_view rest = table; !rest.empty();) {
    std::size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
    std::string_view line = rest.substr(0, end);
    if (tells_of_a_kernel(line) && (is_added ? is_pythons(line) : !is_pytorchs(line))) return false;
    rest.remove_prefix(end);
  }
  return true;
}

namespace {

struct KnownKernels {
  std::pair<unsigned long long, std::uint64_t> looked_after;
  std::unordered_map<c10::OperatorName, bool> known;
};

class Comings final : public c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override { ++version; }
  void onOperatorDeregistered(const c10::OperatorHandle&) override { ++version; }
};

}  // namespace

bool still_has_known_kernels(const c10::OperatorHandle& op) {
  auto& [looked_after, known] = of_this_thread<KnownKernels>();
  if (std::pair now{libraries_loaded(), version_of_operators()}; std::exchange(looked_after, now) != now) known.clear();
  auto [found, is_new] = known.try_emplace(op.operator_name(), false);
  if (is_new) found->second = has_known_kernels(op);
  return found->second;
}

void look_whether_kernels_came() {
  static std::atomic<unsigned long long> loads = 0;
  if (unsigned long long now = libraries_loaded(); loads.exchange(now) != now) look_again_what_repeats();
}

void hear_of_operators() {
  static const auto* heard = new auto(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Comings>()));
  static_cast<void>(heard);
}

std::uint64_t version_of_operators() { return version; }

void look_again_what_repeats() { ++version; }

void repeat_on_an_accelerator() { on_an_accelerator = true; }

std::span<const std::string_view> operators_repeatable_on_accelerators() { return kAlsoOnAccelerators; }

void change_repeatable(std::set<std::string> without, std::set<std::string> also) {
  left_out = new std::set<std::string>(std::move(without));
  added = new std::set<std::string>(std::move(also));
  look_again_what_repeats();
}

std::span<const std::string_view> repeatable_operators() { return kRepeatable; }

std::span<const std::string_view> operators_repeatable_in_place() { return kRepeatableInPlace; }

}  // namespace ebbtide
