// SPDX-License-Identifier: Apache-2.0
// The device that a rank trains on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "core/base/internal.h"

namespace accelerate {

/// The kind of device that a single process trains on, without an index.
ACCELERATE_INTERNAL c10::Device default_device();

/// The accelerator of a local rank, or the CPU if there is no accelerator or
/// `cpu` is set. Local ranks share accelerators if there are fewer devices than
/// ranks. Makes the device the calling thread's current one, so that a rank
/// never uses another rank's.
ACCELERATE_INTERNAL c10::Device select_device(int local_rank, bool cpu);

/// The memory of a device that tensors use. All fields are 0 if the device's
/// allocator does not count it.
struct DeviceBytes {
  int64_t current = 0;
  int64_t peak = 0;
};
DeviceBytes device_bytes(c10::Device device);

/// The tensor on `device`. Returns the same tensor if it is already there.
/// Copies from pinned memory do not block.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device);

} // namespace accelerate
