// SPDX-License-Identifier: Apache-2.0
// Optimizers on fused operators, and those that LibTorch lacks.
//
// They are `torch::optim::Optimizer`s: `prepare`, torch's schedulers and ours
// take them like any other. Names, defaults and arithmetic are those of
// Python's torch.optim (Lion: of lion-pytorch).
//
//     accelerate::optim::AdamW optimizer(
//         model->parameters(), {.lr = 3e-5, .weight_decay = 0.01});
//
// Parameters without a gradient are left alone; a sparse gradient is an error.
// State is made at a parameter's first step, on its device. To save it, see
// optimizer_state.h (`torch::save` of these optimizers throws).
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
#include "accelerate/optimizer_state.h"
#include "accelerate/parameter_groups.h"

namespace accelerate::optim {

/// As `torch.optim.AdamW(fused=True)`: weight decay apart from the gradient.
struct ACCELERATE_API AdamWOptions {
  static constexpr const char* kName = "AdamW";
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};

/// As `torch.optim.Adam(fused=True)`: weight decay is added to the gradient.
struct ACCELERATE_API AdamOptions {
  static constexpr const char* kName = "Adam";
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
};

/// As `torch.optim.SGD(fused=True)`.
struct ACCELERATE_API SGDOptions {
  static constexpr const char* kName = "SGD";
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  /// Needs a momentum and no dampening.
  bool nesterov = false;
  bool maximize = false;
};

/// As `torch.optim.Adafactor`: one number per row and one per column instead of
/// one per weight.
struct ACCELERATE_API AdafactorOptions {
  static constexpr const char* kName = "Adafactor";
  /// The highest relative step, and the factor of weight decay.
  double lr = 1e-2;
  double beta2_decay = -0.8;
  /// Torch's `eps[0]`; the smallest step of the parameter's type by default.
  std::optional<double> eps1 = {};
  double eps2 = 1e-3;
  /// Updates with a larger root mean square are scaled down to it.
  double d = 1;
  double weight_decay = 0;
  bool maximize = false;
};

/// As `lion_pytorch.Lion`: steps by signs alone.
struct ACCELERATE_API LionOptions {
  static constexpr const char* kName = "Lion";
  double lr = 1e-4;
  std::pair<double, double> betas = {0.9, 0.99};
  double weight_decay = 0;
  /// Decay by `weight_decay * lr / lr at the start` per step.
  bool decoupled_weight_decay = false;
};

enum class MuonAdjustLr { kOriginal, kMatchRmsAdamW };

/// As `torch.optim.Muon`: orthogonal updates, for matrices only. Give biases,
/// norms and embeddings to an AdamW beside it (`split_groups`).
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

/// What torch's side sees of a group's options. Schedulers set `lr` through it.
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

/// What all optimizers here have. `State` is what is kept for a parameter.
template <class Options, class State>
class ACCELERATE_API OptimizerOf : public torch::optim::Optimizer,
                                   public SavableOptimizer,
                                   public TakesStepScalars {
 public:
  /// Throw `UsageError` where an option is out of its range.
  explicit OptimizerOf(
      std::vector<at::Tensor> parameters,
      Options options = {});
  explicit OptimizerOf(
      const std::vector<ParameterGroup>& groups,
      Options options = {});

  /// Calls `closure`, where there is one, with gradients enabled, and returns
  /// what it returned.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// The options of one group; changes count from the next step on.
  Options& options(size_t group = 0);
  const Options& options(size_t group = 0) const;
  void add_group(const ParameterGroup& group);
  /// As torch's own. From torch 2.12 on that one replaces options of a type it
  /// does not know by the defaults; here the group keeps its options.
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
  void give_scalars(StepScalars scalars) override;

 protected:
  /// Steps parameters that have a dense gradient, of one device and type.
  virtual void update(
      const Options& options,
      const std::vector<at::Tensor>& parameters) = 0;
  /// What the device says of the group under way; undefined where the host
  /// does.
  const at::Tensor& found_inf() const { return scalars_.found_inf; }
  at::Tensor learning_rate() const;
  /// What else is to be written for parameters.
  const std::vector<const ReducedCopies*>& copies() const {
    return scalars_.copies;
  }
  /// Made empty at first.
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

/// What Adam and AdamW share: all but the way in which weights decay.
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
  /// Not with dampening, where only the host knows which step is the first.
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

/// Needs room for one more copy of the weights during a step.
class ACCELERATE_API Lion : public OptimizerOf<LionOptions, LionState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  void update(const LionOptions&, const std::vector<at::Tensor>&) override;
};

class ACCELERATE_API Muon : public OptimizerOf<MuonOptions, MomentumState> {
 public:
  /// Throw `UsageError` where a parameter is no matrix.
  explicit Muon(std::vector<at::Tensor> parameters, MuonOptions options = {});
  explicit Muon(
      const std::vector<ParameterGroup>& groups,
      MuonOptions options = {});

 protected:
  void update(const MuonOptions&, const std::vector<at::Tensor>&) override;
};

} // namespace accelerate::optim
