// SPDX-License-Identifier: Apache-2.0
#include "training/device/device.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "training/device/accelerator_kinds.h"

namespace accelerate {

c10::Device default_device() {
  const auto* kind = accelerator_in_use();
  return c10::Device(kind != nullptr ? kind->type : c10::kCPU);
}

c10::Device select_device(int local_rank, bool cpu) {
  const auto* kind = cpu ? nullptr : accelerator_in_use();
  if (kind == nullptr) {
    return c10::Device(c10::kCPU);
  }
  const c10::Device device(
      kind->type, static_cast<c10::DeviceIndex>(local_rank % kind->count()));
  c10::impl::VirtualGuardImpl(kind->type).setDevice(device);
  return device;
}

DeviceBytes device_bytes(c10::Device device) {
  auto* allocator =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) {
    return {};
  }
  constexpr auto kAll =
      static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto bytes =
      allocator->getDeviceStats(device.index()).allocated_bytes[kAll];
  return {.current = bytes.current, .peak = bytes.peak};
}

at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device() == device) {
    return tensor;
  }
  return tensor.to(device, /*non_blocking=*/tensor.is_pinned());
}

} // namespace accelerate
