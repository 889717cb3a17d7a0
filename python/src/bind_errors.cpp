// SPDX-License-Identifier: Apache-2.0
#include "accelerate/error.h"
#include "python/src/binders.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;

void raise(const char* name, const Error& error) {
  const auto type = py::module_::import("accelerate.errors").attr(name);
  PyErr_SetString(type.ptr(), error.what());
}

} // namespace

void bind_errors(py::module_& /*module*/) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
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
  });
}

} // namespace accelerate::python
