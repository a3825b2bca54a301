// A schedule's commands as ebbtide.ir.schedule has them: a column for each field, so that they go between processes and modules.
#pragma once

#include <pybind11/numpy.h>

#include <limits>
#include <stdexcept>

#include "lowering.hpp"

namespace ebbtide {

// Of a Python object, the attribute with this name as a column of numbers.
class ColumnOf {
 public:
  ColumnOf(const pybind11::object& owner, const char* name) : column_(owner.attr(name)) {
    if (column_.ndim() != 1) throw std::invalid_argument(std::string("not a column: ") + name);
  }
  std::size_t size() const { return static_cast<std::size_t>(column_.size()); }
  std::int64_t operator[](std::size_t at) const { return column_.data()[at]; }
  const std::int64_t* begin() const { return column_.data(); }
  const std::int64_t* end() const { return column_.data() + column_.size(); }

 private:
  pybind11::array_t<std::int64_t, pybind11::array::c_style | pybind11::array::forcecast> column_;
};

inline void require_same_length(const ColumnOf& a, const ColumnOf& b) {
  if (a.size() != b.size()) throw std::invalid_argument("not a schedule: columns differ in length");
}

template <typename T>
T narrow(std::int64_t value, std::int64_t most = std::numeric_limits<T>::max()) {
  if (value < 0 || value > most) throw std::invalid_argument("not a schedule: a number is out of range");
  return static_cast<T>(value);
}

inline simulate::Commands commands_of(const pybind11::object& schedule) {
  auto column = [&](const char* name) { return ColumnOf(schedule, name); };
  ColumnOf tick = column("tick"), verb = column("verb"), storage = column("storage"), source = column("source");
  ColumnOf target = column("target"), then = column("then"), earliest = column("earliest"), due = column("due");
  ColumnOf begin_storage = column("begin_storage"), begin_tier = column("begin_tier");
  for (const ColumnOf* each : {&verb, &storage, &source, &target, &then, &earliest, &due}) require_same_length(tick, *each);
  require_same_length(begin_storage, begin_tier);
  simulate::Commands made;
  for (std::size_t at = 0; at < tick.size(); ++at) {
    made.rows.push_back({.tick = narrow<std::uint32_t>(tick[at]),
                         .verb = static_cast<Verb>(narrow<std::uint8_t>(verb[at], kVerbNames.size() - 1)),
                         .storage = narrow<std::uint32_t>(storage[at]),
                         .source = narrow<Rank>(source[at]),
                         .target = narrow<Rank>(target[at]),
                         .then = static_cast<Then>(narrow<std::uint8_t>(then[at], static_cast<int>(Then::Drop))),
                         .earliest = narrow<std::uint32_t>(earliest[at]),
                         .due = narrow<std::uint32_t>(due[at])});
  }
  for (std::size_t at = 0; at < begin_storage.size(); ++at) {
    made.begins.push_back({narrow<std::uint32_t>(begin_storage[at]), narrow<Rank>(begin_tier[at])});
  }
  return made;
}

// A dict of columns: of each row what the members are.
template <typename Row, typename... Members>
pybind11::dict columns_of(const std::vector<Row>& rows, const std::vector<const char*>& names, Members... members) {
  pybind11::dict columns;
  std::size_t at = 0;
  auto add = [&](auto member) {
    pybind11::array_t<std::int64_t> column(static_cast<pybind11::ssize_t>(rows.size()));
    for (std::size_t row = 0; row < rows.size(); ++row) column.mutable_at(row) = static_cast<std::int64_t>(rows[row].*member);
    columns[names[at++]] = column;
  };
  (add(members), ...);
  return columns;
}

inline pybind11::object as_schedule(const simulate::Commands& commands) {
  pybind11::dict rows = columns_of(commands.rows, {"tick", "verb", "storage", "source", "target", "then", "earliest", "due"},
                                   &Command::tick, &Command::verb, &Command::storage, &Command::source, &Command::target,
                                   &Command::then, &Command::earliest, &Command::due);
  pybind11::dict begins =
      columns_of(commands.begins, {"begin_storage", "begin_tier"}, &simulate::Begin::storage, &simulate::Begin::tier);
  return pybind11::module_::import("ebbtide.ir.schedule").attr("Schedule")(**rows, **begins);
}

}  // namespace ebbtide
