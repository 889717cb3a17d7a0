// SPDX-License-Identifier: Apache-2.0
#include "training/device/host_copies.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>

namespace accelerate {

struct HostCopies::State {
  std::vector<at::Tensor> kept;
  size_t num_used = 0;
  /// Events recorded after the copies, by device.
  std::map<c10::DeviceIndex, c10::Event> ends;
};

HostCopies::HostCopies() : state_(std::make_unique<State>()) {}
HostCopies::~HostCopies() = default;

void HostCopies::restart() {
  wait();
  state_->kept.resize(state_->num_used); // free what the last round did not use
  state_->num_used = 0;
}

at::Tensor HostCopies::copy(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) {
    return tensor;
  }
  auto& kept = state_->kept;
  const size_t index = state_->num_used++;
  if (index == kept.size()) {
    kept.emplace_back();
  }
  const bool is_of_device = !tensor.is_cpu();
  auto& host = kept[index];
  if (!host.defined() || host.sizes() != tensor.sizes() ||
      host.scalar_type() != tensor.scalar_type() ||
      host.is_pinned() != is_of_device) {
    // Only copies to pinned memory are asynchronous.
    host = at::empty(
        tensor.sizes(),
        at::TensorOptions(tensor.scalar_type()).pinned_memory(is_of_device));
  }
  host.copy_(tensor.detach(), /*non_blocking=*/is_of_device);
  if (is_of_device) {
    const auto device = tensor.device();
    const c10::impl::VirtualGuardImpl guard(device.type());
    const auto found =
        state_->ends.try_emplace(device.index(), device.type()).first;
    found->second.record(guard.getStream(device));
  }
  return host;
}

void HostCopies::wait() {
  for (const auto& [device, end] : state_->ends) {
    end.synchronize();
  }
  state_->ends.clear();
}

} // namespace accelerate
