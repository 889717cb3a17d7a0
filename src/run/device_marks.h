// SPDX-License-Identifier: Apache-2.0
// The clock of steps on an accelerator.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "observe/rank_record.h"

namespace accelerate {

/// Events of the calling thread's current stream; null where such a device has
/// none that tell the time. Waits once, for a mark of its own.
std::unique_ptr<DeviceMarks> make_device_marks(c10::Device device);

} // namespace accelerate
