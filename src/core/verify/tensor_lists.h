// SPDX-License-Identifier: Apache-2.0
// Norms and factors of lists of tensors, computed from their sketches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/verify/process_record.h"

namespace accelerate::verify {

inline constexpr double kEpsilon32 = 0x1p-23;

using Tensors = std::vector<TensorRecord>;

/// Returns null if no tensor has this name.
const TensorRecord* find(const Tensors& tensors, const std::string& name);

/// Norms over all tensors, from which the scale of each tensor follows.
struct Scale {
  double squares = 0;
  std::int64_t num_elements = 0;

  /// A small part of the norm that a tensor would have if all elements were
  /// alike. Gradients that are zero in exact arithmetic, such as those of key
  /// biases in attention, stay below it.
  double floor_of(const TensorRecord& tensor) const;
};

Scale scale_of(const Tensors& tensors);

/// Adds the tensors of a rank to those of the ranks before it, as one process
/// would have them. A rank may have no shard of a tensor.
void add_rank(const Tensors& tensors, Tensors& whole);

/// The factor by which the tensors of `a` differ from those of `b`, in the
/// least-squares sense. 0 if `b` is zero.
double factor_between(const Tensors& a, const Tensors& b);

/// Whether all tensors of `a` are those of `b` times the same factor.
bool are_multiples(
    const Tensors& a,
    const Tensors& b,
    double factor,
    double tolerance);

} // namespace accelerate::verify
