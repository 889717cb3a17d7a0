// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/Exceptions.h>

#include "accelerate/error.h"
#include "python/src/binders.h"
#include "training/parallel/carried_errors.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;

void raise(const char* name, const Error& error) {
  const auto type = py::module_::import("accelerate.errors").attr(name);
  PyErr_SetString(type.ptr(), error.what());
}

/// Converts the current exception to the Python exception of its class.
void raise_current() {
  try {
    throw;
  } catch (const ConfigError& error) {
    raise("ConfigError", error);
  } catch (const UsageError& error) {
    raise("UsageError", error);
  } catch (const DataError& error) {
    raise("DataError", error);
  } catch (const TimeoutError& error) {
    raise("CommTimeoutError", error);
  } catch (const MismatchError& error) {
    raise("MismatchError", error);
  } catch (const CommError& error) {
    raise("CommError", error);
  } catch (const Error& error) {
    raise("AccelerateError", error);
  }
}

/// Throws the current error as a Python exception, which torch passes on
/// unchanged. torch would convert our own class to a RuntimeError.
void carry() {
  const py::gil_scoped_acquire gil;
  raise_current();
  python_error carried;
  carried.persist();
  throw carried;
}

} // namespace

void bind_errors(py::module_& /*module*/) {
  set_error_carrier(&carry);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const Error&) {
      raise_current();
    } catch (python_error& error) {
      error.restore();
    }
  });
}

} // namespace accelerate::python
