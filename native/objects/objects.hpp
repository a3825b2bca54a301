// Finds objects in this process: those that Python's collector lists, and those that it was told to forget.
//
// `gc.freeze()`, which a script calls before it forks, hides objects from `gc.get_objects()`. They are found from where a script can
// reach them. Left out: a frozen object that only C code holds. Nothing leads to it.
//
// A look is one call that keeps the GIL and leaves no reference: while another thread fills a tuple, Python makes it an error that
// anybody else has a reference to that.
#pragma once

#include <Python.h>

#include <vector>

namespace ebbtide {

// Each once, without a reference: they may be gone when the GIL is. `roots` is a list of what leads to frozen objects, empty where
// none are. Throws what Python raises.
std::vector<PyObject*> all_objects(PyObject* roots);

}  // namespace ebbtide
