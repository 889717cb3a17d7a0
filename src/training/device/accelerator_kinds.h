// SPDX-License-Identifier: Apache-2.0
// The table of accelerators. Rows live as long as the process.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "accelerate/device/accelerator_kind.h"
#include "core/base/internal.h"

namespace accelerate {

/// All rows in order of preference.
ACCELERATE_INTERNAL std::vector<const AcceleratorKind*> accelerator_kinds();

/// The first kind in the table for which this process has devices. Null if
/// there is no such kind. Thread-safe.
const AcceleratorKind* accelerator_in_use();

/// The row of a device's kind. Null for the CPU and for kinds without a row.
const AcceleratorKind* kind_of(c10::Device device);

} // namespace accelerate
