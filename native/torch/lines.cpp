#include "lines.hpp"

#include <Python.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "nodes.hpp"

namespace py = pybind11;

namespace ebbtide {

namespace {

constexpr std::string_view kCalledFrom = " from ";

struct Code {
  int rank;
  std::string file;
  std::string function;
  bool is_engine;
};

std::atomic<bool> notes = false;
std::vector<LineRule> rules;  // under Python's lock, as are all of these

// Keyed by code object, which is kept: its address is not given to another.
std::unordered_map<PyObject*, Code>& known_code() {
  static auto* known = new std::unordered_map<PyObject*, Code>;  // never destroyed: Python may be gone by then
  return *known;
}

std::string text_of(PyObject* object, const char* attribute) {
  py::object value = py::reinterpret_steal<py::object>(PyObject_GetAttrString(object, attribute));
  const char* text = value ? PyUnicode_AsUTF8(value.ptr()) : nullptr;  // null: a name with no UTF-8, such as a surrogate's
  if (text == nullptr) PyErr_Clear();
  return text == nullptr ? "?" : text;
}

std::pair<int, std::string> placed(const std::string& file) {
  for (const LineRule& rule : rules) {
    std::size_t at = rule.anywhere ? file.rfind(rule.text) : file.starts_with(rule.text) ? 0 : std::string::npos;
    if (at != std::string::npos) return {rule.rank, rule.shown + file.substr(at + rule.text.size())};
  }
  return {kUsersOwn, file};
}

const Code& code_of(PyObject* code) {
  auto found = known_code().find(code);
  if (found != known_code().end()) return found->second;
  Py_INCREF(code);
  auto [rank, file] = placed(text_of(code, "co_filename"));
  std::string function = text_of(code, "co_qualname");
  bool is_engine = rank == kPassedOver && function == "_engine_run_backward";
  return known_code().emplace(code, Code{rank, file, function, is_engine}).first->second;
}

std::string text_of(const Code& code, int number) {
  std::string line = code.file + ":" + std::to_string(number);
  return code.function == "<module>" ? line : line + " " + code.function;
}

// Returns the user's own part of a line.
std::string caller_in(const std::string& line) {
  std::size_t at = line.rfind(kCalledFrom);
  return at == std::string::npos ? line : line.substr(at + kCalledFrom.size());
}

}  // namespace

void note_lines(std::vector<LineRule> new_rules) {
  forget_lines();
  rules = std::move(new_rules);
  notes = !rules.empty();
}

bool notes_lines() { return notes.load(std::memory_order_relaxed); }

std::string line_here(const std::string& of_node) {
  py::gil_scoped_acquire locked;
  py::error_scope kept;  // of whoever is under way
  int rank = kPassedOver;
  std::string library, line;
  auto frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame && rank != kUsersOwn) {
    auto* here = reinterpret_cast<PyFrameObject*>(frame.ptr());
    auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(here)));
    const Code& known = code_of(code.ptr());
    if (known.is_engine && !of_node.empty())
      return library.empty() ? of_node : library + std::string(kCalledFrom) + caller_in(of_node);
    if (known.rank < rank) {
      line = text_of(known, PyFrame_GetLineNumber(here));
      if (rank == kPassedOver && known.rank == kInstalled) library = line;
      rank = known.rank;
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
  }
  if (rank == kPassedOver) return of_node;
  return library.empty() || rank == kInstalled ? line : library + std::string(kCalledFrom) + line;
}

void forget_lines() {
  if (known_code().empty()) return;
  for (auto& [code, known] : std::exchange(known_code(), {})) Py_DECREF(code);
}

BirthLine::BirthLine(Tape& tape) {
  if (!notes_lines() || !tape.records_here()) return;
  tape_ = &tape;
  tape.at_line(line_here(line_of_current_node()).c_str());
}

BirthLine::~BirthLine() {
  if (tape_ != nullptr) tape_->at_line("");
}

}  // namespace ebbtide
