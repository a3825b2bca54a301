#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <pybind11/pybind11.h>
#pragma GCC diagnostic pop

#include "objects.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_objects, m) {
  m.def("instances", [](const py::type& kind, const py::list& roots) {
    py::list found;
    for (PyObject* object : ebbtide::all_objects(roots.ptr())) {
      if (PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(kind.ptr()))) found.append(py::handle(object));
    }
    return found;
  });
}
