// SPDX-License-Identifier: Apache-2.0
// Fused versions of torch's optimizers, and optimizers that LibTorch does not
// have.
//
// They are `torch::optim::Optimizer`s, so `prepare` and schedulers accept them
// like any other optimizer. Names, defaults and arithmetic are those of
// Python's torch.optim, or of lion-pytorch for Lion.
//
//     accelerate::optim::AdamW optimizer(
//         model->parameters(), {.lr = 3e-5, .weight_decay = 0.01});
//
// Parameters without a gradient are not changed. A sparse gradient is an error.
// The state of a parameter is created in its first step, on its device. To save
// it, see optimizer_state.h (`torch::save` throws for these optimizers).
#pragma once

#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/detail/step_scalars.h"
#include "accelerate/export.h"
#include "accelerate/optim/optimizer_state.h"
#include "accelerate/optim/parameter_groups.h"

namespace accelerate::optim {

/// Like `torch.optim.AdamW(fused=True)`, with decoupled weight decay.
struct ACCELERATE_API AdamWOptions {
  static constexpr const char* kName = "AdamW";
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};

/// Like `torch.optim.Adam(fused=True)`, which adds weight decay to the
/// gradient.
struct ACCELERATE_API AdamOptions {
  static constexpr const char* kName = "Adam";
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
};

/// Like `torch.optim.SGD(fused=True)`.
struct ACCELERATE_API SGDOptions {
  static constexpr const char* kName = "SGD";
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  /// Requires momentum and no dampening.
  bool nesterov = false;
  bool maximize = false;
};

/// Like `torch.optim.Adafactor`, whose state is per row and per column instead
/// of per weight.
struct ACCELERATE_API AdafactorOptions {
  static constexpr const char* kName = "Adafactor";
  /// The maximum relative step size. It also scales weight decay.
  double lr = 1e-2;
  double beta2_decay = -0.8;
  /// Torch's `eps[0]`. Default: the machine epsilon of the parameter's dtype.
  std::optional<double> eps1 = {};
  double eps2 = 1e-3;
  /// The maximum root mean square of an update. Larger updates are scaled down.
  double d = 1;
  double weight_decay = 0;
  bool maximize = false;
};

/// Like `lion_pytorch.Lion`, whose updates depend only on signs.
struct ACCELERATE_API LionOptions {
  static constexpr const char* kName = "Lion";
  double lr = 1e-4;
  std::pair<double, double> betas = {0.9, 0.99};
  double weight_decay = 0;
  /// Decay by `weight_decay * lr / initial_lr` per step.
  bool decoupled_weight_decay = false;
};

enum class MuonAdjustLr { kOriginal, kMatchRmsAdamW };

/// Like `torch.optim.Muon`, whose updates are orthogonalised matrices. It
/// trains only matrices. Train biases, norms and embeddings with a separate
/// AdamW (`split_groups`).
struct ACCELERATE_API MuonOptions {
  static constexpr const char* kName = "Muon";
  double lr = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  int64_t ns_steps = 5;
  MuonAdjustLr adjust_lr = MuonAdjustLr::kOriginal;
};

/// The options of a group as torch sees them. Schedulers set `lr` through this
/// class.
template <class Options>
class GroupOptions : public torch::optim::OptimizerOptions {
 public:
  explicit GroupOptions(Options values) : values(std::move(values)) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<GroupOptions>(*this);
  }
  double get_lr() const override { return values.lr; }
  void set_lr(const double lr) override { values.lr = lr; }

  Options values;
};

