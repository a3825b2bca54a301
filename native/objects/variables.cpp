#include "variables.hpp"

#if PY_VERSION_HEX < 0x030C0000
#define Py_BUILD_CORE 1  // Python 3.11 has no function for it, so the layout of its frames is needed
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

namespace ebbtide {

namespace {

#if PY_VERSION_HEX < 0x030C0000

bool add_variables(PyFrameObject* frame, PyCodeObject* code, bool of_all, PyObject* found) {
  for (int at = 0; at < code->co_nlocalsplus; ++at) {
    const _PyLocals_Kind kind = _PyLocals_GetKind(code->co_localspluskinds, at);
    PyObject* value = frame->f_frame->localsplus[at];
    if ((kind & CO_FAST_FREE) != 0 || value == nullptr) continue;
    if ((kind & CO_FAST_CELL) != 0) {
      if (!of_all) continue;
      if (PyCell_Check(value)) value = PyCell_GET(value);  // else an argument that its function has not yet put into a cell
      if (value == nullptr) continue;
    }
    if (PyList_Append(found, value) != 0) return false;
  }
  return true;
}

#else

bool add_named(PyFrameObject* frame, PyObject* names, PyObject* left_out, PyObject* found) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(names); ++at) {
    PyObject* name = PyTuple_GET_ITEM(names, at);
    if (left_out != nullptr && PySequence_Contains(left_out, name) == 1) continue;
    PyObject* value = PyFrame_GetVar(frame, name);
    if (value == nullptr) {
      if (!PyErr_ExceptionMatches(PyExc_NameError)) return false;
      PyErr_Clear();  // it has none now
      continue;
    }
    const bool is_added = PyList_Append(found, value) == 0;
    Py_DECREF(value);
    if (!is_added) return false;
  }
  return true;
}

bool add_variables(PyFrameObject* frame, PyCodeObject* code, bool of_all, PyObject* found) {
  PyObject* names = PyCode_GetVarnames(code);
  PyObject* cells = PyCode_GetCellvars(code);
  const bool is_added = names != nullptr && cells != nullptr && add_named(frame, names, cells, found) &&
                        (!of_all || add_named(frame, cells, nullptr, found));
  Py_XDECREF(names);
  Py_XDECREF(cells);
  return is_added;
}

#endif

}  // namespace

PyObject* variables_of(PyFrameObject* frame, bool of_all) {
  PyObject* found = PyList_New(0);
  if (found == nullptr) return nullptr;
  PyCodeObject* code = PyFrame_GetCode(frame);
  if (!add_variables(frame, code, of_all, found)) Py_CLEAR(found);
  Py_DECREF(code);
  return found;
}

}  // namespace ebbtide
