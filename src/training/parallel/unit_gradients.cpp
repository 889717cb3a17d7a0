// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/unit_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/agreement.h"

namespace accelerate {

/// This rank's gradients of one unit that the other ranks have not received.
struct UnitGradients::Gradient {
  at::Tensor whole;
  /// Which members have a gradient.
  std::vector<bool> has;
  /// The members whose gradients the current backward has computed, and the
  /// maximum number of them.
  std::set<size_t> arrived;
  size_t num_trained = 0;

  bool has_any() const {
    return std::find(has.begin(), has.end(), true) != has.end();
  }
};

/// The gradients of a unit while they are reduced to the ranks that train them.
struct UnitGradients::Reduction {
  const ShardUnit& unit;
  std::vector<bool> members;
  at::Tensor whole;
  at::Tensor shard;
  ProcessGroup::Work work;
  /// The stream that owns the memory of `whole` and `shard`.
  std::optional<c10::Stream> home;
};

struct UnitGradients::ReadRefusal final : MemoryOwner {
  void begin_use() override {
    throw UsageError(
        "[shard] The gradient of a sharded parameter cannot be read, because "
        "each rank only has a shard of it. Clip with "
        "accelerator.clip_grad_norm_() and step with a prepared optimizer");
  }
  void end_use() noexcept override {}
};

UnitGradients::UnitGradients(ShardedModel& model)
    : model_(model),
      stream_(model.device()),
      refusal_(std::make_shared<ReadRefusal>()),
      marks_(0, model.device(), refusal_, "a gradient"),
      is_marked_(model.slices().size(), false) {
  for (const auto& unit : model.units()) {
    Gradient& gradient = gradients_.emplace_back();
    gradient.has.assign(unit.members.size(), false);
  }
  follow_frozen();
}

UnitGradients::~UnitGradients() = default;

void UnitGradients::follow_frozen() {
  std::vector<at::Tensor> trained;
  std::vector<size_t> indices;
  for (auto& gradient : gradients_) {
    gradient.num_trained = 0;
  }
  const auto& parameters = model_.model().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].requires_grad()) {
      trained.push_back(parameters[i]);
      indices.push_back(i);
      ++gradient_of(model_.slices()[i]).num_trained;
    }
  }
  arrivals_ = std::make_unique<Arrivals>(
      trained, [this, indices](size_t position) { take(indices[position]); });
}

// --- backward ---------------------------------------------------------------
void UnitGradients::before_backward() {
  for (size_t i = 0; i < is_marked_.size(); ++i) {
    at::Tensor& mark = at::Tensor(model_.model().parameters[i]).mutable_grad();
    if (is_marked_[i] && !mark.defined()) {
      forget(i); // by the module's zero_grad()
    } else if (is_marked_[i]) {
      mark.reset();
    }
    is_marked_[i] = false;
  }
  for (auto& gradient : gradients_) {
    gradient.arrived.clear();
  }
  num_before_ = arrivals_->begin_backward();
  is_in_backward_ = true;
}

void UnitGradients::after_backward() {
  is_in_backward_ = false;
  if (!arrivals_->is_known()) {
    throw UsageError(
        "[backward] Compiled autograd does not work with a sharded model, "
        "because the model would receive no gradients. Turn compiled autograd "
        "off");
  }
  start_due_reduction();
  for (const auto& unit : model_.units()) {
    if (syncs() && gradients_[unit.index].has_any()) {
      announce_reduction(unit);
    }
  }
  start_due_reduction();
  finish_reduction();
  syncs_next_ = false;
  mark();
  arrival_ = arrivals_->num_arrived() == num_before_
                 ? GradientArrival::kNone
                 : GradientArrival::kSynchronised;
}

// Like autograd, keeps gradients that have arrived. Complete units have been
// reduced on all ranks that aborted at the same operator.
void UnitGradients::abandon_backward() {
  is_in_backward_ = false;
  due_ = nullptr;
  try {
    finish_reduction();
  } catch (const std::exception&) { // the backward's own error is reported
    {
      const auto guard = stream_.enter();
      reduction_->work = {}; // waits without throwing
    }
    stream_.lead(reduction_->home);
    reduction_.reset();
  }
  for (const auto& parameter : model_.model().parameters) {
    at::Tensor(parameter).mutable_grad().reset();
  }
  syncs_next_ = false;
  mark();
}

