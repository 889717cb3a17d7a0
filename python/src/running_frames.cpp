// SPDX-License-Identifier: Apache-2.0
#include "python/src/running_frames.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#include <internal/pycore_frame.h>
#endif

namespace accelerate::python {
namespace {

namespace py = pybind11;

/// Before 3.12, creating an object may start a garbage collection. Its
/// finalizers let other threads run, so the current frame may be freed and its
/// memory reused.
struct CollectorOff {
  CollectorOff() : was_on(PyGC_Disable() != 0) {}
  ~CollectorOff() {
    if (was_on) {
      PyGC_Enable();
    }
  }
  CollectorOff(const CollectorOff&) = delete;
  CollectorOff& operator=(const CollectorOff&) = delete;
  const bool was_on;
};

#if PY_VERSION_HEX >= 0x030B0000
/// Returns the value of a variable, or null if it has no value yet. Does not
/// use `f_locals`, which would store a copy of all values in the frame and free
/// the values of the previous copy.
py::object variable_of(
    PyFrameObject* frame,
    [[maybe_unused]] size_t index,
    [[maybe_unused]] py::handle name) {
#if PY_VERSION_HEX >= 0x030C0000
  auto value =
      py::reinterpret_steal<py::object>(PyFrame_GetVar(frame, name.ptr()));
  if (!value) {
    PyErr_Clear();
  }
  return value;
#else
  PyObject* value = frame->f_frame->localsplus[index];
  if (value != nullptr && PyCell_Check(value)) {
    value = PyCell_GET(value);
  }
  return py::reinterpret_borrow<py::object>(value);
#endif
}
#endif

py::dict variables_of(const py::object& frame, const py::object& code) {
#if PY_VERSION_HEX >= 0x030B0000
  auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
  py::dict variables;
  const py::tuple names = code.attr("co_varnames");
  for (size_t index = 0; index < names.size(); ++index) {
    if (auto value = variable_of(raw, index, names[index])) {
      variables[names[index]] = value;
    }
  }
  return variables;
#else
  // In 3.10, frames are objects that do not move.
  static_cast<void>(code);
  return frame.attr("f_locals");
#endif
}

/// Does not read attributes of a value, because that might run user code.
void add_handles(
    const py::dict& from,
    const py::type& handle,
    const py::dict& to) {
  auto* type = reinterpret_cast<PyTypeObject*>(handle.ptr());
  for (const auto& [name, value] : from) {
    if (PyObject_TypeCheck(value.ptr(), type)) {
      to[name] = value;
    }
  }
}

} // namespace

py::list running_frames(
    unsigned long thread,
    const std::string& collectives_file,
    const py::type& handle) {
  const py::object current = py::module_::import("sys").attr("_current_frames");
  py::list frames;
  const CollectorOff off;
  const py::dict all = current();
  const py::int_ key(thread);
  if (!all.contains(key)) {
    return frames;
  }
  py::object frame = all[key];
  while (frame && !frame.is_none()) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const py::str file = code.attr("co_filename");
    py::dict variables;
    if (py::cast<std::string>(file).ends_with(collectives_file)) {
      variables = variables_of(frame, code);
    } else if (frames.empty()) {
      add_handles(frame.attr("f_globals"), handle, variables);
      add_handles(variables_of(frame, code), handle, variables);
    }
    frames.append(py::make_tuple(
        file,
        code.attr("co_name"),
        PyFrame_GetLineNumber(raw),
        py::make_tuple(reinterpret_cast<uintptr_t>(raw), frame.attr("f_lasti")),
        variables));
    frame = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return frames;
}

} // namespace accelerate::python
