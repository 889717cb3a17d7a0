// SPDX-License-Identifier: Apache-2.0
#include "python/src/binders.h"

PYBIND11_MODULE(_C, module) {
  using namespace accelerate::python;
  module.doc() = "The engine of accelerate; see docs/guide_python.md.";
  bind_errors(module);
  bind_settings(module);
  bind_process(module);
  bind_group(module);
  bind_observe(module);
  bind_state(module);
  bind_step_state(module);
  bind_data(module);
  bind_model(module);
  bind_optimizer(module);
  bind_files(module);
  bind_placement(module);
  bind_checkpoints(module);
  bind_steps(module);
  bind_tracking(module);
  bind_run(module);
  bind_capture(module);
  bind_verification(module);
  bind_selftest(module);
  // The major version of CUDA that the engine can use, or 0 without CUDA.
  module.attr("cuda_version") = ACCELERATE_CUDA_VERSION;
}
