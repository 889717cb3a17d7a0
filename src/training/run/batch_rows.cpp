// SPDX-License-Identifier: Apache-2.0
#include "training/run/batch_rows.h"

#include <ATen/ATen.h>

#include "core/base/str.h"

namespace accelerate {

std::vector<at::Tensor> BatchRows::gather_real(
    const detail::Leaves& leaves) const {
  detail::Leaves real = leaves;
  for (auto& tensor : real.tensors) {
    if (tensor.defined()) {
      tensor = real_rows(tensor);
    }
  }
  return detail::all_gather(group_, real);
}

int64_t BatchRows::num_real(int64_t size, bool are_copies) const {
  const auto batch = step_state_->batch_in_use();
  if (!batch) {
    return size;
  }
  return are_copies && batch->has_rows_of_full_batch(size)
             ? batch->num_real
             : batch->num_real_of(size);
}

std::optional<std::string> BatchRows::mixed_repeats(int64_t size) const {
  const auto batch = step_state_->batch_in_use();
  if (!batch || !batch->mixes_repeats(size)) {
    return std::nullopt;
  }
  return str_cat(
      batch->num_samples - batch->num_real,
      " of the ",
      batch->num_samples,
      " samples in this batch are repeats, and it is unknown "
      "which of the ",
      size,
      " rows belong to them. Pass one row per sample, turn even_batches off, "
      "or use a batch sampler without a fixed batch size, which makes the "
      "loader repeat whole batches.");
}

at::Tensor BatchRows::real_rows(const at::Tensor& values) const {
  const auto batch = step_state_->batch_in_use();
  if (!batch || values.dim() == 0) {
    return values;
  }
  const int64_t size = values.size(0);
  // Waits for the device only in the short last batch of an epoch.
  const auto are_copies = [&] {
    const auto first = values.narrow(0, 0, 1);
    const auto is_nan = values.isnan().logical_and(first.isnan());
    return values.eq(first).logical_or(is_nan).all().item<bool>();
  };
  const bool are_of_full = batch->has_rows_of_full_batch(size) &&
                           values.is_floating_point() && are_copies();
  return values.narrow(0, 0, num_real(size, are_of_full));
}

} // namespace accelerate
