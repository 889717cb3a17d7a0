// SPDX-License-Identifier: Apache-2.0
// The clock of steps on an accelerator.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "core/observe/rank_record.h"

namespace accelerate {

/// Events on the calling thread's current stream. Null if the device has no
/// events with timing. Waits for the device once, for the first event.
std::unique_ptr<DeviceMarks> make_device_marks(c10::Device device);

} // namespace accelerate
