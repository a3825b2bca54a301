// The arena's counters and fixed tables as Python has them.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>

#include "../core/counters.hpp"

namespace ebbtide {

template <typename T, std::size_t N>
pybind11::tuple as_tuple(const std::array<T, N>& values) {
  pybind11::tuple result(N);
  for (std::size_t i = 0; i < N; ++i) result[i] = values[i];
  return result;
}

pybind11::dict as_dict(const Counters& c);  // the names of Counters in _torch.pyi

}  // namespace ebbtide