/// Autograd calls this for each parameter.
void UnitGradients::take(size_t index) {
  at::Tensor& come =
      at::Tensor(model_.model().parameters[index]).mutable_grad();
  if (!come.defined()) {
    return;
  }
  if (!is_in_backward_) {
    come.reset();
    throw UsageError(
        "[backward] loss.backward() does not reduce the gradients of a sharded "
        "model. Call accelerator.backward(loss)");
  }
  if (come.layout() != at::kStrided) {
    throw UsageError(str_cat(
        "[backward] The gradient of '",
        model_.model().names[index],
        "' is sparse, which sharding does not support. Create its Embedding "
        "without sparse gradients"));
  }
  const at::NoGradGuard no_grad;
  add(index, come);
  come.reset();
  const auto& slice = model_.slices()[index];
  auto& gradient = gradient_of(slice);
  gradient.arrived.insert(slice.member);
  if (syncs() && gradient.arrived.size() == gradient.num_trained) {
    announce_reduction(model_.unit_of(slice));
  }
}

void UnitGradients::add(size_t index, const at::Tensor& value) {
  const auto& slice = model_.slices()[index];
  const auto& unit = model_.unit_of(slice);
  auto& gradient = gradient_of(slice);
  if (!gradient.whole.defined()) {
    gradient.whole = model_.layout().reserve(
        MemoryUse::kGradients, unit.num_elements, unit.trained_options);
  }
  const auto own = unit.member_of(gradient.whole, slice.member, value.numel())
                       .view(value.sizes());
  if (gradient.has[slice.member]) {
    own.add_(value);
  } else {
    own.copy_(value);
  }
  gradient.has[slice.member] = true;
}

// --- reductions -------------------------------------------------------------
/// Called when the gradients of a unit are complete. They are sent at the next
/// event.
void UnitGradients::announce_reduction(const ShardUnit& unit) {
  start_due_reduction();
  auto& gradient = gradients_[unit.index];
  std::string members;
  for (const bool has : gradient.has) {
    members += has ? '1' : '0';
  }
  const auto what = str_cat("reduction of ", unit.name, " with ", members);
  announce(model_.group(), what);
  announce(model_.replicas(), what);
  gradient.arrived.clear();
  due_ = &unit;
}

void UnitGradients::start_due_reduction() {
  if (due_ == nullptr) {
    return;
  }
  const auto& unit = *std::exchange(due_, nullptr);
  finish_reduction();
  const at::NoGradGuard no_grad;
  zero_gaps(unit);
  auto& gradient = gradients_[unit.index];
  auto options = unit.trained_options;
  auto whole = std::exchange(gradient.whole, {});
  if (travels_as_bf16(unit)) {
    options = options.dtype(at::kBFloat16);
    const auto rounded =
        model_.layout()
            .reserve(MemoryUse::kGradients, unit.num_elements, options)
            .copy_(whole);
    if (keeps_whole()) {
      gradient.whole = whole;
    }
    whole = rounded;
  }
  const auto shard =
      model_.layout().reserve(MemoryUse::kGradients, unit.shard_size, options);
  reduction_ = std::make_unique<Reduction>(Reduction{
      unit,
      std::exchange(
          gradient.has, std::vector<bool>(unit.members.size(), false)),
      std::move(whole),
      shard,
      {},
      stream_.current()});
  stream_.follow(reduction_->home);
  const auto guard = stream_.enter();
  reduction_->work = model_.group().start_reduce_scatter(
      shard, reduction_->whole, operation_of(unit));
}

void UnitGradients::finish_reduction() {
  if (!reduction_) {
    return;
  }
  const at::NoGradGuard no_grad;
  {
    const auto guard = stream_.enter();
    reduction_->work.wait();
    model_.replicas().all_reduce(
        reduction_->shard, operation_of(reduction_->unit));
  }
  stream_.lead(reduction_->home);
  stream_.lead(stream_.current());
  const auto& unit = reduction_->unit;
  if (travels_as_bf16(unit) || model_.is_offloaded()) {
    reduction_->shard = model_.reserve_shard(MemoryUse::kGradients, unit)
                            .copy_(reduction_->shard);
  }
  if (travels_as_bf16(unit)) {
    reduction_->shard.div_(model_.everyone().world_size());
  }
  for (size_t i = 0; i < unit.members.size(); ++i) {
    if (!reduction_->members[i]) {
      continue;
    }
    const auto& slice = model_.slices()[unit.members[i]];
    const auto come = reduction_->shard.narrow(
        0,
        slice.own.storage_offset() - unit.shard.storage_offset(),
        slice.own.numel());
    at::Tensor& own = at::Tensor(slice.own).mutable_grad();
    if (own.defined()) {
      own.add_(come);
    } else {
      own = come;
    }
  }
  auto& whole = gradients_[unit.index].whole;
  if (keeps_whole() && !whole.defined()) {
    whole = std::move(reduction_->whole);
  }
  reduction_.reset();
}

