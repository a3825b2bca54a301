#include "objects.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <pybind11/pybind11.h>
#pragma GCC diagnostic pop

#include <unordered_set>

namespace py = pybind11;

namespace ebbtide {

namespace {

class Frozen {
 public:
  explicit Frozen(std::vector<PyObject*>& objects) : objects_(objects), known_(objects.begin(), objects.end()) {}

  void find_from(PyObject* roots) {
    known_.insert(roots);
    std::vector<PyObject*> ahead = objects_;
    ahead_ = &ahead;
    PyList_Type.tp_traverse(roots, &Frozen::see, this);
    while (!ahead.empty()) {
      PyObject* object = ahead.back();
      ahead.pop_back();
      Py_TYPE(object)->tp_traverse(object, &Frozen::see, this);
    }
  }

 private:
  static int see(PyObject* object, void* self) {
    auto& frozen = *static_cast<Frozen*>(self);
    if (!PyObject_IS_GC(object) || !PyObject_GC_IsTracked(object) || !frozen.known_.insert(object).second) return 0;
    frozen.objects_.push_back(object);
    frozen.ahead_->push_back(object);
    return 0;
  }

  std::vector<PyObject*>& objects_;
  std::vector<PyObject*>* ahead_ = nullptr;  // whose own are yet to be seen
  std::unordered_set<PyObject*> known_;
};

}  // namespace

std::vector<PyObject*> all_objects(PyObject* roots) {
  py::object get_objects = py::module_::import("gc").attr("get_objects");
  std::vector<PyObject*> objects;
  {
    py::list listed = get_objects();
    objects.assign(PySequence_Fast_ITEMS(listed.ptr()), PySequence_Fast_ITEMS(listed.ptr()) + listed.size());
  }
  if (PyList_GET_SIZE(roots) > 0) Frozen(objects).find_from(roots);
  return objects;
}

}  // namespace ebbtide
