// SPDX-License-Identifier: Apache-2.0
#include "training/run/run_context.h"

#include <algorithm>

namespace accelerate {
namespace {

std::shared_ptr<GradScaler> make_scaler(
    const Assembly& assembly,
    const std::shared_ptr<StepReductions>& reductions,
    const GradScalerOptions& options) {
  if (assembly.precision != Precision::kFp16) {
    return nullptr;
  }
  GradScaler::Agreement agree;
  if (assembly.group.world_size() > 1) {
    agree = [reductions](at::Tensor& flags) {
      reductions->reduce(flags, ReduceOp::kMax);
    };
  }
  return std::make_shared<GradScaler>(options, std::move(agree));
}

template <class Object>
std::vector<std::shared_ptr<Object>> living(
    const std::vector<std::weak_ptr<Object>>& objects) {
  std::vector<std::shared_ptr<Object>> alive;
  for (const auto& object : objects) {
    if (auto found = object.lock()) {
      alive.push_back(std::move(found));
    }
  }
  return alive;
}

} // namespace

StateDict RunProgress::state_dict() const {
  StateDict state;
  state.set("num_backwards", num_backwards);
  return state;
}
void RunProgress::load_state_dict(const StateDict& state) {
  num_backwards = state.get<int64_t>("num_backwards");
}

RunContext::RunContext(
    AcceleratorOptions options,
    const EnvLookup& env,
    std::shared_ptr<StepState> step_state)
    : options(std::move(options)),
      assembly(assemble(this->options, env)),
      step_state(std::move(step_state)),
      state(std::make_shared<StateRegistry>()),
      progress(std::make_shared<RunProgress>()),
      reductions(std::make_shared<StepReductions>(group(), device())),
      accumulation(std::make_shared<Accumulation>(
          assembly.gradient_accumulation_steps,
          this->options.accumulation,
          state,
          this->step_state)),
      scaler(make_scaler(assembly, reductions, this->options.scaler)) {}

std::vector<std::shared_ptr<OptimizerStep>> RunContext::living_optimizers()
    const {
  return living(optimizers);
}

std::vector<std::shared_ptr<ModelContext>> RunContext::living_models() const {
  return living(models);
}

bool RunContext::sends_gradients() const {
  const auto models = living(models_with_callbacks);
  return std::any_of(models.begin(), models.end(), [](const auto& model) {
    return model->engine->sync();
  });
}

void RunContext::update_scale() const {
  if (scaler) {
    move_scale(*scaler, living_optimizers());
  }
}

} // namespace accelerate
