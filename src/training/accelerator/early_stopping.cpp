// SPDX-License-Identifier: Apache-2.0
#include "accelerate/training/early_stopping.h"

#include <cmath>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(options) {
  if (options.patience < 1 || !(options.min_delta >= 0)) {
    throw UsageError(str_cat(
        "[EarlyStopping] patience is ",
        options.patience,
        " and min_delta is ",
        options.min_delta,
        ". Use a patience of at least 1 and a min_delta of at least 0"));
  }
}

bool EarlyStopping::should_stop(double value) {
  const double gain = !best_                      ? HUGE_VAL
                      : options_.larger_is_better ? value - *best_
                                                  : *best_ - value;
  if (!std::isnan(value) && gain > options_.min_delta) {
    best_ = value;
    num_worse_ = 0;
  } else {
    ++num_worse_;
  }
  return num_worse_ >= options_.patience;
}

StateDict EarlyStopping::state_dict() const {
  StateDict state;
  state.set("num_worse", num_worse_);
  if (best_) {
    state.set("best", *best_);
  }
  return state;
}

void EarlyStopping::load_state_dict(const StateDict& state) {
  num_worse_ = state.get<int64_t>("num_worse");
  best_.reset();
  if (state.contains("best")) {
    best_ = state.get<double>("best");
  }
}

} // namespace accelerate
