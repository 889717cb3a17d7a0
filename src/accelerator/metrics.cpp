// SPDX-License-Identifier: Apache-2.0
// Gathering what counts of a batch.
#include <ATen/ATen.h>

#include "accelerate/accelerator.h"
#include "state/step_state.h"

namespace accelerate {

std::vector<at::Tensor> Accelerator::gather_real(
    const detail::Leaves& leaves) const {
  detail::Leaves real = leaves;
  for (auto& tensor : real.tensors) {
    if (tensor.defined() && tensor.dim() > 0) {
      const auto rows = static_cast<size_t>(tensor.size(0));
      tensor = tensor.narrow(0, 0, static_cast<int64_t>(num_real(rows)));
    }
  }
  return detail::all_gather(process_group(), real);
}

size_t Accelerator::num_real(size_t size) const {
  const auto batch = step_state()->batch();
  const bool is_of_batch =
      batch && size == static_cast<size_t>(batch->num_samples);
  return is_of_batch ? static_cast<size_t>(batch->num_real) : size;
}

} // namespace accelerate
