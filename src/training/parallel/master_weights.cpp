// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/hint.h"
#include "training/parallel/engine.h"
#include "training/parallel/gradient_norm.h"
#include "training/parallel/layer_table.h"

namespace accelerate {
namespace {

bool is_castable(const at::Tensor& parameter) {
  const auto type = parameter.scalar_type();
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

/// Gradients and the memory that they are written to.
struct GradientMoves {
  std::vector<at::Tensor> from, to;

  void add(const at::Tensor& gradient, const at::Tensor& target) {
    from.push_back(gradient);
    to.push_back(target);
  }
};

/// Trains fp32 master weights. Gradients arrive in the dtype of the weights.
/// When all ranks have received them, they move to the memory of the master
/// weights, so that accumulation uses float32.
///
/// On a single rank, gradients of an accumulation with only one backward keep
/// their dtype until they are needed in float32. The factor of clipping is also
/// applied only then. An optimizer that accepts copies needs neither.
class MasterLayer final : public ForwardLayer,
                          public BackwardLayer,
                          public GradientLayer,
                          public UpdateLayer,
                          public PlacementLayer,
                          public StateLayer {
 public:
  explicit MasterLayer(const EngineArguments& arguments)
      : engine_(*arguments.engine),
        layout_(arguments.engine->layout()),
        model_(arguments.model) {
    for (size_t i = 0; i < arguments.model.parameters.size(); ++i) {
      const auto& parameter = arguments.model.parameters[i];
      if (!is_castable(parameter)) {
        continue;
      }
      if (arguments.model.sparse_gradients.contains(arguments.model.names[i])) {
        throw UsageError(str_cat(
            "[prepare] Parameter '",
            arguments.model.names[i],
            "' has sparse gradients, which master_weights does not support. "
            "Create its Embedding with ",
            hint("sparse(false)", "sparse=False")));
      }
      if (parameter.requires_grad()) {
        weights_.push_back(parameter);
      } else {
        frozen_.push_back(i);
      }
    }
    make_masters(arguments);
    for (at::Tensor parameter : arguments.model.parameters) {
      if (is_castable(parameter)) {
        parameter.mutable_grad().reset();
        parameter.set_data(parameter.detach().to(*arguments.weights));
      }
    }
    for (size_t i = 0; i < weights_.size(); ++i) {
      weight_values_.push_back(weights_[i].detach());
      copies_.weights[masters_[i].unsafeGetTensorImpl()] = weight_values_[i];
    }
  }

  bool is_outdated() const override {
    return weights_.empty() && unfrozen().has_value();
  }
  void before_forward() override {
    const auto index = at::GradMode::is_enabled() ? unfrozen() : std::nullopt;
    if (index) {
      throw UsageError(str_cat(
          "[forward] Parameter '",
          model_.names[*index],
          "' requires a gradient, but it was frozen during prepare() and so "
          "has no master weight. Freeze it after prepare() instead"));
    }
  }

  void before_backward() override {
    for (size_t i = 0; i < weights_.size(); ++i) {
      // Keep the gradients that a rank has accumulated before the others
      // receive them.
      if (!is_shown_[i]) {
        continue;
      }
      if (!weights_[i].grad().defined()) {
        masters_[i].mutable_grad().reset(); // by the module's zero_grad()
      }
      weights_[i].mutable_grad().reset();
      is_shown_[i] = false;
    }
  }
  void after_backward() override {
    // Other ranks have not received gradients that a rank accumulates locally.
    if (!engine_.exchanges() || engine_.sync()) {
      take_gradients();
    } else {
      adds_up_weights_ = true;
    }
  }
  void abandon_backward() override {
    // Like autograd, keep gradients that have arrived.
    if (!engine_.exchanges()) {
      take_gradients();
    }
  }

  std::optional<at::Tensor> gradient(
      const at::Tensor& parameter) const override {
    const auto index = index_of(parameter);
    if (!index) {
      return std::nullopt;
    }
    finish_gradients();
    const auto& taken = masters_[*index].grad();
    return taken.defined() ? taken : weights_[*index].grad();
  }
  std::vector<at::Tensor> kept_gradients(
      const std::vector<at::Tensor>& parameters) override {
    if (factor_.defined()) {
      finish_gradients();
    }
    std::vector<bool> is_asked(masters_.size(), false);
    std::vector<at::Tensor> kept;
    for (const auto& parameter : parameters) {
      const auto index = index_of(parameter);
      if (index && is_asked[*index]) {
        return {};
      }
      const auto& taken = index ? masters_[*index].grad() : at::Tensor();
      if (taken.defined()) {
        kept.push_back(taken);
      } else if (engine_.gradient(parameter).defined()) {
        return {};
      }
      if (index) {
        is_asked[*index] = true;
      }
    }
    for (size_t i = 0; i < masters_.size(); ++i) {
      if (!is_asked[i] && masters_[i].grad().defined()) {
        return {};
      }
    }
    return kept;
  }
  void scale_kept_gradients(const at::Tensor& factor) override {
    factor_ = factor.defined() ? factor.to(at::kFloat) : factor;
    waiting_.clear();
    for (const auto& master : masters_) {
      waiting_.push_back(master.grad().unsafeGetTensorImpl());
    }
  }
  void zero_gradients(const std::vector<at::Tensor>& parameters, Zeroing how)
      override {
    if (how == Zeroing::kFill && factor_.defined()) {
      finish_other_gradients(parameters);
    }
    // Of the two gradients, the one that accumulates must keep its memory.
    const bool keeps_weights = how == Zeroing::kFill && adds_up_weights_;
    for (at::Tensor parameter : parameters) {
      const auto index = index_of(parameter);
      at::Tensor& gradient =
          (index ? weights_[*index] : parameter).mutable_grad();
      if (keeps_weights && gradient.defined()) {
        gradient.zero_();
      } else {
        gradient.reset();
      }
      if (index) {
        is_shown_[*index] = false;
        if (keeps_weights) {
          masters_[*index].mutable_grad().reset();
        }
      }
    }
  }

  LayerPlacement place(const at::Tensor& tensor) const override {
    const auto index = index_of(tensor);
    return {index ? masters_[*index] : tensor};
  }
  void before_step() override { are_written_ = false; }
  const ReducedCopies* reduced_copies(bool takes) override {
    are_written_ = takes;
    if (!takes || (factor_.defined() && !all_wait())) {
      finish_gradients();
    }
    copies_.gradient_factor = factor_;
    return takes ? &copies_ : nullptr;
  }
  void after_step(bool /*did_step*/) override {
    if (!weights_.empty() && !are_written_) {
      const at::NoGradGuard no_grad;
      at::_foreach_copy_(weight_values_, master_values_);
    }
  }

  void take_loaded(const at::Tensor& parameter, const at::Tensor& /*whole*/)
      override {
    if (const auto index = index_of(parameter)) {
      weight_values_[*index].copy_(master_values_[*index]);
    }
  }
  bool load_gradient(const at::Tensor& parameter, const StateValue& value)
      override {
    const auto index = index_of(parameter);
    if (!index) {
      return false;
    }
    finish_gradients();
    at::Tensor& gradient = masters_[*index].mutable_grad();
    gradient.reset();
    is_shown_[*index] = false;
    if (engine_.exchanges()) {
      return false; // the gradient of the weight, until it is synchronised
    }
    weights_[*index].mutable_grad().reset();
    if (const auto& whole = std::get<at::Tensor>(value); whole.defined()) {
      gradient = gradient_slot(*index);
      gradient.copy_(whole);
    }
    return true;
  }

 private:
  /// Makes the master weights contiguous, so that rank 0's are broadcast at
  /// once.
  void make_masters(const EngineArguments& arguments) {
    std::unordered_map<std::string, std::vector<size_t>> by_device;
    for (size_t i = 0; i < weights_.size(); ++i) {
      by_device[weights_[i].device().str()].push_back(i);
      index_of_[weights_[i].unsafeGetTensorImpl()] = i;
    }
    masters_.resize(weights_.size());
    for (const auto& [device, members] : by_device) {
      layout_.set_units(weights_, {members});
      const auto& unit = layout_.units().front();
      const auto options = weights_[members.front()]
                               .options()
                               .dtype(at::kFloat)
                               .requires_grad(false);
      auto flat =
          layout_.allocate(MemoryUse::kParameters, unit.num_elements, options);
      const auto values = layout_.views(unit, flat, weights_);
      for (size_t i = 0; i < members.size(); ++i) {
        values[i].copy_(weights_[members[i]].detach());
        masters_[members[i]] = values[i].detach().requires_grad_(true);
      }
      units_.push_back(unit);
      if (arguments.group.world_size() > 1) {
        arguments.group.broadcast(flat, 0);
        for (size_t i = 0; i < members.size(); ++i) {
          weights_[members[i]].detach().copy_(values[i]);
        }
      }
    }
    layout_.set_units({}, {});
    is_shown_.assign(weights_.size(), false);
    for (size_t i = 0; i < weights_.size(); ++i) {
      index_of_[masters_[i].unsafeGetTensorImpl()] = i;
      master_values_.push_back(masters_[i].detach());
    }
  }

  /// A parameter without a master weight that requires a gradient.
  std::optional<size_t> unfrozen() const {
    for (const size_t index : frozen_) {
      if (model_.parameters[index].requires_grad()) {
        return index;
      }
    }
    return std::nullopt;
  }

  std::optional<size_t> index_of(const at::Tensor& parameter) const {
    const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
    return found == index_of_.end() ? std::nullopt
                                    : std::optional(found->second);
  }

  /// The memory of concatenated gradients of master weights. Allocated on first
  /// use, because a run whose gradients keep the weights' dtype never needs it.
  const at::Tensor& gradient_slot(size_t index) const {
    if (gradient_slots_.empty()) {
      gradient_slots_.resize(weights_.size());
      // Hide from autograd that these are views, because torch's optimizers may
      // detach them in place.
      const at::AutoDispatchBelowADInplaceOrView below;
      for (const auto& unit : units_) {
        const auto flat = layout_.reserve(
            MemoryUse::kGradients,
            unit.num_elements,
            master_values_[unit.parameters.front()].options());
        const auto views = layout_.views(unit, flat, weights_);
        for (size_t i = 0; i < views.size(); ++i) {
          gradient_slots_[unit.parameters[i]] = views[i];
        }
      }
    }
    return gradient_slots_[index];
  }

  /// Whether the pending factor applies to the gradient of this master weight.
  /// It does not if the gradient was replaced since clipping.
  bool waits(size_t index) const {
    return masters_[index].grad().unsafeGetTensorImpl() == waiting_[index];
  }
  bool all_wait() const {
    for (size_t i = 0; i < masters_.size(); ++i) {
      if (masters_[i].grad().defined() && !waits(i)) {
        return false;
      }
    }
    return true;
  }

  /// Finishes the gradients of all other parameters. The gradients of these are
  /// filled with zeros and must not be multiplied, because after an overflow
  /// the factor is NaN.
  void finish_other_gradients(const std::vector<at::Tensor>& parameters) {
    std::vector<bool> is_filled(masters_.size(), false);
    for (const auto& parameter : parameters) {
      if (const auto index = index_of(parameter)) {
        is_filled[*index] = true;
      }
    }
    finish_gradients(is_filled);
  }

  void take_gradients() {
    const at::NoGradGuard no_grad;
    if (factor_.defined()) { // it does not apply to later gradients
      finish_gradients();
    }
    // The memory of a bucket is written again. On a single rank, it is not.
    const bool may_stay = !engine_.exchanges() && !engine_.is_accumulating();
    GradientMoves first; // no gradient has been kept yet
    GradientMoves later; // added to the gradients that are kept
    for (size_t i = 0; i < weights_.size(); ++i) {
      at::Tensor& gradient = weights_[i].mutable_grad();
      if (!gradient.defined()) {
        continue;
      }
      at::Tensor& own = masters_[i].mutable_grad();
      const bool adds = own.defined();
      if (adds) {
        finish_gradients();
      } else if (may_stay) {
        own = gradient;
        stays_ = true;
        is_shown_[i] = true;
        continue;
      } else {
        own = gradient_slot(i);
      }
      (adds ? later : first).add(gradient, own);
      is_shown_[i] = true;
    }
    if (!first.from.empty()) {
      at::_foreach_copy_(first.to, first.from);
    }
    if (!later.from.empty()) {
      at::_foreach_add_(later.to, later.from);
    }
  }

  /// Converts gradients in the weights' dtype to float32, and applies the
  /// pending factor to those that are not excluded.
  void finish_gradients(const std::vector<bool>& is_left_out = {}) const {
    const bool stays = std::exchange(stays_, false);
    const auto factor = std::exchange(factor_, {});
    if (!stays && !factor.defined()) {
      return;
    }
    const at::NoGradGuard no_grad;
    GradientMoves converted;
    std::vector<at::Tensor> scaled;
    for (size_t i = 0; i < masters_.size(); ++i) {
      at::Tensor& own = masters_[i].mutable_grad();
      if (!own.defined()) {
        continue;
      }
      const bool is_multiplied = factor.defined() && waits(i) &&
                                 (is_left_out.empty() || !is_left_out[i]);
      if (own.scalar_type() != masters_[i].scalar_type()) {
        converted.add(own, gradient_slot(i));
        own = gradient_slot(i);
      }
      if (is_multiplied) {
        scaled.push_back(own);
      }
    }
    if (!converted.from.empty()) {
      at::_foreach_copy_(converted.to, converted.from);
    }
    if (!scaled.empty()) {
      scale_in_place(scaled, factor);
    }
  }

  const ParallelEngine& engine_;
  MemoryLayout& layout_;
  ParameterSet model_;
  /// Parameters without a master weight because they were frozen, by index.
  std::vector<size_t> frozen_;
  /// The weights that the model computes with.
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> masters_;
  /// The memory of master weights, and of their gradients if these were needed.
  std::vector<MemoryLayout::Unit> units_;
  mutable std::vector<at::Tensor> gradient_slots_;
  std::vector<at::Tensor> master_values_;
  std::vector<at::Tensor> weight_values_;
  /// Whether a weight's gradient is the one that its master weight has already
  /// taken.
  std::vector<bool> is_shown_;
  /// Maps master weights to weights.
  ReducedCopies copies_;
  /// Whether the gradient of a master weight has the weights' dtype.
  mutable bool stays_ = false;
  /// The pending factor of all these gradients; undefined if there is none.
  mutable at::Tensor factor_;
  /// The gradients that the factor applies to; null if a master weight had
  /// none.
  std::vector<const c10::TensorImpl*> waiting_;
  /// Whether backwards accumulate in the weights' gradients until they are
  /// synchronised.
  bool adds_up_weights_ = false;
  /// Whether the current step writes the weights itself.
  bool are_written_ = false;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
};

} // namespace

std::unique_ptr<Layer> make_master_layer(const EngineArguments& arguments) {
  return std::make_unique<MasterLayer>(arguments);
}

} // namespace accelerate