/// Zeroes elements that no parameter has written: those between parameters, and
/// those without a gradient.
void UnitGradients::zero_gaps(const ShardUnit& unit) const {
  const auto& gradient = gradients_[unit.index];
  int64_t written = 0;
  for (size_t i = 0; i <= unit.members.size(); ++i) {
    const bool is_end = i == unit.members.size();
    const int64_t begin = is_end ? unit.num_elements : unit.offsets[i];
    if (!is_end && !gradient.has[i]) {
      continue;
    }
    gradient.whole.narrow(0, written, begin - written).zero_();
    if (!is_end) {
      written = begin + model_.model().parameters[unit.members[i]].numel();
    }
  }
}

bool UnitGradients::travels_as_bf16(const ShardUnit& unit) const {
  return model_.options().reduce_dtype == Precision::kBf16 &&
         unit.trained_options.dtype() == at::kFloat;
}

// Uses a sum for bf16, because its mean would be converted to fp32 before it is
// sent.
ReduceOp UnitGradients::operation_of(const ShardUnit& unit) const {
  return travels_as_bf16(unit) ? ReduceOp::kSum : ReduceOp::kMean;
}

/// The first stage keeps the memory of whole gradients.
bool UnitGradients::keeps_whole() const {
  return model_.options().stage == ShardStage::kOptimizer;
}

// --- existing gradients -----------------------------------------------------
UnitGradients::Gradient& UnitGradients::gradient_of(const ShardSlice& slice) {
  return gradients_[slice.unit];
}
const UnitGradients::Gradient& UnitGradients::gradient_of(
    const ShardSlice& slice) const {
  return gradients_[slice.unit];
}

at::Tensor UnitGradients::gradient(size_t index) const {
  const auto& slice = model_.slices()[index];
  const auto& gradient = gradient_of(slice);
  if (gradient.has[slice.member]) {
    const auto& parameter = model_.whole_of(slice);
    return model_.unit_of(slice)
        .member_of(gradient.whole, slice.member, parameter.numel())
        .view(parameter.sizes());
  }
  // Norms of empty tensors are not defined.
  return slice.own.numel() == 0 ? at::Tensor() : slice.own.grad();
}

void UnitGradients::zero(size_t index, Zeroing how) {
  if (how == Zeroing::kDrop) {
    forget(index);
  }
  at::Tensor(model_.model().parameters[index]).mutable_grad().reset();
  is_marked_[index] = false;
}

void UnitGradients::drop(const ShardUnit& unit) {
  auto& gradient = gradients_[unit.index];
  gradient.has.assign(unit.members.size(), false);
  if (!keeps_whole()) {
    gradient.whole.reset();
  }
}

void UnitGradients::forget(size_t index) {
  const auto& slice = model_.slices()[index];
  at::Tensor(slice.own).mutable_grad().reset();
  auto& gradient = gradient_of(slice);
  gradient.has[slice.member] = false;
  if (!gradient.has_any()) {
    drop(model_.unit_of(slice));
  }
}

// Marks gradients that exist. Otherwise, code that reads gradients itself would
// find none and continue.
void UnitGradients::mark() {
  for (size_t i = 0; i < is_marked_.size(); ++i) {
    const auto& slice = model_.slices()[i];
    if (gradient_of(slice).has[slice.member] || slice.own.grad().defined()) {
      const auto& parameter = model_.model().parameters[i];
      at::Tensor(parameter).mutable_grad() =
          marks_.tensor(0, parameter.sizes(), parameter.scalar_type());
      is_marked_[i] = true;
    }
  }
}

StateValue UnitGradients::saved(size_t index) const {
  const auto& slice = model_.slices()[index];
  const auto& own = slice.own.grad();
  if (gradient_of(slice).has[slice.member] || !own.defined()) {
    return gradient(index);
  }
  return TensorSlice{own, model_.whole_of(slice).sizes().vec(), slice.pieces};
}

void UnitGradients::load(size_t index, const StateValue& value) {
  zero(index, Zeroing::kDrop);
  const at::NoGradGuard no_grad;
  if (const auto* shard = std::get_if<TensorSlice>(&value)) {
    at::Tensor own = model_.slices()[index].own;
    own.mutable_grad() =
        shard->values.to(own.options().requires_grad(false)).clone();
  } else if (std::get<at::Tensor>(value).defined()) {
    add(index, std::get<at::Tensor>(value));
  }
}

} // namespace accelerate
