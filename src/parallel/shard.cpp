// SPDX-License-Identifier: Apache-2.0
// Sharded training: every rank keeps and trains one part of each flat unit of
// parameters.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "accelerate/error.h"
#include "base/str.h"
#include "comm/agreement.h"
#include "parallel/arrivals.h"
#include "parallel/engine.h"
#include "parallel/lazy_storage.h"
#include "parallel/shard_units.h"
#include "parallel/shared_tensors.h"
#include "parallel/strategies.h"
#include "parallel/unused_parameters.h"
#include "parallel/use_plan.h"

namespace accelerate {
namespace {

/// Parameters and parts begin at multiples of so many numbers: kernels take the
/// same path through a part as through the whole, so that bits are the same.
constexpr int64_t kShardAlignment = 64;

class ShardEngine;

/// Parameters that lie and travel together.
struct ShardUnit final : MemoryOwner {
  ShardEngine* engine = nullptr;
  std::string name;
  size_t index = 0;
  /// Into the model's list.
  std::vector<size_t> members;
  std::vector<int64_t> offsets;
  bool is_trained = false;
  /// Of all ranks, with what fills up; a rank's part.
  int64_t num_numbers = 0;
  int64_t num_own = 0;
  at::TensorOptions trained_options;
  at::TensorOptions used_options;

  /// What this rank trains and saves.
  at::Tensor part;
  /// What the model reads, where it always has it; may be the memory of `part`.
  at::Tensor whole;

  /// What the model reads, where it comes and goes.
  std::optional<LazyStorage> storage;
  enum class Presence { kAway, kComing, kHere } presence = Presence::kAway;
  at::Tensor coming;
  ProcessGroup::Work gathering;
  int num_uses = 0;

  /// This rank's gradients that the others have not seen, and of which members
  /// there are some.
  at::Tensor gradient;
  std::vector<bool> has_gradient;
  /// Those that the backward under way has brought.
  std::set<size_t> arrived;

  void begin_use() override;
  void end_use() noexcept override { --num_uses; }

