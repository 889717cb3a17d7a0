// SPDX-License-Identifier: Apache-2.0
// A custom layer, small enough to read quickly, that uses every callback of a
// step: weights and gradients are whole on every rank; each rank trains
// its own slice of every parameter and stores its moments.
#pragma once

#include <map>
#include <string>

#include "accelerate/distributed/own_engine.h"
#include "training/parallel/layers.h"

namespace accelerate {

class OptimizerSharder final : public ForwardLayer,
                               public ExchangeLayer,
                               public GradientLayer,
                               public UpdateLayer,
                               public PlacementLayer,
                               public StateLayer {
 public:
  explicit OptimizerSharder(const EngineArguments& arguments);

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

  std::optional<at::Tensor> gradient(
      const at::Tensor& parameter) const override;
  void zero_gradients(const std::vector<at::Tensor>& parameters, Zeroing how)
      override;

  LayerPlacement place(const at::Tensor& tensor) const override;
  void before_step() override { ++calls["before_step"]; }
  /// All ranks receive all slices.
  void after_step(bool did_step) override;
  void abandon_step() override { ++calls["abandon_step"]; }

  at::Tensor whole_value(const at::Tensor& parameter) const override {
    return parameter;
  }
  void take_loaded(const at::Tensor& parameter, const at::Tensor& whole)
      override {
    parameter.detach().copy_(whole);
  }
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
    int64_t share = 0;
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
