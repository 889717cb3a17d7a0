// SPDX-License-Identifier: Apache-2.0
#include "accelerate/training/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <new>
#include <string>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/device/accelerator_kinds.h"

namespace accelerate {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    return true;
  }
  const std::string message = error.what();
  for (const char* sign :
       {" out of memory",
        "DefaultCPUAllocator: can't allocate memory",
        "DefaultCPUAllocator: not enough memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"}) {
    if (message.find(sign) != std::string::npos) {
      return true;
    }
  }
  return false;
}

void clear_device_cache() {
  for (const auto* kind : accelerator_kinds()) {
    // Kinds of devices that torch was built without have no allocator.
    if (!c10::impl::hasDeviceGuardImpl(kind->type)) {
      continue;
    }
    auto* allocator =
        dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(kind->type));
    // Skip devices that are not in use. Otherwise they would be initialised
    // only to empty their caches.
    if (allocator != nullptr && allocator->initialized()) {
      allocator->emptyCache();
    }
  }
}

namespace detail {

void check_batch_size(int64_t batch_size) {
  if (batch_size < 1) {
    throw UsageError(str_cat(
        "[find_executable_batch_size] batch_size is ",
        batch_size,
        ", expected at least 1"));
  }
}

int64_t next_batch_size(
    int64_t batch_size,
    const BatchSizeSearchOptions& options) {
  const int64_t next = options.reduce_batch_size
                           ? options.reduce_batch_size(batch_size)
                           : batch_size * 9 / 10;
  if (next >= batch_size) {
    throw UsageError(str_cat(
        "[find_executable_batch_size] reduce_batch_size returned ",
        next,
        " for ",
        batch_size,
        ". It must return a smaller size"));
  }
  if (next < 1) {
    throw UsageError(
        "[find_executable_batch_size] No executable batch size found, reached "
        "zero. The model itself may be too large for the available memory");
  }
  return next;
}

} // namespace detail
} // namespace accelerate
