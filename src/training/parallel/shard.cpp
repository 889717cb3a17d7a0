// SPDX-License-Identifier: Apache-2.0
// Sharded training. Parameters are concatenated to flat units, and every rank
// keeps and trains one shard of each unit.
#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/agreement.h"
#include "training/parallel/engine.h"
#include "training/parallel/layer_table.h"
#include "training/parallel/lazy_storage.h"
#include "training/parallel/sharded_model.h"
#include "training/parallel/shared_tensors.h"
#include "training/parallel/unit_gathers.h"
#include "training/parallel/unit_gradients.h"
#include "training/parallel/unused_parameters.h"
#include "training/parallel/whole_gradients.h"
#include "training/state/deferred_tensors.h"

namespace accelerate {
namespace {

class ShardLayer final : public ForwardLayer,
                         public ExchangeLayer,
                         public GradientLayer,
                         public UpdateLayer,
                         public PlacementLayer,
                         public StateLayer {
 public:
  ShardLayer(const EngineArguments& arguments, const ShardingOptions& options)
      : layout_(arguments.engine->layout()),
        all_(arguments.model),
        model_(arguments, options, layout_),
        whole_(
            arguments.group,
            split_parameters(arguments.model, options).whole),
        gathers_(
            *arguments.engine,
            model_,
            [this] { gradients_->start_due_reduction(); }),
        buffers_(arguments.model) {
    const at::NoGradGuard no_grad;
    while (model_.add_unit()) {
      if (model_.is_gathered()) {
        gathers_.add_unit();
      }
    }
    buffers_.share(model_.everyone(), 0);
    gradients_.emplace(model_);
    note_frozen();
  }

  // --- forward --------------------------------------------------------------
  void before_forward() override {
    if (gathers_.pass() == ShardPass::kBackward) {
      return; // the whole model is recomputed
    }
    model_.check_stored();
    const bool records = at::GradMode::is_enabled();
    if (records) {
      follow_frozen();
    }
    if (gathers_.is_stale()) {
      gathers_.gather_weights();
    }
    share_buffers(records && sync());
    gathers_.begin_pass(
        records ? ShardPass::kTraining : ShardPass::kEvaluation);
  }
  void after_forward(std::span<at::Tensor* const> /*outputs*/) override {
    if (is_in_forward()) {
      gathers_.end_pass();
    }
  }
  void abandon_forward() override {
    if (is_in_forward()) {
      gathers_.abandon_pass();
    }
  }
  void set_buffers(
      const std::vector<std::string>& names,
      const std::vector<at::Tensor>& buffers) override {
    buffers_.set(names, buffers);
  }

  // --- backward -------------------------------------------------------------
  void set_sync(bool sync) override { gradients_->set_sync(sync); }
  bool sync() const override { return gradients_->sync(); }
  void sync_next_backward() override { gradients_->sync_next_backward(); }
  void before_backward() override {
    gradients_->before_backward();
    whole_.before_backward();
    gathers_.begin_pass(ShardPass::kBackward);
  }
  void after_backward() override {
    const bool syncs = gradients_->syncs();
    gradients_->after_backward();
    whole_.after_backward(syncs);
    gathers_.end_pass();
  }
  void abandon_backward() override {
    if (gathers_.pass() == ShardPass::kBackward) {
      gradients_->abandon_backward();
      gathers_.abandon_pass();
    }
  }
  GradientArrival arrival() const override {
    return whole_.has_arrived() ? GradientArrival::kSynchronised
                                : gradients_->arrival();
  }

  // --- gradients ------------------------------------------------------------
  std::optional<at::Tensor> gradient(
      const at::Tensor& parameter) const override {
    return model_.holds(parameter)
               ? std::optional(gradients_->gradient(model_.index_of(parameter)))
               : std::nullopt;
  }
  void zero_gradients(const std::vector<at::Tensor>& parameters, Zeroing how)
      override {
    for (const auto& parameter : parameters) {
      if (model_.holds(parameter)) {
        gradients_->zero(model_.index_of(parameter), how);
      }
    }
  }
  std::optional<StateValue> saved_gradient(
      const at::Tensor& parameter) const override {
    return model_.holds(parameter)
               ? std::optional(gradients_->saved(model_.index_of(parameter)))
               : std::nullopt;
  }
  bool load_gradient(const at::Tensor& parameter, const StateValue& value)
      override {
    const bool is_held = model_.holds(parameter);
    if (is_held) {
      gradients_->load(model_.index_of(parameter), value);
    }
    return is_held;
  }

  // --- step -----------------------------------------------------------------
  LayerPlacement place(const at::Tensor& tensor) const override {
    if (!model_.holds(tensor)) {
      return {tensor};
    }
    const auto& slice = model_.slice_of(tensor);
    return {slice.own, slice.layout.placements, slice.layout.memory};
  }
  // Units that were gathered for a backward that never ran contain old weights.
  void before_step() override { gathers_.release_all(); }
  void after_step(bool did_step) override {
    if (did_step && !model_.is_gathered()) {
      gathers_.gather_weights();
    }
  }

  // --- state ----------------------------------------------------------------
  at::Tensor whole_value(const at::Tensor& parameter) const override {
    if (!model_.holds(parameter)) {
      return {};
    }
    const auto& slice = model_.slice_of(parameter);
    const bool has_whole =
        model_.unit_of(slice).shard_is_view_of_whole() && !gathers_.is_stale();
    return has_whole ? model_.whole_of(slice) : at::Tensor();
  }

  void before_load() override { gathers_.release_all(); }
  void take_loaded(const at::Tensor& parameter, const at::Tensor& whole)
      override {
    if (!model_.holds(parameter) || model_.is_gathered()) {
      return;
    }
    if (whole.defined()) {
      parameter.detach().copy_(whole);
    } else {
      gathers_.set_stale();
    }
  }

  // This rank may have loaded its shards while other ranks have loaded whole
  // values.
  void after_load() override {
    if (!model_.is_gathered() && is_on_any_rank(
                                     model_.everyone(),
                                     "load_state of a sharded model",
                                     gathers_.is_stale())) {
      gathers_.set_stale();
      gathers_.gather_weights();
    }
  }

  bool visit_parameters(bool keep, const TakeWhole& take) override {
    const at::NoGradGuard no_grad;
    std::unordered_map<const c10::TensorImpl*, size_t> index_of;
    for (size_t i = 0; i < all_.parameters.size(); ++i) {
      index_of[all_.parameters[i].unsafeGetTensorImpl()] = i;
    }
    for (const auto& unit : model_.units()) {
      announce(model_.group(), str_cat("gather of ", unit.name, " to save it"));
      auto flat = layout_.reserve(
          MemoryUse::kParameters, unit.num_elements, unit.trained_options);
      model_.group().all_gather_into(flat, unit.shard.to(flat.device()));
      for (size_t i = 0; keep && i < unit.members.size(); ++i) {
        const auto& parameter = model_.model().parameters[unit.members[i]];
        take(
            index_of.at(parameter.unsafeGetTensorImpl()),
            unit.member_of(flat, i, parameter.numel())
                .view(parameter.sizes())
                .to(at::kCPU));
      }
    }
    for (size_t i = 0; keep && i < all_.parameters.size(); ++i) {
      if (!model_.holds(all_.parameters[i])) {
        take(
            i,
            all_.parameters[i].detach().to(
                at::kCPU, /*non_blocking=*/false, /*copy=*/true));
      }
    }
    return true;
  }

 private:
  bool is_in_forward() const {
    return gathers_.pass() == ShardPass::kTraining ||
           gathers_.pass() == ShardPass::kEvaluation;
  }

  void note_frozen() {
    is_trained_.clear();
    for (const auto& parameter : all_.parameters) {
      is_trained_.push_back(parameter.requires_grad());
    }
  }

  /// Updates the state after parameters were frozen or unfrozen.
  void follow_frozen() {
    if (std::equal(
            is_trained_.begin(),
            is_trained_.end(),
            all_.parameters.begin(),
            [](bool is_trained, const at::Tensor& parameter) {
              return parameter.requires_grad() == is_trained;
            })) {
      return;
    }
    if (!model_.everyone().is_shut_down()) {
      agree_on_text(model_.everyone(), kRefrozenForward, trained_names(all_));
    }
    note_frozen();
    model_.follow_frozen();
    gradients_->follow_frozen();
    whole_.follow_frozen();
  }

  // Like in DDP, buffers are shared once after a forward that changed them.
  void share_buffers(bool trains) {
    const auto& group = model_.everyone();
    if (buffers_may_differ_ && buffers_.is_shared() && !group.is_shut_down()) {
      announce(group, buffers_.name(kForward));
      finish_comparison(group);
      buffers_.share(group, 0);
    }
    buffers_may_differ_ = trains;
  }

  MemoryLayout& layout_;
  ParameterSet all_;
  ShardedModel model_;
  WholeGradients whole_;
  UnitGathers gathers_;
  /// Created when all units exist.
  std::optional<UnitGradients> gradients_;
  /// For each of `all_`: whether it required a gradient in the last forward.
  std::vector<bool> is_trained_;
  SharedBuffers buffers_;
  bool buffers_may_differ_ = true;
};

} // namespace

std::unique_ptr<Layer> make_shard_layer(
    const EngineArguments& arguments,
    const ShardingOptions& options) {
  check_lazy_storage();
  // Fill and move parameters that stay whole, because no gather does this
  // later.
  const auto whole = split_parameters(arguments.model, options).whole;
  fill_deferred(whole.parameters, arguments.device);
  if (options.stage == ShardStage::kParameters) {
    for (const auto& parameter : whole.parameters) {
      replace_memory(parameter, parameter.detach().to(arguments.device));
    }
  }
  refuse_second_engine(arguments.model);
  std::string units;
  for (const auto* list :
       {&options.units,
        &arguments.model.units,
        &options.ignored,
        &arguments.model.whole}) {
    for (const auto& unit : *list) {
      units += unit + ' ';
    }
    units += '|';
  }
  agree_on_text(
      arguments.group,
      "prepare",
      str_cat(
          "stage ",
          static_cast<int>(options.stage),
          ", units of at least ",
          options.min_unit_numbers,
          " elements, prefetch ",
          options.prefetch,
          options.cpu_offload ? ", offloaded to the host" : "",
          ", reductions in ",
          find_precision(options.reduce_dtype).name,
          ", units ",
          units,
          '\n',
          describe_model(arguments.model)));
  return std::make_unique<ShardLayer>(arguments, options);
}

} // namespace accelerate
