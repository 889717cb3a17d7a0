// SPDX-License-Identifier: Apache-2.0
// Local SGD: ranks average their parameters every few steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/accelerator.h"
#include "accelerate/export.h"

namespace accelerate {

/// During the lifetime of this object, gradients of the model stay local, and
/// every rank trains by itself. After every `local_sgd_steps` calls to `step`,
/// and in the destructor, the trained parameters are averaged over ranks, with
/// one reduction per dtype and device. On a single rank, this has no effect.
/// Buffers and optimizer state stay local. A loss weight
/// (`BackwardOptions::weight`) is relative to the other losses of the same
/// rank. Call `step` equally often on all ranks:
///
///     accelerate::LocalSGD local_sgd(accelerator, net, 8);
///     for (auto& batch : loader) {
///       accelerator.backward(loss_of(net(batch)));
///       opt.step();
///       opt.zero_grad();
///       local_sgd.step();
///     }
///
/// If an exception leaves the block, nothing is averaged.
class ACCELERATE_API LocalSGD {
 public:
  /// Throws `UsageError` if `local_sgd_steps` is less than 1.
  template <class Module>
  LocalSGD(
      Accelerator& accelerator,
      PreparedModel<Module>& model,
      int64_t local_sgd_steps)
      : LocalSGD(
            accelerator.process_group(),
            model.engine(),
            model->parameters(),
            local_sgd_steps) {}
  /// Takes the components of a prepared model instead of the model itself.
  LocalSGD(
      const ProcessGroup& group,
      ParallelEngine& engine,
      const std::vector<at::Tensor>& parameters,
      int64_t local_sgd_steps);
  ~LocalSGD() noexcept(false);
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  /// Call it after every step of the optimizer.
  void step();
  /// Makes the destructor average nothing, as after an exception. This is for
  /// callers whose errors are not C++ exceptions.
  void abandon() { is_abandoned_ = true; }

 private:
  void average();

  ProcessGroup group_;
  NoSyncGuard no_sync_;
  std::shared_ptr<ParallelEngine> engine_;
  /// Parameters that can be reduced together.
  std::vector<std::vector<at::Tensor>> groups_;
  int64_t local_sgd_steps_;
  int64_t num_steps_ = 0;
  int num_exceptions_;
  bool is_abandoned_ = false;
};

} // namespace accelerate
