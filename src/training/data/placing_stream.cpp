// SPDX-License-Identifier: Apache-2.0
// Moves batches to the device of a rank.
#include "training/data/batch_stream.h"
#include "training/device/device.h"
#include "training/device/side_stream.h"

namespace accelerate::detail {
namespace {

class PlainStream final : public BatchStream {
 public:
  PlainStream(
      std::shared_ptr<const BatchSource> source,
      std::unique_ptr<BatchStream> inner,
      c10::Device device)
      : source_(std::move(source)), inner_(std::move(inner)), device_(device) {}

  std::optional<Item> next() override {
    auto item = inner_->next();
    if (item) {
      for_each_tensor(*source_, item->batch, [this](at::Tensor& tensor) {
        tensor = to_device(tensor, device_);
      });
    }
    return item;
  }

 private:
  std::shared_ptr<const BatchSource> source_;
  std::unique_ptr<BatchStream> inner_;
  c10::Device device_;
};

/// Copies the next batch while the loop computes with the current one.
class AheadStream final : public BatchStream {
 public:
  AheadStream(
      std::shared_ptr<const BatchSource> source,
      std::unique_ptr<BatchStream> inner,
      c10::Device device)
      : source_(std::move(source)), inner_(std::move(inner)), side_(device) {}

  std::optional<Item> next() override {
    if (!ahead_) {
      start_copy();
    }
    const auto mark = mark_;
    if (ahead_->error) {
      // The loop may continue after the error.
      const auto error = ahead_->error;
      ahead_.reset();
      std::rethrow_exception(error);
    }
    auto item = ahead_->take();
    if (item) {
      start_copy();
      std::vector<at::Tensor> tensors;
      for_each_tensor(*source_, item->batch, [&](at::Tensor& tensor) {
        tensors.push_back(tensor);
      });
      side_.hand_over(*mark, tensors);
    }
    return item;
  }

 private:
  void start_copy() {
    ahead_ = peek(*inner_);
    if (!ahead_->item) {
      return;
    }
    try {
      for_each_tensor(*source_, ahead_->item->batch, [this](at::Tensor& t) {
        t = side_.copy(t);
      });
      mark_ = side_.mark();
    } catch (...) {
      // The error is thrown when the batch would have been returned.
      ahead_->item.reset();
      ahead_->error = std::current_exception();
    }
  }

  std::shared_ptr<const BatchSource> source_;
  std::unique_ptr<BatchStream> inner_;
  SideStream side_;
  std::optional<Peeked> ahead_;
  std::shared_ptr<SideStream::Mark> mark_;
};

} // namespace

std::unique_ptr<BatchStream> make_placing_stream(
    const EpochPlan& plan,
    std::unique_ptr<BatchStream> stream) {
  const auto& device = plan.context.device;
  if (!device) {
    return stream;
  }
  if (device->is_cpu()) {
    return std::make_unique<PlainStream>(
        plan.source, std::move(stream), *device);
  }
  return std::make_unique<AheadStream>(plan.source, std::move(stream), *device);
}

} // namespace accelerate::detail
