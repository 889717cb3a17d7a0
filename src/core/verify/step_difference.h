// SPDX-License-Identifier: Apache-2.0
// How far one step of several processes is from the same step of one process.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "core/verify/process_record.h"
#include "core/verify/tensor_lists.h"
#include "core/verify/verdict.h"

namespace accelerate::verify {

/// The relative difference that uses the largest part of its tolerance.
struct Worst {
  double difference = 0;
  double tolerance = 1;
  bool is_set = false;
  /// The name of the tensor, if it is one of several.
  std::string where = {};

  /// NaN if the difference is NaN.
  double part() const { return difference / tolerance; }
  void add(const Worst& other) {
    const bool is_worse = std::isnan(other.part()) || other.part() > part();
    if (other.is_set && (!is_set || (is_worse && !std::isnan(part())))) {
      *this = other;
    }
  }
  bool is_too_large() const { return is_set && !(part() <= 1); }
};

/// A step that differs.
struct StepDifference {
  size_t step = 0;
  /// How many times larger the batches of the single process are.
  int num_merged = 1;
  /// The records of all ranks, and that of one process.
  std::vector<const UpdateRecord*> updates;
  const UpdateRecord& expected;
  /// The gradients of all ranks together.
  const Tensors& gradients;
  const Worst& loss;
  const Worst& gradient;
  const Worst& parameter;
  /// The tolerance of values that are equal in exact arithmetic.
  double exact = 0;
};

/// Losses averaged by their weights. 0 without any.
double mean_loss(const std::vector<const UpdateRecord*>& updates);

/// What is wrong, and the likely mistake, in one line each. The verdict is "not
/// comparable" if a correct program can also cause the difference.
Verdict explain(const StepDifference& difference);

std::string short_number(double value);

} // namespace accelerate::verify
