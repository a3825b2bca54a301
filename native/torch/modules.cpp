#include "modules.hpp"

#include <Python.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../objects/variables.hpp"

namespace py = pybind11;

namespace ebbtide {

namespace {

constexpr int kMostFrames = 2000;  // a script that calls itself deeper than that gets a shorter path

using Names = std::vector<py::object>;                    // strings: the way from a module to one of its parts
using Parts = std::unordered_map<PyObject*, Names>;       // of one module, by address
struct Whole {
  Parts parts;
  bool stays = false;  // it had no new parts when one was looked for that it does not have, such as a teacher kept in a list
};
using Known = std::unordered_map<PyObject*, Whole>;  // by address

std::atomic<bool> names_now = false;

// All of it is used with Python's lock, and never destroyed: Python may be gone by then.
struct Calls {
  py::object module_type;
  py::object of_module;    // the code that every call of a module runs through
  py::object of_backward;  // and every backward pass
  Known known;             // addresses are given anew, so that each way is looked at again where it is used
};

Calls& calls() {
  static auto* all = new Calls;
  return *all;
}

// No finalizer of the script's runs while frames are read: making their objects may set the collector off.
class WithoutCollector {
 public:
  WithoutCollector() : was_on_(PyGC_Disable() == 1) {}
  ~WithoutCollector() {
    if (was_on_) PyGC_Enable();
  }
  WithoutCollector(const WithoutCollector&) = delete;
  WithoutCollector& operator=(const WithoutCollector&) = delete;

 private:
  bool was_on_;
};

// Null: there is no such thing. No error is left.
py::object stolen(PyObject* object) {
  if (object == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(object);
}

py::object attribute(const py::object& object, const char* name) {
  return object ? stolen(PyObject_GetAttrString(object.ptr(), name)) : py::object();
}

std::string text_of(const py::object& name) {
  const char* text = name ? PyUnicode_AsUTF8(name.ptr()) : nullptr;  // null: no UTF-8, such as a surrogate's
  if (text == nullptr) PyErr_Clear();
  return text == nullptr ? "?" : text;
}

bool is_module(PyObject* object) {
  auto* type = reinterpret_cast<PyTypeObject*>(calls().module_type.ptr());
  return PyType_IsSubtype(Py_TYPE(object), type) != 0;
}

std::string class_of(PyObject* module) { return text_of(stolen(PyType_GetName(Py_TYPE(module)))); }

// The table in which a module keeps its parts, by name; null if it has none. No function of the script's is called.
py::object parts_of(PyObject* module) {
  py::object variables = stolen(PyObject_GenericGetDict(module, nullptr));
  PyObject* parts = variables ? PyDict_GetItemString(variables.ptr(), "_modules") : nullptr;
  if (parts == nullptr || !PyDict_Check(parts)) return {};
  return py::reinterpret_borrow<py::object>(parts);
}

bool leads_to(py::object module, const Names& way, PyObject* there) {
  for (const py::object& name : way) {
    py::object parts = parts_of(module.ptr());
    PyObject* part = parts ? PyDict_GetItemWithError(parts.ptr(), name.ptr()) : nullptr;
    if (part == nullptr) return false;
    module = py::reinterpret_borrow<py::object>(part);
    if (!is_module(part)) return false;
  }
  return module.ptr() == there;
}

// The first way to each part is its name, as `named_modules` has it.
Parts find_parts(PyObject* whole) {
  Parts found;
  std::vector<std::pair<py::object, Names>> ahead{{py::reinterpret_borrow<py::object>(whole), {}}};
  while (!ahead.empty()) {
    auto [module, way] = std::move(ahead.back());
    ahead.pop_back();
    if (!found.emplace(module.ptr(), way).second) continue;
    py::object parts = parts_of(module.ptr());
    if (!parts) continue;
    std::vector<std::pair<py::object, Names>> next;
    PyObject *name, *part;
    for (Py_ssize_t at = 0; PyDict_Next(parts.ptr(), &at, &name, &part) != 0;) {
      if (!PyUnicode_CheckExact(name) || !is_module(part)) continue;
      Names on = way;
      on.push_back(py::reinterpret_borrow<py::object>(name));
      next.emplace_back(py::reinterpret_borrow<py::object>(part), std::move(on));
    }
    ahead.insert(ahead.end(), std::make_move_iterator(next.rbegin()), std::make_move_iterator(next.rend()));
  }
  return found;
}

// Null: it is no part, as far as is known.
const Names* way_to(PyObject* whole, PyObject* part) {
  static const Names none;
  if (whole == part) return &none;
  auto& [parts, stays] = calls().known[whole];
  auto found = parts.find(part);
  if (found == parts.end() && stays) return nullptr;
  if (found == parts.end() || !leads_to(py::reinterpret_borrow<py::object>(whole), found->second, part)) {
    std::size_t before = parts.size();
    parts = find_parts(whole);
    stays = parts.size() == before;
    found = parts.find(part);
  }
  return found == parts.end() ? nullptr : &found->second;
}

}  // namespace

void find_module_calls() {
  calls().module_type = py::module_::import("torch.nn.modules.module").attr("Module");
  calls().of_module = attribute(attribute(calls().module_type, "_wrapped_call_impl"), "__code__");
  py::object graph = py::module_::import("torch.autograd.graph");
  calls().of_backward = attribute(attribute(graph, "_engine_run_backward"), "__code__");
}

void name_modules(bool names) {
  calls().known.clear();
  names_now = names;
}

bool names_modules() { return names_now.load(std::memory_order_relaxed); }

std::string module_here() {
  py::gil_scoped_acquire locked;
  py::error_scope kept;  // of whoever is under way
  WithoutCollector still;
  const Calls& known = calls();
  py::object innermost, outermost;
  auto frame = stolen(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  for (int seen = 0; frame && seen < kMostFrames; ++seen) {
    auto* here = reinterpret_cast<PyFrameObject*>(frame.ptr());
    auto code = stolen(reinterpret_cast<PyObject*>(PyFrame_GetCode(here)));
    if (code.is(known.of_backward)) break;
    if (code.is(known.of_module)) {
      py::object variables = stolen(variables_of(here, false));
      if (variables && PyList_GET_SIZE(variables.ptr()) > 0 && is_module(PyList_GET_ITEM(variables.ptr(), 0))) {
        outermost = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(variables.ptr(), 0));
        if (!innermost) innermost = outermost;
      }
    }
    frame = stolen(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
  }
  if (!innermost) return "";
  const Names* way = way_to(outermost.ptr(), innermost.ptr());
  if (way == nullptr) return class_of(innermost.ptr());
  std::string path = class_of(outermost.ptr());
  for (const py::object& name : *way) (path += '.') += text_of(name);
  return path;
}

}  // namespace ebbtide