  at::Tensor member_of(const at::Tensor& flat, size_t member, int64_t size)
      const {
    return flat.narrow(0, offsets[member], size);
  }
};

/// What stands in the place of gradients of which a rank has a part only.
struct GradientMark final : MemoryOwner {
  void begin_use() override {
    throw UsageError(
        "[shard] got a read of the gradient of a sharded parameter, of which "
        "each rank has a part only, expected none; clip by "
        "accelerator.clip_grad_norm_, step by a prepared optimizer");
  }
  void end_use() noexcept override {}
};

bool is_cast(const at::Tensor& parameter) {
  const auto type = parameter.scalar_type();
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

class ShardEngine final : public ParallelEngine {
 public:
  ShardEngine(const EngineArguments& arguments, const ShardingOptions& options)
      : ParallelEngine(MemoryLayout(arguments.memory)),
        group_(arguments.group),
        options_(options),
        model_(arguments.model),
        slices_(model_.parameters.size()),
        is_marked_(model_.parameters.size(), false) {
    const at::NoGradGuard no_grad;
    const auto plans = plan_shard_units(model_, options);
    std::vector<std::vector<size_t>> members;
    for (const auto& plan : plans) {
      members.push_back(plan.members);
    }
    layout_.set_units(model_.parameters, std::move(members), kShardAlignment);
    for (size_t i = 0; i < plans.size(); ++i) {
      add_unit(plans[i], layout_.units()[i], arguments.weights);
    }
    broadcast_tensors(group_, "broadcast of buffers", model_.buffers, 0);
    std::vector<at::Tensor> trained;
    std::vector<size_t> places;
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      if (model_.parameters[i].requires_grad()) {
        trained.push_back(model_.parameters[i]);
        places.push_back(i);
      } else {
        frozen_.push_back(i);
      }
    }
    arrivals_ = std::make_unique<Arrivals>(
        trained,
        [this, places](size_t place) { take_gradient(places[place]); });
  }

  bool is_local() const override { return false; }

  // --- forward --------------------------------------------------------------
  void before_forward() override {
    if (pass_ == Pass::kBackward) {
      return; // The whole model is computed again.
    }
    const bool records = at::GradMode::is_enabled();
    if (records) {
      check_frozen(
          model_,
          frozen_,
          "that no rank would take its gradient; unfreeze before prepare");
    }
    if (is_stale_) {
      gather_weights();
    }
    share_buffers(records && sync_);
    begin_pass(records ? Pass::kTraining : Pass::kEvaluation);
  }

  void after_forward(std::span<at::Tensor* const> /*outputs*/) override {
    if (pass_ == Pass::kTraining) {
      // Backward begins where forward ended: this much stays.
      auto kept = plan(Pass::kBackward).coming(num_kept());
      if (kept.empty()) {
        kept = plan().recent(num_kept());
      }
      end_pass(kept);
    } else if (pass_ == Pass::kEvaluation) {
      end_pass({});
    }
  }

  void abandon_forward() override {
    if (pass_ == Pass::kTraining || pass_ == Pass::kEvaluation) {
      abandon_pass();
    }
  }

  void set_buffers(const std::vector<at::Tensor>& buffers) override {
    model_.buffers = buffers;
  }

  // --- backward -------------------------------------------------------------
  void set_sync(bool sync) override { sync_ = sync; }
  bool sync() const override { return sync_; }
  void sync_next_backward() override { syncs_next_ = true; }

  void before_backward() override {
    for (size_t i = 0; i < slices_.size(); ++i) {
      at::Tensor& mark = model_.parameters[i].mutable_grad();
      if (is_marked_[i] && !mark.defined()) {
        forget(i); // By the module's zero_grad().
      } else if (is_marked_[i]) {
        mark.reset();
      }
      is_marked_[i] = false;
    }
    for (const auto& unit : units_) {
      unit->arrived.clear();
    }
    num_before_ = arrivals_->begin_backward();
    begin_pass(Pass::kBackward);
  }

  void after_backward() override {
    if (!arrivals_->is_known()) {
      throw UsageError(
          "[backward] got a compiled backward, which brings a sharded model no "
          "gradients, expected autograd's own; leave compiled autograd off");
    }
    start_due_reduction();
    for (const auto& unit : units_) {
      if (syncs() && has_any_gradient(*unit)) {
        announce_reduction(*unit);
      }
    }
    start_due_reduction();
    finish_reduction();
    syncs_next_ = false;
    end_pass({});
    mark_gradients();
    arrival_ = arrivals_->num_arrived() == num_before_ ? GradientArrival::kNone
                                                       : GradientArrival::kMet;
  }

  void abandon_backward() override {
    if (pass_ != Pass::kBackward) {
      return;
    }
    due_ = nullptr;
    reduction_.reset();
    for (const auto& unit : units_) {
      drop_gradient(*unit);
    }
    for (const auto& parameter : model_.parameters) {
      at::Tensor(parameter).mutable_grad().reset();
    }
    syncs_next_ = false;
    abandon_pass();
    mark_gradients();
  }

  GradientArrival arrival() const override { return arrival_; }

  // --- gradients ------------------------------------------------------------
  at::Tensor gradient(const at::Tensor& parameter) const override {
    const auto& slice = slice_of(parameter);
    const auto& unit = *units_[slice.unit];
    if (unit.has_gradient[slice.member]) {
      const auto& whole = model_.parameters[unit.members[slice.member]];
      return unit.member_of(unit.gradient, slice.member, whole.numel())
          .view(whole.sizes());
    }
    // Norms of nothing are not defined.
    return slice.own.numel() == 0 ? at::Tensor() : slice.own.grad();
  }
  bool holds_slices() const override { return true; }
  void combine(at::Tensor& number, ReduceOp op) const override {
    announce(group_, "reduction over the parts of gradients");
    group_.all_reduce(number, op);
  }
  void zero_gradients(const std::vector<at::Tensor>& parameters, Zeroing how)
      override {
    for (const auto& parameter : parameters) {
      const size_t place = place_of_.at(parameter.unsafeGetTensorImpl());
      if (how == Zeroing::kDrop) {
        forget(place);
      }
      model_.parameters[place].mutable_grad().reset();
      is_marked_[place] = false;
    }
  }

  // --- step -----------------------------------------------------------------
  at::Tensor trained(const at::Tensor& parameter) const override {
    return slice_of(parameter).own;
  }
  std::optional<int64_t> slice_begin(
      const at::Tensor& parameter) const override {
    return slice_of(parameter).begin;
  }
  // What was gathered for a backward that never came is of the old weights.
  void before_step() override { release_all_but({}); }
  void after_step(bool did_step) override {
    if (did_step && options_.stage != ShardStage::kParameters) {
      gather_weights();
    }
  }

  // --- state ----------------------------------------------------------------
  StateValue saved(const at::Tensor& parameter) const override {
    const auto& slice = slice_of(parameter);
    const auto& whole =
        model_.parameters[units_[slice.unit]->members[slice.member]];
    if (has_whole(*units_[slice.unit])) {
      return whole.detach();
    }
    return TensorSlice{slice.own.detach(), whole.sizes().vec(), slice.begin};
  }

  void load(const at::Tensor& parameter, const StateValue& value) override {
    const auto& slice = slice_of(parameter);
    const auto& unit = *units_[slice.unit];
    const auto& mine = model_.parameters[unit.members[slice.member]];
    const at::NoGradGuard no_grad;
    release_all_but({});
    if (const auto* whole = std::get_if<at::Tensor>(&value)) {
      if (whole->sizes() != mine.sizes()) {
        refuse_load(str_cat("a tensor of shape ", whole->sizes()), mine, slice);
      }
      slice.own.detach().copy_(
          whole->flatten().narrow(0, slice.begin, slice.own.numel()));
      if (options_.stage != ShardStage::kParameters) {
        mine.detach().copy_(*whole);
      }
      return;
    }
    const auto* part = std::get_if<TensorSlice>(&value);
    if (part == nullptr || part->whole != mine.sizes().vec() ||
        part->begin != slice.begin ||
        part->values.numel() != slice.own.numel()) {
      refuse_load(
          part == nullptr ? "no tensor"
                          : str_cat(
                                part->values.numel(),
                                " numbers from ",
                                part->begin,
                                " on of a tensor of shape ",
                                at::IntArrayRef(part->whole)),
          mine,
          slice);
    }
    slice.own.detach().copy_(part->values.flatten());
    is_stale_ = options_.stage != ShardStage::kParameters;
  }

  StateValue saved_gradient(const at::Tensor& parameter) const override {
    const auto& slice = slice_of(parameter);
    const auto& unit = *units_[slice.unit];
    const auto& own = slice.own.grad();
    if (unit.has_gradient[slice.member] || !own.defined()) {
      return gradient(parameter);
    }
    const auto& whole = model_.parameters[unit.members[slice.member]];
    return TensorSlice{own, whole.sizes().vec(), slice.begin};
  }
  void load_gradient(const at::Tensor& parameter, const StateValue& value)
      override {
    const size_t place = place_of_.at(parameter.unsafeGetTensorImpl());
    forget(place);
    const at::NoGradGuard no_grad;
    if (const auto* slice = std::get_if<TensorSlice>(&value)) {
      at::Tensor own = slices_[place].own;
      own.mutable_grad() =
          slice->values.to(own.options().requires_grad(false)).clone();
    } else if (std::get<at::Tensor>(value).defined()) {
      add_gradient(place, std::get<at::Tensor>(value));
    }
  }

  std::vector<at::Tensor> whole_parameters(bool keep) override {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> values(model_.parameters.size());
    for (const auto& unit : units_) {
      announce(group_, str_cat("gather of ", unit->name, " to save it"));
      auto flat = layout_.reserve(
          MemoryUse::kParameters, unit->num_numbers, unit->trained_options);
      group_.all_gather_into(flat, unit->part);
      for (size_t i = 0; keep && i < unit->members.size(); ++i) {
        const auto& parameter = model_.parameters[unit->members[i]];
        values[unit->members[i]] =
            unit->member_of(flat, i, parameter.numel())
                .view(parameter.sizes())
                .to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
      }
    }
    return values;
  }

  // --- memory of parameters -------------------------------------------------
  /// An operator reads the unit.
  void begin_use(ShardUnit& unit) {
    if (pass_ == Pass::kNone) {
      throw UsageError(str_cat(
          "[shard] got a read of ",
          unit.name,
          " outside of a forward of the prepared model and of "
          "accelerator.backward, where no rank may gather it alone, expected "
          "it inside; save weights by save_model or save_state"));
    }
    start_due_reduction();
    if (plan().use(unit.index)) {
      auto kept = plan().coming(static_cast<size_t>(options_.prefetch));
      const auto coming = kept;
      if (kept.empty()) {
        kept = plan().recent(num_kept());
      }
      kept.push_back(unit.index);
      release_all_but(kept);
      start_gather(unit);
      for (const size_t next : coming) {
        start_gather(*units_[next]);
      }
      const auto beyond = plan().coming(num_kept());
      if (beyond.size() == num_kept()) {
        announce_ahead(*units_[beyond.back()]);
      }
    } else {
      start_gather(unit);
    }
    finish_gather(unit);
    ++unit.num_uses;
  }

 private:
  /// What runs that may read parameters.
  enum class Pass { kNone, kTraining, kEvaluation, kBackward };

  /// This rank's part of a parameter.
  struct Slice {
    size_t unit = 0;
    size_t member = 0;
    at::Tensor own;
    int64_t begin = 0;
  };

  /// A unit's gradients on their way to the ranks that train them.
  struct Reduction {
    ShardUnit& unit;
    std::vector<bool> members;
    at::Tensor whole;
    at::Tensor part;
    ProcessGroup::Work work;
  };

  void add_unit(
      const ShardUnitPlan& plan,
      const MemoryLayout::Unit& laid,
      std::optional<at::ScalarType> weights) {
    auto unit = std::make_shared<ShardUnit>();
    const auto& first = model_.parameters[plan.members.front()];
    unit->engine = this;
    unit->index = units_.size();
    unit->name = plan.prefix.empty() ? str_cat("unit ", unit->index)
                                     : str_cat("unit '", plan.prefix, "'");
    unit->members = plan.members;
    unit->offsets = laid.offsets;
    unit->is_trained = first.requires_grad();
    unit->has_gradient.assign(plan.members.size(), false);
    const int64_t granule = kShardAlignment * group_.world_size();
    unit->num_numbers =
        std::max<int64_t>(1, (laid.num_numbers + granule - 1) / granule) *
        granule;
    unit->num_own = unit->num_numbers / group_.world_size();
    unit->used_options = first.options().requires_grad(false);
    unit->trained_options = unit->used_options;
    if (weights && is_cast(first)) {
      unit->used_options = unit->used_options.dtype(*weights);
      unit->trained_options = unit->trained_options.dtype(at::kFloat);
    }

    auto flat = layout_.allocate(
        MemoryUse::kParameters, unit->num_numbers, unit->trained_options);
    const auto views = layout_.views(laid, flat, model_.parameters);
    for (size_t i = 0; i < views.size(); ++i) {
      views[i].copy_(model_.parameters[plan.members[i]].detach());
    }
    announce(group_, str_cat("broadcast of ", unit->name));
    group_.broadcast(flat, 0);
    place_unit(*unit, laid, flat, unit);
    add_slices(*unit);
    units_.push_back(std::move(unit));
  }

  /// `flat` are the whole values in the type that is trained.
  void place_unit(
      ShardUnit& unit,
      const MemoryLayout::Unit& laid,
      const at::Tensor& flat,
      const std::shared_ptr<MemoryOwner>& owner) {
    const auto own = flat.narrow(0, unit.num_own * group_.rank(), unit.num_own);
    const bool is_gathered = options_.stage == ShardStage::kParameters;
    if (!is_gathered && unit.used_options.dtype() == flat.dtype()) {
      unit.whole = flat;
      unit.part = own;
    } else {
      unit.part =
          layout_
              .reserve(
                  MemoryUse::kParameters, unit.num_own, unit.trained_options)
              .copy_(own);
    }
    if (is_gathered) {
      const auto num_bytes = static_cast<int64_t>(
          unit.used_options.dtype().itemsize() *
          static_cast<size_t>(unit.num_numbers));
      unit.storage.emplace(num_bytes, flat.device(), owner, unit.name);
    } else if (!unit.whole.defined()) {
      unit.whole =
          layout_
              .reserve(
                  MemoryUse::kParameters, unit.num_numbers, unit.used_options)
              .copy_(flat);
    }
    const auto type = c10::typeMetaToScalarType(unit.used_options.dtype());
    for (size_t i = 0; i < unit.members.size(); ++i) {
      at::Tensor parameter = model_.parameters[unit.members[i]];
      if (parameter.scalar_type() != type) {
        parameter.mutable_grad().reset();
      }
      if (!is_gathered) {
        parameter.set_data(unit.member_of(unit.whole, i, parameter.numel())
                               .view(parameter.sizes()));
        continue;
      }
      if (parameter.scalar_type() != type) {
        parameter.set_data(at::empty(parameter.sizes(), unit.used_options));
      }
      unit.storage->move_in(parameter, laid.offsets[i]);
    }
  }

  void add_slices(const ShardUnit& unit) {
    const int64_t own_begin = unit.num_own * group_.rank();
    const int64_t own_end = own_begin + unit.num_own;
    for (size_t i = 0; i < unit.members.size(); ++i) {
      const size_t place = unit.members[i];
      const auto& parameter = model_.parameters[place];
      const int64_t offset = unit.offsets[i];
      const int64_t end = offset + parameter.numel();
      const int64_t begin = std::clamp(own_begin, offset, end);
      const int64_t size = std::clamp(own_end, begin, end) - begin;
      // An empty one lies nowhere in the part.
      auto own =
          unit.part.narrow(0, size == 0 ? 0 : begin - own_begin, size).detach();
      own.set_requires_grad(parameter.requires_grad());
      place_of_[parameter.unsafeGetTensorImpl()] = place;
      place_of_[own.unsafeGetTensorImpl()] = place;
      slices_[place] = {unit.index, i, std::move(own), begin - offset};
    }
  }

  const Slice& slice_of(const at::Tensor& tensor) const {
    return slices_[place_of_.at(tensor.unsafeGetTensorImpl())];
  }

  [[noreturn]] void refuse_load(
      const std::string& got,
      const at::Tensor& parameter,
      const Slice& slice) const {
    throw UsageError(str_cat(
        "[load_state_dict] got ",
        got,
        ", expected one of shape ",
        parameter.sizes(),
        ", or the ",
        slice.own.numel(),
        " numbers from ",
        slice.begin,
        " on that this rank trains; was it saved for another model, or with "
        "other units?"));
  }

  // As DDP: once after a forward that changed them.
  void share_buffers(bool trains) {
    if (buffers_may_differ_ && !model_.buffers.empty() &&
        !group_.is_shut_down()) {
      announce(group_, "forward of a prepared model");
      settle(group_);
      broadcast_tensors(group_, "broadcast of buffers", model_.buffers, 0);
    }
    buffers_may_differ_ = trains;
  }

  // --- whole weights --------------------------------------------------------
  bool has_whole(const ShardUnit& unit) const {
    return unit.whole.defined() && unit.part.is_alias_of(unit.whole);
  }

  /// Every rank's part to all, where the model always has whole weights.
  void gather_weights() {
    const at::NoGradGuard no_grad;
    announce(group_, "gather of weights");
    std::vector<ProcessGroup::Work> works;
    for (const auto& unit : units_) {
      if (!unit->is_trained && !is_stale_) {
        continue;
      }
      const auto own =
          unit->whole.narrow(0, unit->num_own * group_.rank(), unit->num_own);
      if (!has_whole(*unit)) {
        own.copy_(unit->part);
      }
      works.push_back(group_.start_all_gather_into(unit->whole, own));
    }
    for (auto& work : works) {
      work.wait();
    }
    is_stale_ = false;
  }

  // --- weights that come and go ---------------------------------------------
  size_t num_kept() const { return static_cast<size_t>(options_.prefetch) + 1; }
  UsePlan& plan(Pass pass) { return plans_[static_cast<size_t>(pass)]; }
  UsePlan& plan() { return plan(pass_); }

  // Autocast's cache holds a lock of the whole process while it casts a weight,
  // which ranks that are threads would wait for in the middle of a gather; and
  // it keeps the casts of all weights until the end of forward.
  void begin_pass(Pass pass) {
    pass_ = pass;
    plan().begin();
    casts_are_cached_ = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(
        casts_are_cached_ && options_.stage != ShardStage::kParameters);
  }
  void end_pass(const std::vector<size_t>& kept) {
    at::autocast::set_autocast_cache_enabled(casts_are_cached_);
    plan().end();
    announced_.clear();
    release_all_but(kept);
    pass_ = Pass::kNone;
  }
  void abandon_pass() {
    at::autocast::set_autocast_cache_enabled(casts_are_cached_);
    // Ranks may have come differently far, and have seen different passes.
    plans_ = {};
    announced_.clear();
    for (const auto& unit : units_) {
      unit->gathering = {}; // Waits, and is silent.
      unit->coming.reset();
      if (unit->presence == ShardUnit::Presence::kHere) {
        unit->storage->empty();
      }
      unit->presence = ShardUnit::Presence::kAway;
    }
    pass_ = Pass::kNone;
  }

  std::string gather_name(const ShardUnit& unit) const {
    return str_cat(
        "gather of ",
        unit.name,
        pass_ == Pass::kBackward ? " in backward" : " in forward");
  }

  // Ranks compare what they are about to gather while the unit before it is in
  // use: a branch that one of them takes alone is an exception, not a hang.
  void announce_ahead(const ShardUnit& unit) {
    if (unit.presence == ShardUnit::Presence::kAway &&
        announced_.insert(unit.index).second) {
      announce(group_, gather_name(unit));
    }
  }

  void start_gather(ShardUnit& unit) {
    if (unit.presence != ShardUnit::Presence::kAway) {
      return;
    }
    if (announced_.erase(unit.index) == 0) {
      announce(group_, gather_name(unit));
    }
    const at::NoGradGuard no_grad;
    unit.coming = layout_.reserve(
        MemoryUse::kParameters, unit.num_numbers, unit.used_options);
    unit.gathering = group_.start_all_gather_into(
        unit.coming, unit.part.to(unit.used_options.dtype()));
    unit.presence = ShardUnit::Presence::kComing;
  }

  void finish_gather(ShardUnit& unit) {
    if (unit.presence == ShardUnit::Presence::kComing) {
      unit.gathering.wait();
      unit.storage->fill(std::exchange(unit.coming, {}));
      unit.presence = ShardUnit::Presence::kHere;
    }
  }

  void release_all_but(const std::vector<size_t>& kept) {
    for (const auto& unit : units_) {
      if (unit->presence == ShardUnit::Presence::kAway || unit->num_uses > 0 ||
          std::find(kept.begin(), kept.end(), unit->index) != kept.end()) {
        continue;
      }
      finish_gather(*unit);
      unit->storage->empty();
      unit->presence = ShardUnit::Presence::kAway;
    }
  }

  // --- gradients ------------------------------------------------------------
  bool syncs() const { return sync_ || syncs_next_; }

  static bool has_any_gradient(const ShardUnit& unit) {
    return std::find(
               unit.has_gradient.begin(), unit.has_gradient.end(), true) !=
           unit.has_gradient.end();
  }

  void add_gradient(size_t place, const at::Tensor& value) {
    const auto& slice = slices_[place];
    auto& unit = *units_[slice.unit];
    if (!unit.gradient.defined()) {
      unit.gradient = layout_.reserve(
          MemoryUse::kGradients, unit.num_numbers, unit.trained_options);
    }
    const auto own = unit.member_of(unit.gradient, slice.member, value.numel())
                         .view(value.sizes());
    if (unit.has_gradient[slice.member]) {
      own.add_(value);
    } else {
      own.copy_(value);
    }
    unit.has_gradient[slice.member] = true;
  }

  /// By autograd, for each parameter.
  void take_gradient(size_t place) {
    at::Tensor& gradient = model_.parameters[place].mutable_grad();
    if (!gradient.defined()) {
      return;
    }
    if (gradient.layout() != at::kStrided) {
      throw UsageError(str_cat(
          "[backward] the gradient of '",
          model_.names[place],
          "' is sparse, expected a dense one with .shard"));
    }
    const at::NoGradGuard no_grad;
    add_gradient(place, gradient);
    gradient.reset();
    auto& unit = *units_[slices_[place].unit];
    unit.arrived.insert(slices_[place].member);
    if (syncs() && unit.arrived.size() == unit.members.size()) {
      announce_reduction(unit);
    }
  }

  /// Its gradients are complete. They leave at the next event, when the other
  /// ranks have been heard.
  void announce_reduction(ShardUnit& unit) {
    start_due_reduction();
    std::string members;
    for (const bool has : unit.has_gradient) {
      members += has ? '1' : '0';
    }
    announce(group_, str_cat("reduction of ", unit.name, " with ", members));
    unit.arrived.clear();
    due_ = &unit;
  }

  void start_due_reduction() {
    if (due_ == nullptr) {
      return;
    }
    auto& unit = *std::exchange(due_, nullptr);
    finish_reduction();
    const at::NoGradGuard no_grad;
    zero_gaps(unit);
    Reduction reduction{
        unit, unit.has_gradient, std::exchange(unit.gradient, {}), {}, {}};
    unit.has_gradient.assign(unit.members.size(), false);
    reduction.part = layout_.reserve(
        MemoryUse::kGradients, unit.num_own, unit.trained_options);
    reduction.work = group_.start_reduce_scatter(
        reduction.part, reduction.whole, ReduceOp::kMean);
    reduction_.emplace(std::move(reduction));
  }

  void finish_reduction() {
    if (!reduction_) {
      return;
    }
    const at::NoGradGuard no_grad;
    reduction_->work.wait();
    auto& unit = reduction_->unit;
    for (size_t i = 0; i < unit.members.size(); ++i) {
      if (!reduction_->members[i]) {
        continue;
      }
      const auto& slice = slices_[unit.members[i]];
      const auto come = reduction_->part.narrow(
          0,
          slice.own.storage_offset() - unit.part.storage_offset(),
          slice.own.numel());
      at::Tensor& gradient = at::Tensor(slice.own).mutable_grad();
      if (gradient.defined()) {
        gradient.add_(come);
      } else {
        gradient = come;
      }
    }
    // The first stage keeps the memory of whole gradients.
    if (options_.stage == ShardStage::kOptimizer && !unit.gradient.defined()) {
      unit.gradient = std::move(reduction_->whole);
    }
    reduction_.reset();
  }

  /// What no parameter has written, between them and where there is no
  /// gradient.
  static void zero_gaps(const ShardUnit& unit) {
    int64_t written = 0;
    for (size_t i = 0; i <= unit.members.size(); ++i) {
      const bool is_end = i == unit.members.size();
      const int64_t begin = is_end ? unit.num_numbers : unit.offsets[i];
      if (!is_end && !unit.has_gradient[i]) {
        continue;
      }
      unit.gradient.narrow(0, written, begin - written).zero_();
      if (!is_end) {
        written =
            begin + unit.engine->model_.parameters[unit.members[i]].numel();
      }
    }
  }

  void drop_gradient(ShardUnit& unit) const {
    unit.has_gradient.assign(unit.members.size(), false);
    if (options_.stage != ShardStage::kOptimizer) {
      unit.gradient.reset();
    }
  }

  void forget(size_t place) {
    const auto& slice = slices_[place];
    auto& unit = *units_[slice.unit];
    at::Tensor(slice.own).mutable_grad().reset();
    unit.has_gradient[slice.member] = false;
    if (!has_any_gradient(unit)) {
      drop_gradient(unit);
    }
  }

  // A program that looks at gradients of its own would find none, and go on.
  void mark_gradients() {
    for (size_t i = 0; i < slices_.size(); ++i) {
      const auto& slice = slices_[i];
      if (units_[slice.unit]->has_gradient[slice.member] ||
          slice.own.grad().defined()) {
        const auto& parameter = model_.parameters[i];
        at::Tensor(parameter).mutable_grad() =
            marks_.tensor(0, parameter.sizes(), parameter.scalar_type());
        is_marked_[i] = true;
      }
    }
  }

  ProcessGroup group_;
  ShardingOptions options_;
  ParameterSet model_;
  std::vector<std::shared_ptr<ShardUnit>> units_;
  /// Of each parameter of the model.
  std::vector<Slice> slices_;
  std::vector<size_t> frozen_;
  /// From the model's tensors and from what is trained in their place.
  std::unordered_map<const c10::TensorImpl*, size_t> place_of_;

  Pass pass_ = Pass::kNone;
  bool casts_are_cached_ = true;
  std::array<UsePlan, 4> plans_;
  /// Units whose coming gather ranks have compared.
  std::set<size_t> announced_;
  /// Whether the whole weights are older than the parts.
  bool is_stale_ = false;

  bool sync_ = true;
  bool syncs_next_ = false;
  bool buffers_may_differ_ = true;
  ShardUnit* due_ = nullptr;
  std::optional<Reduction> reduction_;
  std::shared_ptr<GradientMark> mark_owner_ = std::make_shared<GradientMark>();
  LazyStorage marks_{0, c10::Device(c10::kCPU), mark_owner_, "a gradient"};
  std::vector<bool> is_marked_;
  std::unique_ptr<Arrivals> arrivals_;
  int64_t num_before_ = 0;
  GradientArrival arrival_ = GradientArrival::kUnknown;
};

void ShardUnit::begin_use() {
  engine->begin_use(*this);
}

} // namespace

std::unique_ptr<ParallelEngine> make_shard_engine(
    const EngineArguments& arguments,
    const ShardingOptions& options) {
  if (options.prefetch < 1 || options.min_unit_numbers < 0) {
    throw UsageError(str_cat(
        "[prepare] got .shard with prefetch ",
        options.prefetch,
        " and min_unit_numbers ",
        options.min_unit_numbers,
        ", expected at least 1 and 0"));
  }
  for (const auto& name : arguments.model.sparse_gradients) {
    throw UsageError(str_cat(
        "[prepare] parameter '",
        name,
        "' has sparse gradients, expected dense ones with .shard; make its "
        "Embedding with sparse(false)"));
  }
  check_lazy_storage();
  refuse_second_engine(arguments.model);
  std::string units;
  for (const auto* list : {&options.units, &arguments.model.units}) {
    for (const auto& unit : *list) {
      units += unit + ' ';
    }
  }
  agree_on_text(
      arguments.group,
      "prepare",
      str_cat(
          "stage ",
          static_cast<int>(options.stage),
          ", units of at least ",
          options.min_unit_numbers,
          ", prefetch ",
          options.prefetch,
          ", units ",
          units,
          ": ",
          describe_model(arguments.model)));
  return std::make_unique<ShardEngine>(arguments, options);
}

} // namespace accelerate
