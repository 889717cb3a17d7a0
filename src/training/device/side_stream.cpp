// SPDX-License-Identifier: Apache-2.0
#include "training/device/side_stream.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "training/device/device.h"
#include "training/device/streams.h"

namespace accelerate {
struct SideStream::State {
  c10::Device device;
  c10::impl::VirtualGuardImpl guard;
  c10::Stream stream;

  explicit State(c10::Device device)
      : device(device),
        guard(device.type()),
        stream(stream_for(StreamRole::kCopies, device)) {}
};

class SideStream::Mark {
 public:
  explicit Mark(c10::DeviceType type) : event(type) {}
  c10::Event event;
};

SideStream::SideStream(c10::Device device)
    : state_(std::make_unique<State>(device)) {}
SideStream::~SideStream() = default;

at::Tensor SideStream::copy(const at::Tensor& tensor) {
  // Allocate the memory under the guard, too. It then belongs to this stream,
  // and the copy need not wait for computation.
  const c10::StreamGuard guard(state_->stream);
  return to_device(tensor, state_->device);
}

std::shared_ptr<SideStream::Mark> SideStream::mark() {
  auto mark = std::make_shared<Mark>(state_->device.type());
  mark->event.record(state_->stream);
  return mark;
}

void SideStream::hand_over(
    const Mark& mark,
    const std::vector<at::Tensor>& tensors) {
  const c10::Stream current = state_->guard.getStream(state_->device);
  mark.event.block(current);
  for (const auto& tensor : tensors) {
    if (tensor.defined() && tensor.device() == state_->device) {
      // The memory is released only when `current` has finished using it.
      tensor.record_stream(current);
    }
  }
}

at::Tensor pinned(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && !tensor.is_pinned()
             ? tensor.pin_memory()
             : tensor;
}

} // namespace accelerate
