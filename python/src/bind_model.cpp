// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "accelerate/prepared_model.h"
#include "accelerate/training/accumulate.h"
#include "python/src/binders.h"
#include "training/run/model_context.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;

/// The current forward pass. C++ callers keep it on the stack instead.
class Forward {
 public:
  explicit Forward(std::shared_ptr<ModelContext> context)
      : context_(std::move(context)),
        scope_(std::make_unique<detail::ForwardScope>(*context_)) {}

  bool wants_outputs() const { return scope_->wants_outputs(); }
  std::vector<at::Tensor> finish(std::vector<at::Tensor> outputs) {
    std::vector<at::Tensor*> pointers;
    for (auto& output : outputs) {
      pointers.push_back(&output);
    }
    scope_->finish(pointers);
    scope_.reset();
    return outputs;
  }
  /// Called if the user's `forward` has thrown.
  void abandon() { scope_.reset(); }

 private:
  std::shared_ptr<ModelContext> context_;
  std::unique_ptr<detail::ForwardScope> scope_;
};

/// Gradients of the model stay local between `enter` and `exit`.
class NoSync {
 public:
  explicit NoSync(std::shared_ptr<ModelContext> context)
      : context_(std::move(context)) {}
  void enter() { guard_ = std::make_unique<NoSyncGuard>(*context_->engine); }
  void exit() { guard_.reset(); }

 private:
  std::shared_ptr<ModelContext> context_;
  std::unique_ptr<NoSyncGuard> guard_;
};

/// Whether the dictionaries contain exactly these objects, in this order.
/// Called for all parameters in every forward pass, so a loop in Python would
/// be too slow.
bool contain_exactly(const py::list& tables, const py::list& values) {
  const auto count = PyList_GET_SIZE(values.ptr());
  Py_ssize_t index = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tables.ptr()); ++i) {
    auto* table = PyList_GET_ITEM(tables.ptr(), i);
    PyObject* value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(table, &position, nullptr, &value) != 0) {
      if (index == count || PyList_GET_ITEM(values.ptr(), index) != value) {
        return false;
      }
      ++index;
    }
  }
  return index == count;
}

} // namespace

void bind_model(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<ParameterSet>(module, "ParameterSet")
      .def(
          py::init([](std::vector<std::string> names,
                      std::vector<at::Tensor> parameters,
                      std::vector<std::string> buffer_names,
                      std::vector<at::Tensor> buffers,
                      std::set<std::string> sparse_gradients,
                      std::map<std::string, std::string> tied,
                      std::set<std::string> transient_buffers,
                      std::vector<std::string> units,
                      std::vector<std::string> whole) {
            return ParameterSet{
                std::move(names),
                std::move(parameters),
                std::move(buffer_names),
                std::move(buffers),
                std::move(sparse_gradients),
                std::move(tied),
                std::move(transient_buffers),
                std::move(units),
                std::move(whole)};
          }),
          py::arg("names"),
          py::arg("parameters"),
          py::arg("buffer_names"),
          py::arg("buffers"),
          py::arg("sparse_gradients"),
          py::arg("tied") = std::map<std::string, std::string>(),
          py::arg("transient_buffers") = std::set<std::string>(),
          py::arg("units") = std::vector<std::string>(),
          py::arg("whole") = std::vector<std::string>())
      .def_readonly("names", &ParameterSet::names)
      .def_readonly("parameters", &ParameterSet::parameters)
      .def_readonly("buffer_names", &ParameterSet::buffer_names)
      .def_readonly("buffers", &ParameterSet::buffers)
      .def_readonly("tied", &ParameterSet::tied)
      .def_readonly("transient_buffers", &ParameterSet::transient_buffers)
      .def_readonly("units", &ParameterSet::units)
      .def_readonly("whole", &ParameterSet::whole);
  module.def(
      "contain_exactly",
      &contain_exactly,
      py::arg("tables"),
      py::arg("values"));
  py::class_<Forward>(module, "Forward")
      .def_property_readonly("wants_outputs", &Forward::wants_outputs)
      .def("finish", &Forward::finish, py::arg("outputs"), release)
      .def("abandon", &Forward::abandon, release);
  py::class_<NoSync>(module, "NoSync")
      .def("enter", &NoSync::enter)
      .def("exit", &NoSync::exit);
  py::class_<ModelContext, std::shared_ptr<ModelContext>>(
      module, "ModelContext")
      .def_property_readonly(
          "is_local",
          [](const ModelContext& context) {
            return context.engine->is_local() && !context.verified;
          })
      .def_property_readonly(
          "can_join",
          [](const ModelContext& context) {
            return context.engine->is_local() ||
                   context.engine->joinable() != nullptr;
          })
      .def_readonly("is_for_evaluation", &ModelContext::is_for_evaluation)
      .def_property(
          "syncs_gradients",
          [](const ModelContext& context) { return context.engine->sync(); },
          [](ModelContext& context, bool sync) {
            context.engine->set_sync(sync);
          })
      .def_property_readonly(
          "watches_inputs",
          [](const ModelContext& context) {
            return !context.inputs->is_over();
          })
      .def(
          "note_inputs",
          [](const ModelContext& context,
             const std::vector<at::Tensor>& inputs) {
            for (const auto& input : inputs) {
              context.note_input(input);
            }
          },
          py::arg("inputs"),
          release)
      .def(
          "begin_forward",
          [](std::shared_ptr<ModelContext> context) {
            return std::make_unique<Forward>(std::move(context));
          },
          release)
      .def_property_readonly(
          "weights",
          [](const ModelContext& context) { return context.weights; })
      .def_property_readonly(
          "is_spread",
          [](const ModelContext& context) { return context.is_spread(); })
      .def_property_readonly(
          "is_sharded",
          [](const ModelContext& context) {
            const auto& parameters = context.model.parameters;
            return std::any_of(
                parameters.begin(), parameters.end(), [&](const auto& each) {
                  return context.engine->tensor_layout(each).is_divided();
                });
          })
      .def(
          "whole_parameters",
          [](const ModelContext& context, bool keep) {
            return context.engine->whole_parameters(keep);
          },
          py::arg("keep"),
          release)
      .def(
          "set_buffers",
          &ModelContext::set_buffers,
          py::arg("names"),
          py::arg("buffers"))
      .def(
          "check_unchanged",
          [](const ModelContext& context,
             const std::string& where,
             const ParameterSet& now) {
            context.as_prepared.check_unchanged(where, now);
          },
          py::arg("where"),
          py::arg("now"))
      .def("prepare_again", &ModelContext::prepare_again, py::arg("now"))
      .def(
          "no_sync",
          [](std::shared_ptr<ModelContext> context) {
            return std::make_unique<NoSync>(std::move(context));
          })
      .def("sync_next_backward", [](ModelContext& context) {
        context.engine->sync_next_backward();
      });
}

} // namespace accelerate::python
