// SPDX-License-Identifier: Apache-2.0
#include "training/run/loss_watch.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>

namespace accelerate {
namespace {

constexpr int64_t kCopiesEvery = 4;

} // namespace

/// A loss that is being copied to the host.
struct LossWatch::Copy {
  at::Tensor value;
  c10::Event is_there;
  bool is_under_way = false;
};

LossWatch::LossWatch() = default;
LossWatch::~LossWatch() = default;

void LossWatch::count(double loss, int64_t num_losses) {
  num_bad_ = std::isfinite(loss) ? 0 : num_bad_ + num_losses;
}

bool LossWatch::is_lost(const at::Tensor& loss) {
  if (is_over_ || !loss.defined() || loss.numel() != 1 ||
      !loss.is_floating_point()) {
    return false;
  }
  if (loss.is_cpu()) {
    count(loss.item<double>(), 1);
  } else if (num_seen_++ % kCopiesEvery == 0) {
    const auto device = loss.device();
    if (!copy_) {
      copy_ = std::make_unique<Copy>(Copy{
          at::empty({}, at::dtype(at::kFloat).pinned_memory(true)),
          c10::Event(device.type())});
    }
    if (copy_->is_under_way && copy_->is_there.query()) {
      copy_->is_under_way = false;
      count(copy_->value.item<float>(), kCopiesEvery);
    }
    if (!copy_->is_under_way) {
      const at::NoGradGuard no_grad;
      copy_->value.copy_(loss.detach().reshape({}), /*non_blocking=*/true);
      copy_->is_there.record(
          c10::impl::VirtualGuardImpl(device.type()).getStream(device));
      copy_->is_under_way = true;
    }
  }
  is_over_ = num_bad_ >= kPatience;
  return is_over_;
}

} // namespace accelerate
