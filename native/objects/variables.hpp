// The local variables of a running function, without a trace left in it.
//
// Up to Python 3.12, asking a frame for `f_locals` writes all variables into a dict that the frame keeps. It is the very dict that
// the function has got from `locals()`, which would have other values from then on.
#pragma once

#include <Python.h>

namespace ebbtide {

// Returns a new list of the values of the function's own variables; with `of_all`, also of those that inner functions share.
// Returns null where Python has raised. The GIL is held.
PyObject* variables_of(PyFrameObject* frame, bool of_all);

}  // namespace ebbtide
