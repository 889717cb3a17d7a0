// SPDX-License-Identifier: Apache-2.0
// Batch normalisation over the batches of all ranks.
//
// The layers of an existing C++ module cannot be replaced, so use these modules
// instead of `torch::nn::BatchNorm1d/2d/3d`. Options, parameters, buffers and
// their names are the same, so weights can be exchanged between the two.
//
//     struct NetImpl : torch::nn::Module {
//       accelerate::SyncBatchNorm2d norm{
//           register_module("norm", accelerate::SyncBatchNorm2d(16))};
//     };
#pragma once

#include <torch/nn/modules/batchnorm.h>

#include <optional>

#include "accelerate/detail/needs_process_group.h"
#include "accelerate/distributed/process_group.h"

namespace accelerate {

/// If the module is prepared for several ranks and in training mode, it
/// computes the mean and variance over the samples of all ranks. Batches may
/// have different sizes, including zero. The forward and backward passes each
/// call one collective, so every rank must run both. Running statistics are
/// equal on all ranks. In all other cases, the module behaves like torch's
/// batch normalisation. Gradients of the weights are local, and DDP averages
/// them. Second derivatives are not supported.
template <size_t D, class Derived>
class SyncBatchNormImplBase : public torch::nn::BatchNormImplBase<D, Derived>,
                              public detail::NeedsProcessGroup {
 public:
  using Base = torch::nn::BatchNormImplBase<D, Derived>;
  explicit SyncBatchNormImplBase(int64_t num_features)
      : Base(torch::nn::BatchNormOptions(num_features)) {}
  explicit SyncBatchNormImplBase(const torch::nn::BatchNormOptions& options)
      : Base(options) {}

  at::Tensor forward(const at::Tensor& input) {
    if (!this->is_training() || !group_ || group_->world_size() == 1) {
      return Base::forward(input);
    }
    _check_input_dim(input);
    double momentum = this->options.momentum().value_or(0);
    if (this->num_batches_tracked.defined()) {
      this->num_batches_tracked += 1;
      if (!this->options.momentum()) {
        momentum = 1.0 / this->num_batches_tracked.template item<double>();
      }
    }
    return detail::sync_batch_norm(
        *group_,
        {input,
         this->weight,
         this->bias,
         this->running_mean,
         this->running_var,
         momentum,
         this->options.eps()});
  }

  void set_process_group(const ProcessGroup& group) override { group_ = group; }

  void pretty_print(std::ostream& stream) const override {
    stream << "accelerate::SyncBatchNorm" << D << "d("
           << this->options.num_features() << ", eps=" << this->options.eps()
           << ')';
  }

 protected:
  void _check_input_dim(const at::Tensor& input) override {
    constexpr auto kDims = static_cast<int64_t>(D) + 2;
    detail::check_batch_norm_dim(input, D == 1 ? 2 : kDims, kDims);
  }

 private:
  std::optional<ProcessGroup> group_;
};

/// For inputs of shape [N, C] or [N, C, L].
class SyncBatchNorm1dImpl
    : public SyncBatchNormImplBase<1, SyncBatchNorm1dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};
TORCH_MODULE(SyncBatchNorm1d);

/// For inputs of shape [N, C, H, W].
class SyncBatchNorm2dImpl
    : public SyncBatchNormImplBase<2, SyncBatchNorm2dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};
TORCH_MODULE(SyncBatchNorm2d);

/// For inputs of shape [N, C, D, H, W].
class SyncBatchNorm3dImpl
    : public SyncBatchNormImplBase<3, SyncBatchNorm3dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};
TORCH_MODULE(SyncBatchNorm3d);

} // namespace accelerate
