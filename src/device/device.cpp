// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

namespace accelerate {

int num_gpus() {
  return static_cast<int>(torch::cuda::device_count());
}

c10::Device select_device(int local_rank, bool cpu) {
  const int gpus = cpu ? 0 : num_gpus();
  if (gpus == 0) {
    return c10::Device(c10::kCPU);
  }
  const c10::Device device(
      c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % gpus));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return device;
}

at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device() == device) {
    return tensor;
  }
  return tensor.to(device, /*non_blocking=*/tensor.is_pinned());
}

} // namespace accelerate
