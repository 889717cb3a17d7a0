// SPDX-License-Identifier: Apache-2.0
// The device that a rank trains on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "core/base/internal.h"

namespace accelerate {

/// The kind of device that a single process trains on, without an index.
ACCELERATE_INTERNAL c10::Device default_device();

/// The accelerator of a local rank (shared if there are fewer devices), or the
/// CPU if there is none or `cpu` is set. Makes it the calling thread's current
/// device, so that a rank never uses another rank's.
ACCELERATE_INTERNAL c10::Device select_device(int local_rank, bool cpu);

/// The tensor on `device`; itself if it is already there. Copies from pinned
/// memory do not block.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device);

} // namespace accelerate
