// SPDX-License-Identifier: Apache-2.0
// A second strategy, small enough to read quickly, that uses every callback of
// an engine: weights and gradients are whole on every rank; each rank trains
// its own slice of every parameter and stores its moments.
#pragma once

#include <map>
#include <string>

#include "accelerate/own_engine.h"
#include "parallel/engine.h"
#include "parallel/strategies.h"

namespace accelerate {

class OptimizerSharder final : public ParallelEngine {
 public:
  explicit OptimizerSharder(const EngineArguments& arguments);

  bool is_local() const override { return false; }
  void before_forward() override;
  bool wants_outputs() const override { return true; }
  void after_forward(std::span<at::Tensor* const> outputs) override;
  void abandon_forward() override { ++calls["abandon_forward"]; }
  void set_buffers(
      const std::vector<std::string>& names,
      const std::vector<at::Tensor>& buffers) override;
  void before_backward() override { ++calls["before_backward"]; }
  /// At an update: sums the gradients and gives the slices theirs.
  void after_backward() override;
  void abandon_backward() override { ++calls["abandon_backward"]; }
  void set_sync(bool sync) override { sync_ = sync; }
  bool sync() const override { return sync_; }
  void sync_next_backward() override { syncs_next_ = true; }

  at::Tensor gradient(const at::Tensor& parameter) const override;
  void scale_gradients(
      const std::vector<at::Tensor>& parameters,
      const at::Tensor& factor) override;
  void zero_gradients(const std::vector<at::Tensor>& parameters, Zeroing how)
      override;

  at::Tensor trained(const at::Tensor& parameter) const override;
  const TensorLayout& tensor_layout(const at::Tensor& parameter) const override;
  void before_step() override { ++calls["before_step"]; }
  /// All ranks receive all slices.
  void after_step(bool did_step) override;
  void abandon_step() override { ++calls["abandon_step"]; }

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// How often each callback was called.
  std::map<std::string, int> calls;

 private:
  struct Slice {
    at::Tensor parameter;
    /// A view of the parameter's memory.
    at::Tensor own;
    int64_t begin = 0;
    TensorLayout layout;
  };
  const Slice& slice_of(const at::Tensor& tensor) const;

  ProcessGroup group_;
  std::vector<at::Tensor> buffers_;
  std::vector<Slice> slices_;
  bool sync_ = true;
  bool syncs_next_ = false;
  /// Whether the gradients of the slices are complete.
  bool is_reduced_ = false;
  int64_t num_steps_ = 0;
};

/// `latest` is the latest engine, while it exists.
OwnEngine optimizer_sharder(OptimizerSharder** latest = nullptr);

} // namespace accelerate
