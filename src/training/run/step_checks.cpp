// SPDX-License-Identifier: Apache-2.0
#include "training/run/step_checks.h"

#include <algorithm>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/watchdog.h"
#include "training/parallel/shared_tensors.h"
#include "training/run/ranks_equal.h"
#include "training/verification/step_recorder.h"

namespace accelerate {

void StepChecks::warn(const std::string& what) const {
  if (auto* recorder = StepRecorder::get()) {
    recorder->note_problem(what);
  }
  // With `debug`, warnings become errors.
  if (complain_ && !context_.debug()) {
    complain_(what);
  } else {
    Watchdog::say(what);
  }
}

void StepChecks::watch_loss(const at::Tensor& loss) {
  // Check on the main process only: averaged gradients make the losses of all
  // ranks NaN.
  if (context_.topology().is_main() && !context_.step_state->is_captured() &&
      loss_watch_.is_lost(loss)) {
    warn(str_cat(
        "[backward] The loss has been NaN or infinite for ",
        LossWatch::kPatience,
        " steps in a row, so the weights are probably NaN too. Load an earlier "
        "checkpoint, then lower the learning rate or check the data"));
  }
}

void StepChecks::watch_for_optimizers() {
  // Checks only the first calls, because scripts may inspect gradients for a
  // while before they train.
  constexpr int64_t kLooksAt = 10;
  if (!context_.step_state->sync_gradients() ||
      ++num_synchronised_ != kLooksAt || !context_.topology().is_main()) {
    return;
  }
  const auto optimizers = context_.living_optimizers();
  for (const auto& model : context_.living_models()) {
    const auto trains = [&](const auto& optimizer) {
      const auto own = optimizer->optimizer().parameters();
      return std::any_of(own.begin(), own.end(), [&](const auto& parameter) {
        return model->index_of.contains(parameter.unsafeGetTensorImpl());
      });
    };
    const bool is_sharded = model->engine->is_divided();
    if (model->is_for_evaluation || !is_trained(model->model) ||
        (context_.accumulation->num_steps() == 1 && !context_.scaler &&
         !is_sharded) ||
        std::any_of(optimizers.begin(), optimizers.end(), trains)) {
      continue;
    }
    warn(str_cat(
        "[backward] No prepared optimizer trains '",
        context_.state->name_of(*model),
        "'. Pass its optimizer to prepare(); otherwise the optimizer ",
        is_sharded        ? "misses the gradients that other ranks hold"
        : context_.scaler ? "uses fp16 gradients that are still scaled"
                          : "steps in every micro-batch"));
    return;
  }
}

void StepChecks::check_weights() const {
  for (const auto& model : context_.living_models()) {
    const auto& engine = *model->engine;
    // Ranks may differ while they train on their own.
    if (engine.is_local() || !engine.sync()) {
      continue;
    }
    ParameterSet whole;
    for (size_t i = 0; i < model->model.names.size(); ++i) {
      const auto& parameter = model->model.parameters[i];
      // Sharded parameters may not be on this rank.
      if (engine.tensor_layout(parameter).divided_along() ==
          engine.held_layout(parameter).divided_along()) {
        whole.names.push_back(model->model.names[i]);
        whole.parameters.push_back(parameter);
      }
    }
    check_ranks_equal(engine, whole);
  }
}

void StepChecks::check_arrivals() {
  // Report each kind once, because some programs step another model on purpose,
  // e.g. for comparison.
  const auto complain = [&](bool& is_said, const std::string& what) {
    if (auto* recorder = StepRecorder::get()) {
      recorder->note_problem(what);
    }
    if (!complain_) {
      throw UsageError(what);
    }
    if (!std::exchange(is_said, true)) {
      complain_(what);
    }
  };
  bool has_come = false;
  for (const auto& model : context_.living_models()) {
    const auto arrival = model->engine->arrival();
    has_come = has_come || (arrival != GradientArrival::kNone &&
                            !model->engine->is_local());
    if (arrival == GradientArrival::kLocal) {
      complain(
          model->is_said_to_stay,
          str_cat(
              "[backward] The gradients of '",
              context_.state->name_of(*model),
              "' were not synchronised between processes: the loss comes from "
              "the module that was passed to prepare(), or from a forward pass "
              "whose backward pass has already run. Call the model returned by "
              "prepare(), once for each backward pass"));
    }
  }
  if (!has_come) {
    complain(
        is_said_to_reach_none_,
        "[backward] This loss does not depend on any prepared model, so its "
        "gradients are not synchronised. Call the model returned by prepare()");
  }
  for (const auto& optimizer : context_.living_optimizers()) {
    if (const auto index = optimizer->unowned_parameter()) {
      complain(
          is_unowned_said_,
          str_cat(
              "[backward] Parameter ",
              *index,
              " of '",
              context_.state->name_of(*optimizer),
              "' does not belong to a prepared model, so its gradient is not "
              "synchronised and its value will differ between processes. Make "
              "it a parameter of a prepared model"));
    }
  }
}

} // namespace accelerate