/// The common base class of these optimizers. `State` is stored per parameter.
template <class Options, class State>
class ACCELERATE_API OptimizerOf : public torch::optim::Optimizer,
                                   public SavableOptimizer,
                                   public TakesStepScalars {
 public:
  /// Both constructors throw `UsageError` if an option is out of range.
  explicit OptimizerOf(
      std::vector<at::Tensor> parameters,
      Options options = {});
  explicit OptimizerOf(
      const std::vector<ParameterGroup>& groups,
      Options options = {});

  /// Calls `closure`, if given, with gradients enabled, and returns its result.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// The options of one group. Changes apply from the next step.
  Options& options(size_t group = 0);
  const Options& options(size_t group = 0) const;
  void add_group(const ParameterGroup& group);
  /// Adds a group and keeps its options. (Since torch 2.12, torch's own
  /// function replaces options of an unknown type with the defaults.)
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  std::string kind() const override;
  StateDict group_state(size_t group) const override;
  void load_group_state(size_t group, const StateDict& state) override;
  StateDict parameter_state(const at::Tensor& parameter) const override;
  void load_parameter_state(const at::Tensor& parameter, const StateDict& state)
      override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  bool takes_scalars() const override { return false; }
  /// Passes tensors with the overflow flag and the learning rates, for the next
  /// step only. Prepared optimizers call it.
  void give_scalars(StepScalars scalars) override;

 protected:
  /// Updates parameters that have dense gradients and the same device and
  /// dtype.
  virtual void update(
      const Options& options,
      const std::vector<at::Tensor>& parameters) = 0;
  /// The overflow flag of the current step on the device. Undefined if the host
  /// handles it.
  const at::Tensor& found_inf() const { return scalars_.found_inf; }
  at::Tensor learning_rate() const;
  /// The reduced-precision copies of the parameters that the step also writes.
  const std::vector<const ReducedCopies*>& copies() const {
    return scalars_.copies;
  }
  /// The state of `parameter`. On first use, an empty state is created.
  State& state_of(const at::Tensor& parameter);

 private:
  StepScalars scalars_;
  size_t group_ = 0;
};

struct AdamState;
struct MomentumState;
struct AdafactorState;
struct LionState;
extern template class ACCELERATE_API OptimizerOf<AdamWOptions, AdamState>;
extern template class ACCELERATE_API OptimizerOf<AdamOptions, AdamState>;
extern template class ACCELERATE_API OptimizerOf<SGDOptions, MomentumState>;
extern template class ACCELERATE_API
    OptimizerOf<AdafactorOptions, AdafactorState>;
extern template class ACCELERATE_API OptimizerOf<LionOptions, LionState>;
extern template class ACCELERATE_API OptimizerOf<MuonOptions, MomentumState>;

/// The common base of Adam and AdamW, which differ only in weight decay.
template <class Options>
class ACCELERATE_API AdamOf : public OptimizerOf<Options, AdamState> {
 public:
  using OptimizerOf<Options, AdamState>::OptimizerOf;
  bool takes_scalars() const override { return true; }
  bool takes_copies() const override { return true; }

 protected:
  void update(const Options&, const std::vector<at::Tensor>&) override;
};
extern template class ACCELERATE_API AdamOf<AdamWOptions>;
extern template class ACCELERATE_API AdamOf<AdamOptions>;

class ACCELERATE_API AdamW : public AdamOf<AdamWOptions> {
 public:
  using AdamOf::AdamOf;
};

class ACCELERATE_API Adam : public AdamOf<AdamOptions> {
 public:
  using AdamOf::AdamOf;
};

class ACCELERATE_API SGD : public OptimizerOf<SGDOptions, MomentumState> {
 public:
  using OptimizerOf::OptimizerOf;
  /// False with dampening, because only the host knows which step is the first.
  bool takes_scalars() const override;

 protected:
  void update(const SGDOptions&, const std::vector<at::Tensor>&) override;
};

class ACCELERATE_API Adafactor
    : public OptimizerOf<AdafactorOptions, AdafactorState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  void update(const AdafactorOptions&, const std::vector<at::Tensor>&) override;
};

/// Needs memory for an additional copy of the weights during a step.
class ACCELERATE_API Lion : public OptimizerOf<LionOptions, LionState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  void update(const LionOptions&, const std::vector<at::Tensor>&) override;
};

class ACCELERATE_API Muon : public OptimizerOf<MuonOptions, MomentumState> {
 public:
  /// Both constructors throw `UsageError` if a parameter is not a matrix.
  explicit Muon(std::vector<at::Tensor> parameters, MuonOptions options = {});
  explicit Muon(
      const std::vector<ParameterGroup>& groups,
      MuonOptions options = {});

 protected:
  void update(const MuonOptions&, const std::vector<at::Tensor>&) override;
};

} // namespace accelerate::optim
