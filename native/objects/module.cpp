#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <pybind11/pybind11.h>
#pragma GCC diagnostic pop

#include "objects.hpp"
#include "variables.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_objects, m) {
  m.def("instances", [](const py::type& kind, const py::list& roots) {
    py::list found;
    for (PyObject* object : ebbtide::all_objects(roots.ptr())) {
      if (PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(kind.ptr()))) found.append(py::handle(object));
    }
    return found;
  });
  m.def("variables_of", [](const py::handle& frame, bool of_all) {
    if (!PyFrame_Check(frame.ptr())) throw py::type_error("variables_of takes a frame");
    PyObject* found = ebbtide::variables_of(reinterpret_cast<PyFrameObject*>(frame.ptr()), of_all);
    if (found == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::list>(found);
  });
}
