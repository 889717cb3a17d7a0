// SPDX-License-Identifier: Apache-2.0
// Training in which ranks meet only every few steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/accelerator.h"
#include "accelerate/export.h"

namespace accelerate {

/// While it lives, gradients of the model stay local and every rank trains by
/// itself; after each `local_sgd_steps` calls of `step`, and when it goes, the
/// trained parameters become their mean over ranks: one reduction for all of
/// them (per dtype and device). Alone, nothing happens. Buffers and the state
/// of optimizers stay each rank's own. A weight of a loss counts among the
/// rank's own losses. Call `step` equally often on all ranks:
///
///     accelerate::LocalSGD local_sgd(accelerator, net, 8);
///     for (auto& batch : loader) {
///       accelerator.backward(loss_of(net(batch)));
///       opt.step();
///       opt.zero_grad();
///       local_sgd.step();
///     }
///
/// Where the block is left by an exception, nothing is averaged.
class ACCELERATE_API LocalSGD {
 public:
  /// Throws `UsageError` where `local_sgd_steps` is less than 1.
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
  /// The same of what a prepared model consists of.
  LocalSGD(
      const ProcessGroup& group,
      ParallelEngine& engine,
      const std::vector<at::Tensor>& parameters,
      int64_t local_sgd_steps);
  ~LocalSGD() noexcept(false);
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  /// After every step of the optimizer.
  void step();

 private:
  void average();

  ProcessGroup group_;
  NoSyncGuard no_sync_;
  std::shared_ptr<ParallelEngine> engine_;
  /// Parameters that can travel in one piece.
  std::vector<std::vector<at::Tensor>> groups_;
  int64_t local_sgd_steps_;
  int64_t num_steps_ = 0;
  int num_exceptions_;
};

} // namespace accelerate
