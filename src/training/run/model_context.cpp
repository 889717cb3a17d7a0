// SPDX-License-Identifier: Apache-2.0
#include "training/run/model_context.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/run/mismatch_list.h"

namespace accelerate {
namespace {

/// Runs `work`. Throws `UsageError` if the tensor cannot be written, e.g.
/// because its elements share memory after `expand`.
template <class Work>
void write_into(const std::string& name, Work&& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    throw UsageError(str_cat(
        "[load_state_dict] '",
        name,
        "' is not writable: ",
        error.what_without_backtrace(),
        ". Make it contiguous() before prepare()"));
  }
}

} // namespace

void ModelContext::check_join() const {
  if (at::GradMode::is_enabled() && reductions->leaves_out(*engine)) {
    throw UsageError(str_cat(
        "[join_uneven_inputs] The prepared ",
        type,
        " was called with gradients enabled, but was not passed to "
        "join_uneven_inputs(). Pass every model that the loop trains, or call "
        "this one under no_grad"));
  }
}

void ModelContext::note_input(const at::Tensor& input) const {
  // Batches of a prepared loader belong to this rank only, so they need no
  // check.
  if (!inputs->is_over() && at::GradMode::is_enabled() && !is_for_evaluation &&
      !step_state->is_captured() && !step_state->batch_in_use()) {
    inputs->note(input);
  }
}

void ModelContext::set_buffers(
    std::vector<std::string> names,
    std::vector<at::Tensor> buffers) {
  engine->set_buffers(names, buffers);
  model.buffer_names = std::move(names);
  model.buffers = std::move(buffers);
}

void ModelContext::prepare_again(ParameterSet now) {
  as_prepared.check_unchanged("prepare", now);
  set_buffers(std::move(now.buffer_names), std::move(now.buffers));
  model.tied = std::move(now.tied);
  model.transient_buffers = std::move(now.transient_buffers);
}

StateDict ModelContext::state_dict() const {
  StateDict state;
  for (size_t i = 0; i < model.names.size(); ++i) {
    state.set(model.names[i], engine->saved(model.parameters[i]));
  }
  for (size_t i = 0; i < model.buffer_names.size(); ++i) {
    if (!model.transient_buffers.contains(model.buffer_names[i])) {
      state.set(model.buffer_names[i], model.buffers[i].detach());
    }
  }
  return state;
}

bool ModelContext::is_spread() const {
  return std::any_of(
      model.parameters.begin(),
      model.parameters.end(),
      [&](const at::Tensor& parameter) {
        return std::holds_alternative<TensorSlice>(engine->saved(parameter));
      });
}

std::map<std::string, TensorPieces> ModelContext::pieces_needed(
    const StateDict& saved) const {
  std::map<std::string, const at::Tensor*> parameter_of;
  for (size_t i = 0; i < model.names.size(); ++i) {
    parameter_of[model.names[i]] = &model.parameters[i];
  }
  std::map<std::string, TensorPieces> needed;
  for (const auto& [name, value] : saved) {
    const auto tied = model.tied.find(name);
    const auto found =
        parameter_of.find(tied == model.tied.end() ? name : tied->second);
    if (found == parameter_of.end() ||
        whole_shape(value) != engine->whole_sizes(*found->second)) {
      continue;
    }
    // Slices are enough if all ranks gather them. A tensor that this rank keeps
    // whole needs no gather.
    const auto& pieces = engine->pieces(*found->second);
    if (pieces &&
        (std::holds_alternative<TensorSlice>(value) ||
         std::holds_alternative<TensorSlice>(engine->saved(*found->second)))) {
      needed[name] = *pieces;
    }
  }
  return needed;
}

std::vector<ModelContext::Matched> ModelContext::match(
    const StateDict& state) const {
  std::map<std::string, StateValue> values;
  for (const auto& [name, value] : state) {
    // A tensor with two names may have been saved under the other name.
    const auto tied = model.tied.find(name);
    values.emplace(tied == model.tied.end() ? name : tied->second, value);
  }
  MismatchList mismatches;
  std::vector<Matched> matched;
  const auto add = [&](const std::string& name,
                       const at::Tensor& tensor,
                       bool is_parameter) {
    const auto value = values.extract(name);
    const auto sizes =
        is_parameter ? engine->whole_sizes(tensor) : tensor.sizes().vec();
    if (!value) {
      mismatches.add("missing tensors", name);
    } else if (whole_shape(value.mapped()) != sizes) {
      mismatches.add(
          "tensors of a different shape",
          name,
          str_cat(
              ' ',
              at::IntArrayRef(whole_shape(value.mapped())),
              " instead of ",
              at::IntArrayRef(sizes)));
    } else {
      matched.push_back({name, tensor, value.mapped(), is_parameter});
    }
  };
  for (size_t i = 0; i < model.names.size(); ++i) {
    add(model.names[i], model.parameters[i], true);
  }
  for (size_t i = 0; i < model.buffer_names.size(); ++i) {
    if (!model.transient_buffers.contains(model.buffer_names[i])) {
      add(model.buffer_names[i], model.buffers[i], false);
    }
  }
  for (const auto& [name, value] : values) {
    mismatches.add("unexpected tensors", name);
  }
  if (!mismatches.empty()) {
    throw UsageError(str_cat(
        "[load_state_dict] The saved state does not fit the ",
        type,
        ": ",
        mismatches.text(),
        ". Was it saved with a different model?"));
  }
  return matched;
}

void ModelContext::check_state_dict(const StateDict& state) const {
  match(state);
}

void ModelContext::load_state_dict(const StateDict& state) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor, value, is_parameter] : match(state)) {
    write_into(name, [&, &tensor = tensor, &value = value] {
      if (is_parameter) {
        engine->load(tensor, value);
      } else {
        tensor.detach().copy_(std::get<at::Tensor>(value));
      }
    });
  }
}

} // namespace accelerate
