// SPDX-License-Identifier: Apache-2.0
// Objects whose state is sliced over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/state/state_dict.h"
#include "core/base/internal.h"

namespace accelerate {

class ACCELERATE_INTERNAL SliceHolder {
 public:
  virtual ~SliceHolder() = default;
  /// Which elements of the tensors in a saved state this rank needs, regardless
  /// of how the saved state is sliced. A tensor that is not listed is needed
  /// whole.
  virtual std::map<std::string, TensorPieces> pieces_needed(
      const StateDict& saved) const = 0;
};

/// These elements of a tensor, flat. Returns a view if they are contiguous,
/// else a copy.
ACCELERATE_INTERNAL at::Tensor elements_at(
    const at::Tensor& whole,
    const TensorPieces& pieces);

/// Joins slices into the whole tensor, on the CPU. Throws `UsageError` if the
/// slices do not cover it.
ACCELERATE_INTERNAL at::Tensor join_slices(
    const std::vector<int64_t>& whole,
    const std::vector<std::pair<TensorPieces, at::Tensor>>& slices);

/// The shape of a tensor, or of the whole tensor of a slice. [-1] for other
/// values.
std::vector<int64_t> whole_shape(const StateValue& value);

} // namespace accelerate
