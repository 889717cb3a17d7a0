// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/compression.h"

#include <ATen/ATen.h>

namespace accelerate {
namespace {

class CastHook final : public c10d::CommHookInterface {
 public:
  CastHook(at::ScalarType dtype, std::shared_ptr<CompressionState> state)
      : dtype_(dtype), state_(std::move(state)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(
      c10d::GradBucket& bucket) override {
    auto buffer = bucket.getBuffer();
    // Divide before the sum, which could overflow otherwise.
    const auto small = buffer.to(dtype_).div_(state_->divisor);
    auto sum = start_sum(*state_, small)->getFuture();
    return sum->then(
        [buffer, small](c10::ivalue::Future&) {
          buffer.copy_(small);
          return c10::IValue(buffer);
        },
        c10::TensorType::get());
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  at::ScalarType dtype_;
  std::shared_ptr<CompressionState> state_;
};

/// Sums sparse gradients uncompressed, and lets another hook compress the rest.
class DenseOnlyHook final : public c10d::CommHookInterface {
 public:
  DenseOnlyHook(
      std::unique_ptr<c10d::CommHookInterface> dense,
      std::shared_ptr<CompressionState> state)
      : dense_(std::move(dense)), state_(std::move(state)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(
      c10d::GradBucket& bucket) override {
    auto gradient = bucket.getBuffer();
    if (!gradient.is_sparse()) {
      return dense_->runHook(bucket);
    }
    gradient.div_(state_->divisor);
    std::vector<at::Tensor> tensors = {gradient};
    return state_->group->allreduce(tensors)->getFuture()->then(
        [gradient](c10::ivalue::Future&) { return c10::IValue(gradient); },
        c10::TensorType::get());
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  std::unique_ptr<c10d::CommHookInterface> dense_;
  std::shared_ptr<CompressionState> state_;
};

CompressionHook of_kind(
    const DdpOptions& options,
    std::shared_ptr<CompressionState> state) {
  switch (options.compression) {
    case Compression::kFp16:
      return make_cast_compression(at::kHalf, std::move(state));
    case Compression::kBf16:
      return make_cast_compression(at::kBFloat16, std::move(state));
    case Compression::kPowerSgd:
      return make_power_sgd(options.power_sgd, std::move(state));
    case Compression::kNone:
      break;
  }
  return {};
}

} // namespace

CompressionHook make_cast_compression(
    at::ScalarType dtype,
    std::shared_ptr<CompressionState> state) {
  return {std::make_unique<CastHook>(dtype, std::move(state)), nullptr};
}

CompressionHook make_compression(
    const DdpOptions& options,
    std::shared_ptr<CompressionState> state) {
  auto compression = of_kind(options, state);
  if (compression.hook) {
    compression.hook = std::make_unique<DenseOnlyHook>(
        std::move(compression.hook), std::move(state));
  }
  return compression;
}

c10::intrusive_ptr<c10d::Work> start_sum(
    CompressionState& state,
    const at::Tensor& tensor) {
  state.bytes_sent += static_cast<int64_t>(tensor.nbytes());
  std::vector<at::Tensor> tensors = {tensor};
  return state.group->allreduce(tensors);
}

} // namespace accelerate
