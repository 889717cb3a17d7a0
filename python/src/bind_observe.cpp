// SPDX-License-Identifier: Apache-2.0
#include "accelerate/observe/step_times.h"
#include "core/observe/rank_record.h"
#include "core/observe/script_stack.h"
#include "python/src/binders.h"
#include "python/src/running_frames.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;

/// The result of the Python function that takes the stack: frames as pairs, the
/// collective, and an identifier of this call.
using Taken = std::
    tuple<std::vector<std::pair<std::string, bool>>, std::string, uint64_t>;

ScriptStack take_with(const py::function& take) {
  const py::gil_scoped_acquire gil;
  ScriptStack script;
  try {
    auto [frames, operation, call] = take().cast<Taken>();
    for (auto& [text, is_users] : frames) {
      script.stack.frames.push_back({std::move(text), is_users});
    }
    script.operation = std::move(operation);
    script.call = call;
  } catch (const py::error_already_set&) {
    // The stack changed while it was read. The next query will succeed.
  }
  return script;
}

} // namespace

void bind_observe(py::module_& module) {
  module.def(
      "watch_script",
      [](py::function take) {
        // Leaked on purpose, because other threads may use it after Python has
        // ended.
        auto* kept = new py::function(std::move(take));
        set_script_stack([kept] { return take_with(*kept); });
      },
      py::arg("take"));
  module.def(
      "unwatch_script",
      &drop_script_stack,
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "running_frames",
      &running_frames,
      py::arg("thread"),
      py::arg("collectives_file"),
      py::arg("handle"));
  module.def("enter_data", [] {
    return static_cast<int>(
        RankRecord::of_this_thread().enter(StepPhase::kData));
  });
  module.def(
      "leave_phase",
      [](int before) {
        RankRecord::of_this_thread().leave(static_cast<StepPhase>(before));
      },
      py::arg("before"));

  py::class_<StepTimes> times(module, "StepTimes");
  using Phases = StepTimes::Phases;
  py::class_<Phases>(times, "Phases")
      .def_readonly("data", &Phases::data)
      .def_readonly("forward", &Phases::forward)
      .def_readonly("backward", &Phases::backward)
      .def_readonly("communication", &Phases::communication)
      .def_readonly("optimizer", &Phases::optimizer)
      .def_readonly("checkpoint", &Phases::checkpoint)
      .def_readonly("captured", &Phases::captured)
      .def_readonly("other", &Phases::other)
      .def_property_readonly("total", &Phases::total);
  times.def_readonly("num_steps", &StepTimes::num_steps)
      .def_readonly("sum", &StepTimes::sum)
      .def_readonly("last", &StepTimes::last)
      .def("summary", &StepTimes::summary);
}

} // namespace accelerate::python
