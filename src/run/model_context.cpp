// SPDX-License-Identifier: Apache-2.0
#include "run/model_context.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

// Names of models have dots, so the two kinds stand under a word each.
constexpr const char* kParameters = "parameters";
constexpr const char* kBuffers = "buffers";

std::string key(const char* kind, const std::string& name) {
  return str_cat(kind, '.', name);
}

} // namespace

void ModelContext::set_buffers(std::vector<at::Tensor> buffers) {
  engine->set_buffers(buffers);
  model.buffers = std::move(buffers);
}

void ModelContext::prepare_again(ParameterSet now) {
  as_prepared.check_unchanged(now);
  set_buffers(std::move(now.buffers));
}

StateDict ModelContext::state_dict() const {
  StateDict state;
  for (size_t i = 0; i < model.names.size(); ++i) {
    state.set(
        key(kParameters, model.names[i]), engine->saved(model.parameters[i]));
  }
  for (size_t i = 0; i < model.buffer_names.size(); ++i) {
    state.set(key(kBuffers, model.buffer_names[i]), model.buffers[i].detach());
  }
  return state;
}

void ModelContext::load_state_dict(const StateDict& state) {
  std::unordered_map<std::string, StateValue> values(
      state.begin(), state.end());
  std::string missing;
  const auto expect = [&](const std::string& wanted) {
    if (!values.contains(wanted)) {
      missing += str_cat(missing.empty() ? "'" : ", '", wanted, "'");
    }
  };
  for (const auto& name : model.names) {
    expect(key(kParameters, name));
  }
  for (const auto& name : model.buffer_names) {
    expect(key(kBuffers, name));
  }
  const size_t num_own = model.names.size() + model.buffer_names.size();
  if (!missing.empty() || values.size() != num_own) {
    throw UsageError(str_cat(
        "[load_state_dict] the state of a model has ",
        values.size(),
        " tensors, expected ",
        num_own,
        missing.empty() ? "" : str_cat("; it lacks ", missing),
        "; was it saved for another model?"));
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < model.names.size(); ++i) {
    engine->load(
        model.parameters[i], values.at(key(kParameters, model.names[i])));
  }
  for (size_t i = 0; i < model.buffer_names.size(); ++i) {
    model.buffers[i].detach().copy_(
        state.get<at::Tensor>(key(kBuffers, model.buffer_names[i])));
  }
}

} // namespace accelerate
