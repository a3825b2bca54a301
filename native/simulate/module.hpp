// The parts of ebbtide._planning, and the columns that go between them and NumPy.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace ebbtide {

template <typename T>
using Column = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;

using Ints = Column<std::int64_t>;
using Floats = Column<double>;
using Flags = Column<std::uint8_t>;

template <typename T>
std::vector<T> copied(const Column<T>& column) {
  return {column.data(), column.data() + column.size()};
}

template <typename T>
pybind11::array_t<T> shared(const std::vector<T>& column) {
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(column.size()), column.data());
}

}  // namespace ebbtide

namespace ebbtide::simulate {

void bind_engine(pybind11::module_& m);

}  // namespace ebbtide::simulate

namespace ebbtide::search {

void bind_search(pybind11::module_& m);

}  // namespace ebbtide::search
