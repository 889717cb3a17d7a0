// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/engine.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/agreement.h"
#include "training/state/sliced_state.h"

namespace accelerate {
namespace {

template <class Interface>
void collect(Layer& layer, std::vector<Interface*>& list) {
  if (auto* found = dynamic_cast<Interface*>(&layer)) {
    list.push_back(found);
  }
}

void append(TensorLayout& layout, const LayerPlacement& placed) {
  layout.placements.insert(
      layout.placements.end(),
      placed.placements.begin(),
      placed.placements.end());
  if (placed.memory != TensorMemory::kDevice) {
    layout.memory = placed.memory;
  }
}

} // namespace

ParallelEngine::ParallelEngine(const EngineArguments& arguments)
    : model_(arguments.model),
      layout_(arguments.memory),
      mesh_(arguments.mesh) {}

void ParallelEngine::add(std::unique_ptr<Layer> layer) {
  collect(*layer, forward_);
  collect(*layer, backward_);
  collect(*layer, gradient_);
  collect(*layer, update_);
  collect(*layer, placement_);
  collect(*layer, capture_);
  collect(*layer, state_);
  if (auto* exchange = dynamic_cast<ExchangeLayer*>(layer.get())) {
    if (exchange_ != nullptr) {
      throw UsageError(
          "[prepare] Two layers synchronise the gradients of the same model. "
          "Keep only one");
    }
    exchange_ = exchange;
  }
  layers_.push_back(std::move(layer));
}

void ParallelEngine::place_parameters() {
  for (size_t i = 0; !placement_.empty() && i < model_.parameters.size(); ++i) {
    const auto& parameter = model_.parameters[i];
    ParameterEntry entry = {parameter, parameter, parameter.sizes().vec()};
    for (const auto* layer : placement_) {
      auto placed = layer->place(entry.trained);
      if (!placed.whole.empty()) {
        entry.whole = std::move(placed.whole);
        append(entry.held_layout, placed);
      }
      append(entry.layout, placed);
      entry.trained = std::move(placed.trained);
    }
    const auto pieces = [&](const TensorLayout& layout) {
      return layout.is_divided() ? std::optional(pieces_of(
                                       entry.whole,
                                       layout,
                                       mesh_.shape(),
                                       mesh_.group().rank()))
                                 : std::nullopt;
    };
    entry.pieces = pieces(entry.layout);
    entry.held = pieces(entry.held_layout);
    if (entry.pieces || !entry.trained.is_same(parameter)) {
      index_of_[parameter.unsafeGetTensorImpl()] = entries_.size();
      index_of_[entry.trained.unsafeGetTensorImpl()] = entries_.size();
      entries_.push_back(std::move(entry));
    }
  }
}

// --- forward ----------------------------------------------------------------
bool ParallelEngine::is_outdated() const {
  return std::ranges::any_of(forward_, &ForwardLayer::is_outdated);
}

bool ParallelEngine::wants_outputs() const {
  return std::ranges::any_of(forward_, &ForwardLayer::wants_outputs);
}

// --- backward ---------------------------------------------------------------
void ParallelEngine::await_another_backward() {
  if (exchange_ != nullptr) {
    exchange_->await_another_backward();
  }
}

GradientArrival ParallelEngine::arrival() const {
  return exchange_ != nullptr ? exchange_->arrival()
                              : GradientArrival::kUnknown;
}

void ParallelEngine::set_sync(bool sync) {
  is_accumulating_ = !sync;
  if (exchange_ != nullptr) {
    exchange_->set_sync(sync);
  }
}

void ParallelEngine::sync_next_backward() {
  if (exchange_ != nullptr) {
    exchange_->sync_next_backward();
  }
}

Joinable* ParallelEngine::joinable() const {
  return exchange_ != nullptr ? exchange_->joinable() : nullptr;
}

// --- gradients --------------------------------------------------------------
at::Tensor ParallelEngine::gradient(const at::Tensor& parameter) const {
  for (const auto* layer : gradient_) {
    if (auto found = layer->gradient(parameter)) {
      return *std::move(found);
    }
  }
  return parameter.grad();
}

void ParallelEngine::scale_gradients(
    const std::vector<at::Tensor>& parameters,
    const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients, wide;
  for (const auto& parameter : parameters) {
    if (auto own = gradient(parameter); own.defined()) {
      const bool is_wide = own.scalar_type() == at::kDouble;
      (is_wide ? wide : gradients).push_back(std::move(own));
    }
  }
  if (!gradients.empty()) {
    at::_foreach_mul_(gradients, factor.to(at::kFloat));
  }
  if (!wide.empty()) {
    at::_foreach_mul_(wide, factor.to(at::kDouble));
  }
}

std::vector<at::Tensor> ParallelEngine::kept_gradients(
    const std::vector<at::Tensor>& parameters) {
  for (auto* layer : gradient_) {
    if (auto kept = layer->kept_gradients(parameters); !kept.empty()) {
      return kept;
    }
  }
  return {};
}

StateValue ParallelEngine::saved_gradient(const at::Tensor& parameter) const {
  std::optional<StateValue> value;
  for (size_t i = 0; !value && i < gradient_.size(); ++i) {
    value = gradient_[i]->saved_gradient(parameter);
  }
  if (!value) {
    value = parameter.grad();
  }
  const auto* entry = find(parameter);
  if (entry == nullptr) {
    return *std::move(value);
  }
  if (const auto* slice = std::get_if<TensorSlice>(&*value)) {
    return slice_of(*entry, entry->pieces, slice->values);
  }
  return slice_of(*entry, entry->held, std::get<at::Tensor>(*value));
}

void ParallelEngine::load_gradient(
    const at::Tensor& parameter,
    const StateValue& value) {
  StateValue own = value;
  if (const auto* entry = find(parameter); entry != nullptr && entry->held) {
    const auto* slice = std::get_if<TensorSlice>(&value);
    if (slice != nullptr && slice->pieces == *entry->held) {
      own = slice->values.view(parameter.sizes());
    } else if (const auto* whole = std::get_if<at::Tensor>(&value);
               whole != nullptr && whole->defined()) {
      own = elements_at(*whole, *entry->held).view(parameter.sizes());
    }
  }
  for (auto* layer : gradient_) {
    if (layer->load_gradient(parameter, own)) {
      return;
    }
  }
  const auto& whole = std::get<at::Tensor>(own);
  at::Tensor target = parameter;
  target.mutable_grad() = whole.defined() ? whole.detach().to(
                                                parameter.device(),
                                                parameter.scalar_type(),
                                                /*non_blocking=*/false,
                                                /*copy=*/true)
                                          : at::Tensor();
  if (exchange_ != nullptr) {
    exchange_->note_loaded_gradient(parameter);
  }
}

// --- step -------------------------------------------------------------------
const ReducedCopies* ParallelEngine::reduced_copies(bool takes) {
  const ReducedCopies* first = nullptr;
  for (auto* layer : update_) {
    const auto* copies = layer->reduced_copies(takes);
    first = first == nullptr ? copies : first;
  }
  return first;
}

// --- capture ----------------------------------------------------------------
std::string ParallelEngine::why_not_to_record() const {
  for (const auto* layer : capture_) {
    if (auto why = layer->why_not_to_record(); !why.empty()) {
      return why;
    }
  }
  return {};
}

bool ParallelEngine::is_recordable() const {
  return std::ranges::all_of(capture_, &CaptureLayer::is_recordable);
}

size_t ParallelEngine::num_layouts() const {
  size_t sum = 0;
  for (const auto* layer : capture_) {
    sum += layer->num_layouts();
  }
  return sum;
}

bool ParallelEngine::shares_buffers_next() const {
  return std::ranges::any_of(capture_, &CaptureLayer::shares_buffers_next);
}

// --- where parameters are ---------------------------------------------------
const ParallelEngine::ParameterEntry* ParallelEngine::find(
    const at::Tensor& parameter) const {
  const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
  return found == index_of_.end() ? nullptr : &entries_[found->second];
}

const at::Tensor& ParallelEngine::trained(const at::Tensor& parameter) const {
  const auto* entry = find(parameter);
  return entry != nullptr ? entry->trained : parameter;
}

const ParallelEngine::ParameterEntry& ParallelEngine::entry_of(
    const at::Tensor& parameter) const {
  static const ParameterEntry whole;
  const auto* entry = find(parameter);
  return entry != nullptr ? *entry : whole;
}

const TensorLayout& ParallelEngine::tensor_layout(
    const at::Tensor& parameter) const {
  return entry_of(parameter).layout;
}

const std::optional<TensorPieces>& ParallelEngine::pieces(
    const at::Tensor& parameter) const {
  return entry_of(parameter).pieces;
}

const TensorLayout& ParallelEngine::held_layout(
    const at::Tensor& parameter) const {
  return entry_of(parameter).held_layout;
}

const std::optional<TensorPieces>& ParallelEngine::held_pieces(
    const at::Tensor& parameter) const {
  return entry_of(parameter).held;
}

bool ParallelEngine::is_divided() const {
  return std::ranges::any_of(
      entries_, [](const auto& entry) { return entry.pieces.has_value(); });
}

std::vector<int64_t> ParallelEngine::whole_sizes(
    const at::Tensor& parameter) const {
  const auto* entry = find(parameter);
  return entry != nullptr ? entry->whole : parameter.sizes().vec();
}

// --- state ------------------------------------------------------------------
StateValue ParallelEngine::slice_of(
    const ParameterEntry& entry,
    const std::optional<TensorPieces>& pieces,
    const at::Tensor& values) {
  if (pieces && values.defined()) {
    return TensorSlice{values, entry.whole, *pieces};
  }
  return values;
}

StateValue ParallelEngine::saved(const at::Tensor& parameter) const {
  const auto* entry = find(parameter);
  if (entry == nullptr) {
    return parameter.detach();
  }
  for (const auto* layer : state_) {
    const auto whole = layer->whole_value(entry->parameter);
    if (whole.defined()) {
      return slice_of(*entry, entry->held, whole.detach());
    }
  }
  return slice_of(*entry, entry->pieces, entry->trained.detach());
}

void ParallelEngine::refuse_load(
    const ParameterEntry& entry,
    const std::string& got) {
  throw UsageError(str_cat(
      "[load_state_dict] The saved state has ",
      got,
      ". This rank needs a tensor of shape ",
      at::IntArrayRef(entry.whole),
      entry.pieces
          ? str_cat(
                ", or its shard of ",
                entry.trained.numel(),
                " elements. Was it saved with a different model or with "
                "different shard units?")
          : ". Was it saved with a different model?"));
}

void ParallelEngine::load_slice(
    const ParameterEntry& entry,
    const TensorSlice& slice) const {
  if (slice.whole != entry.whole || slice.pieces != entry.pieces) {
    refuse_load(
        entry,
        str_cat(
            "a different shard with ",
            slice.values.numel(),
            " elements of a tensor of shape ",
            at::IntArrayRef(slice.whole)));
  }
  entry.trained.detach().copy_(slice.values.view(entry.trained.sizes()));
}

void ParallelEngine::load(
    const at::Tensor& parameter,
    const StateValue& value) {
  const at::NoGradGuard no_grad;
  const auto* found = find(parameter);
  const ParameterEntry entry =
      found != nullptr
          ? *found
          : ParameterEntry{parameter, parameter, parameter.sizes().vec()};
  const auto* whole = std::get_if<at::Tensor>(&value);
  const auto* slice = std::get_if<TensorSlice>(&value);
  at::Tensor held;
  first_to_last<&StateLayer::before_load>(state_);
  if (slice != nullptr && entry.pieces) {
    load_slice(entry, *slice);
  } else if (whole == nullptr || whole->sizes() != entry.whole) {
    refuse_load(
        entry,
        whole == nullptr ? "no tensor"
                         : str_cat("a tensor of shape ", whole->sizes()));
  } else {
    held = entry.held ? elements_at(*whole, *entry.held).view(parameter.sizes())
                      : *whole;
    entry.trained.detach().copy_(
        entry.pieces
            ? elements_at(*whole, *entry.pieces).view(entry.trained.sizes())
            : held);
  }
  first_to_last<&StateLayer::take_loaded>(state_, entry.parameter, held);
}

/// Collective over the ranks that hold the other slices.
at::Tensor ParallelEngine::gather_held(
    const ParameterEntry& entry,
    const at::Tensor& value) const {
  const auto along = entry.held_layout.divided_along();
  const auto& group = mesh_.group(along);
  const auto ranks = mesh_.shape().ranks(mesh_.group().rank(), along);
  std::vector<std::pair<TensorPieces, at::Tensor>> slices;
  int64_t most = 0;
  for (const int rank : ranks) {
    slices.emplace_back(
        pieces_of(entry.whole, entry.held_layout, mesh_.shape(), rank),
        at::Tensor());
    most = std::max(most, num_elements(slices.back().first));
  }
  auto own = at::zeros({most}, value.options().requires_grad(false));
  own.narrow(0, 0, value.numel()).copy_(value.flatten());
  announce(group, "gather of a parameter to save it");
  const auto all = group.all_gather(own).cpu();
  for (size_t i = 0; i < slices.size(); ++i) {
    auto& [pieces, values] = slices[i];
    values = all[static_cast<int64_t>(i)].narrow(0, 0, num_elements(pieces));
  }
  return join_slices(entry.whole, slices);
}

void ParallelEngine::visit_whole_parameters(bool keep, const TakeWhole& take) {
  const at::NoGradGuard no_grad;
  const bool are_held_in_shards = std::ranges::any_of(
      entries_, [](const auto& entry) { return entry.held.has_value(); });
  const auto pass_on = [&](size_t i, const at::Tensor& value) {
    const auto* entry = find(model_.parameters[i]);
    const auto whole =
        entry != nullptr && entry->held ? gather_held(*entry, value) : value;
    if (keep) {
      take(i, whole);
    }
  };
  for (auto* layer : state_) {
    if (layer->visit_parameters(keep || are_held_in_shards, pass_on)) {
      return;
    }
  }
  const bool are_others = are_held_in_shards ||
                          std::ranges::any_of(entries_, [](const auto& entry) {
                            return !entry.pieces;
                          });
  for (size_t i = 0; are_others && i < model_.parameters.size(); ++i) {
    const auto& parameter = model_.parameters[i];
    if (keep || are_held_in_shards) {
      pass_on(
          i,
          trained(parameter).detach().to(
              at::kCPU, /*non_blocking=*/false, /*copy=*/true));
    }
  }
}

std::vector<at::Tensor> ParallelEngine::whole_parameters(bool keep) {
  std::vector<at::Tensor> values;
  visit_whole_parameters(keep, [&](size_t index, const at::Tensor& value) {
    values.resize(std::max(values.size(), index + 1));
    // Copied if the value would otherwise keep the memory of a whole unit
    // alive.
    values[index] =
        value.nbytes() == value.storage().nbytes() ? value : value.clone();
  });
  return values;
}

StateDict ParallelEngine::state_dict() const {
  StateDict state;
  for (const auto* layer : state_) {
    for (const auto& [key, value] : layer->state_dict()) {
      state.set(key, value);
    }
  }
  return state;
}

} // namespace accelerate
