// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/tensor_ranks.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/state/sliced_state.h"

namespace accelerate {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// --- operators ---------------------------------------------------------------

/// A group as a value of an autograd node.
struct HeldGroup : torch::CustomClassHolder {
  explicit HeldGroup(ProcessGroup held) : group(std::move(held)) {}
  ProcessGroup group;
};

void keep_group(AutogradContext* context, const ProcessGroup& group) {
  context->saved_data["group"] =
      c10::IValue::make_capsule(c10::make_intrusive<HeldGroup>(group));
}

ProcessGroup kept_group(AutogradContext* context) {
  const auto held = context->saved_data["group"].toCapsule();
  return static_cast<HeldGroup&>(*held).group;
}

// Second derivatives would need collectives that backward does not make.
void refuse_second_derivatives() {
  if (at::GradMode::is_enabled()) {
    throw UsageError(
        "[backward] Tensor parallelism does not support second derivatives. "
        "Call backward without create_graph");
  }
}

at::Tensor sum_over(const ProcessGroup& group, const at::Tensor& partial) {
  auto sum = partial.detach().clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum, ReduceOp::kSum);
  return sum;
}

/// The identity, whose gradient is summed over ranks.
struct EnterDivided : torch::autograd::Function<EnterDivided> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const ProcessGroup& group) {
    keep_group(context, group);
    return x.view_as(x);
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    refuse_second_derivatives();
    return {sum_over(kept_group(context), gradients[0]), {}};
  }
};

/// The sum over ranks. Every rank has the whole gradient already.
struct LeaveDivided : torch::autograd::Function<LeaveDivided> {
  static at::Tensor forward(
      AutogradContext* /*context*/,
      const at::Tensor& partial,
      const ProcessGroup& group) {
    return sum_over(group, partial);
  }
  static tensor_list backward(
      AutogradContext* /*context*/,
      tensor_list gradients) {
    refuse_second_derivatives();
    return {gradients[0], {}};
  }
};

/// Which part of a divided dimension is whose.
struct Parts {
  Parts(int64_t length, const ProcessGroup& group)
      : length(length),
        most((length + group.world_size() - 1) / group.world_size()),
        first(std::min(length, most * group.rank())),
        count(std::min(most, length - first)) {}
  int64_t length;
  /// The length of the longest part. All but the last ones have it.
  int64_t most;
  int64_t first;
  int64_t count;
};

/// Waiting for values on a device would be slow, so the device checks them.
void check_ids(const at::Tensor& ids, int64_t num_rows) {
  const auto are_valid = ids.ge(0).logical_and_(ids.lt(num_rows));
  if (!ids.is_cpu()) {
    at::_assert_async(are_valid.all(), "an embedding id is out of range");
  } else if (!are_valid.all().item<bool>()) {
    const auto wrong = ids.masked_select(are_valid.logical_not())[0];
    throw UsageError(str_cat(
        "[forward] Embedding id ",
        wrong.item<int64_t>(),
        " is out of range. Pass ids from 0 to ",
        num_rows - 1));
  }
}

struct GatherDivided : torch::autograd::Function<GatherDivided> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& part,
      int64_t length,
      const ProcessGroup& group) {
    const Parts parts(length, group);
    context->saved_data["first"] = parts.first;
    context->saved_data["count"] = parts.count;
    const auto even =
        at::constant_pad_nd(part, {0, parts.most - parts.count}).contiguous();
    const auto padded = at::cat(group.all_gather(even).unbind(), -1);
    // Not a view, which code after the function could not modify in place.
    return padded.size(-1) == length ? padded
                                     : padded.narrow(-1, 0, length).clone();
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    refuse_second_derivatives();
    const auto own = gradients[0].narrow(
        -1,
        context->saved_data["first"].toInt(),
        context->saved_data["count"].toInt());
    return {own, {}, {}};
  }
};

/// The mean loss of rows whose columns ranks divide.
struct DividedCrossEntropy : torch::autograd::Function<DividedCrossEntropy> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& logits,
      const at::Tensor& labels,
      int64_t num_classes,
      int64_t ignored,
      const ProcessGroup& group) {
    const Parts parts(num_classes, group);
    if (!labels.is_cpu()) { // the models check those in host memory
      at::_assert_async(
          labels.ge(0)
              .logical_and_(labels.lt(num_classes))
              .logical_or_(labels.eq(ignored))
              .all(),
          "a label is out of range");
    }
    const auto exact = logits.to(at::toOpMathType(logits.scalar_type()));
    auto most = exact.amax(1);
    group.all_reduce(most, ReduceOp::kMax);
    auto shares = (exact - most.unsqueeze(1)).exp_();
    const auto is_own = labels.ge(parts.first)
                            .logical_and(labels.lt(parts.first + parts.count));
    const auto columns = at::where(is_own, labels - parts.first, 0);
    const auto chosen = exact.gather(1, columns.unsqueeze(1)).squeeze(1) - most;
    // One exchange for the sum of the exponentials and the label's logit.
    auto sums = at::stack({shares.sum(1), chosen.masked_fill(~is_own, 0)});
    group.all_reduce(sums, ReduceOp::kSum);
    shares.div_(sums[0].unsqueeze(1));
    const auto counts = labels.ne(ignored);
    const auto num_counted = counts.sum();
    context->save_for_backward({shares, columns, is_own, counts, num_counted});
    context->saved_data["dtype"] = static_cast<int64_t>(logits.scalar_type());
    return (sums[0].log() - sums[1]).masked_fill(~counts, 0).sum() /
           num_counted;
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    refuse_second_derivatives();
    const auto saved = context->get_saved_variables();
    const auto& shares = saved[0];
    auto gradient = shares.clone();
    gradient.scatter_add_(
        1,
        saved[1].unsqueeze(1),
        saved[2].to(shares.scalar_type()).neg().unsqueeze(1));
    const auto factor = (gradients[0] / saved[4]).to(shares.scalar_type());
    gradient.mul_(
        at::where(saved[3], factor, at::zeros_like(factor)).unsqueeze(1));
    return {
        gradient.to(
            static_cast<at::ScalarType>(context->saved_data["dtype"].toInt())),
        {},
        {},
        {},
        {}};
  }
};

// --- parameters --------------------------------------------------------------

/// All divided parameters of the process. A weak reference keeps the address of
/// a destroyed tensor from being used again.
struct Registry {
  struct Entry {
    WeakTensor tensor;
    std::shared_ptr<const DividedParameter> info;
  };
  std::shared_mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Entry> entries;
  std::atomic<bool> is_used = false;
};

Registry& registry() {
  static auto* const registry = new Registry; // tensors outlive static objects
  return *registry;
}

int64_t hash_of_values(const at::Tensor& tensor) {
  const auto plain = tensor.detach().to(at::kCPU).contiguous();
  return static_cast<int64_t>(std::hash<std::string_view>()(std::string_view(
      static_cast<const char*>(plain.const_data_ptr()), plain.nbytes())));
}

int64_t divided_length(const DividedParameter& info) {
  return info.whole[static_cast<size_t>(info.split.shard.dim)];
}

} // namespace

// --- ranks ------------------------------------------------------------------
at::Tensor TensorRanks::enter(const at::Tensor& x) {
  check_input(x);
  if (!at::GradMode::is_enabled() || !x.requires_grad()) {
    return x;
  }
  if (!last_input_.is_same(x) || last_version_ != x._version()) {
    last_entered_ = EnterDivided::apply(x, group_);
    last_input_ = x;
    last_version_ = x._version();
  }
  return last_entered_;
}

void TensorRanks::forget_input() {
  last_input_.reset();
  last_entered_.reset();
}

void TensorRanks::check_is_closed() {
  if (const auto layer = std::exchange(open_layer_, ""); !layer.empty()) {
    throw UsageError(str_cat(
        "[forward] The outputs of the layer of '",
        layer,
        "' stayed divided until the end of the forward pass. Use kRows for a "
        "linear layer after it, or kGatheredColumns for this layer"));
  }
}

void TensorRanks::check_features(const at::Tensor& x, int64_t num_features)
    const {
  const auto found = x.dim() > 0 ? x.size(-1) : num_features;
  if (found != num_features && found * group_.world_size() == num_features) {
    throw UsageError(str_cat(
        "[forward] A linear layer for ",
        num_features,
        " features received ",
        found,
        ", because ranks divide the outputs of the layer before it. Use kRows "
        "for this layer, or kGatheredColumns for the layer before it",
        open_layer_.empty() ? "" : str_cat(" ('", open_layer_, "')")));
  }
}

at::Tensor TensorRanks::sum(const at::Tensor& partial) {
  return LeaveDivided::apply(partial, group_);
}

at::Tensor TensorRanks::gather(const at::Tensor& part, int64_t length) {
  return GatherDivided::apply(part, length, group_);
}

void TensorRanks::check_input(const at::Tensor& input) {
  if (!checks_input_) {
    return;
  }
  checks_input_ = false;
  const auto own = at::full({1}, hash_of_values(input), at::kLong);
  const auto all = group_.all_gather(own);
  if (!all.eq(own).all().item<bool>()) {
    throw MismatchError(
        "[forward] Tensor-parallel ranks received different inputs, but they "
        "must process the same batch. Prepare the loader, or give these ranks "
        "the same samples");
  }
}

// --- parameters --------------------------------------------------------------
std::shared_ptr<const DividedParameter> divided(const at::Tensor& parameter) {
  auto& all = registry();
  if (!all.is_used.load(std::memory_order_acquire)) {
    return nullptr;
  }
  const std::shared_lock lock(all.mutex);
  const auto found = all.entries.find(parameter.unsafeGetTensorImpl());
  return found == all.entries.end() ? nullptr : found->second.info;
}

void set_divided(const at::Tensor& parameter, DividedParameter info) {
  auto& all = registry();
  const std::unique_lock lock(all.mutex);
  std::erase_if(all.entries, [](const auto& entry) {
    return entry.second.tensor.expired();
  });
  all.entries.insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      Registry::Entry{
          WeakTensor(parameter.getIntrusivePtr()),
          std::make_shared<const DividedParameter>(std::move(info))});
  all.is_used.store(true, std::memory_order_release);
}

at::Tensor enter_divided(const DividedParameter& info, const at::Tensor& x) {
  if (!info.split.divides_inputs) {
    const auto& shape = info.whole;
    if (shape.size() == 2) {
      const auto inputs = static_cast<size_t>(1 - info.split.shard.dim);
      info.ranks->check_features(x, shape[inputs]);
    }
    return info.ranks->enter(x);
  }
  const auto own = divided_length(info) / info.ranks->group().world_size();
  if (x.size(-1) != own) {
    throw UsageError(str_cat(
        "[forward] A layer with divided inputs received ",
        x.size(-1),
        " features, but this rank has weights for ",
        own,
        " of ",
        divided_length(info),
        ". Divide the layer before it with kColumns in the tensor plan"));
  }
  return x;
}

at::Tensor leave_divided(
    const DividedParameter& info,
    const at::Tensor& product) {
  if (info.split.divides_inputs) {
    info.ranks->open("");
    return info.ranks->sum(product);
  }
  if (info.split.is_gathered) {
    return info.ranks->gather(product, divided_length(info));
  }
  if (!info.split.is_vocabulary) {
    info.ranks->open(info.name);
  }
  return product;
}

at::Tensor enter_divided(const at::Tensor& x, const at::Tensor& weight) {
  const auto info = divided(weight);
  return info ? enter_divided(*info, x) : x;
}

at::Tensor leave_divided(const at::Tensor& product, const at::Tensor& weight) {
  const auto info = divided(weight);
  return info ? leave_divided(*info, product) : product;
}

at::Tensor divided_linear(
    const DividedParameter& info,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  const PlainOperators plain;
  const auto entered = enter_divided(info, x);
  if (!info.split.divides_inputs && !info.split.is_gathered) {
    return leave_divided(info, at::linear(entered, weight, bias));
  }
  // A bias inside of the product would be added once per rank.
  const auto whole = leave_divided(info, at::linear(entered, weight));
  return bias.defined() ? whole + bias.to(whole.scalar_type()) : whole;
}

at::Tensor divided_embedding(
    const DividedParameter& info,
    const at::Tensor& weight,
    const at::Tensor& ids,
    std::optional<int64_t> padding) {
  if (info.split.divides_inputs || info.split.shard.dim != 0) {
    throw UsageError(
        "[forward] The tensor plan divides an embedding like the inputs of a "
        "linear module. Use kVocabulary for it");
  }
  const PlainOperators plain;
  info.ranks->check_input(ids);
  const Parts parts(divided_length(info), info.ranks->group());
  check_ids(ids, parts.length);
  const auto is_foreign =
      ids.lt(parts.first).logical_or(ids.ge(parts.first + parts.count));
  const auto own = (ids - parts.first).masked_fill(is_foreign, 0);
  const bool has_padding = padding && *padding >= parts.first &&
                           *padding < parts.first + parts.count;
  // A foreign id reads row 0, but adds nothing to its gradient.
  const auto rows =
      at::embedding(weight, own, has_padding ? *padding - parts.first : -1)
          .masked_fill(is_foreign.unsqueeze(-1), 0);
  return info.ranks->sum(rows);
}

at::Tensor divided_cross_entropy(
    const DividedParameter& info,
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t ignored) {
  return DividedCrossEntropy::apply(
      logits, labels, divided_length(info), ignored, info.ranks->group());
}

at::Tensor whole_of_divided(
    const DividedParameter& info,
    const at::Tensor& own) {
  const auto& group = info.ranks->group();
  const MeshShape mesh(
      {.replicate = 1, .shard = 1, .tensor = group.world_size()},
      group.world_size());
  const TensorLayout layout = {
      .placements = {{MeshDimension::kTensor, info.split.shard}}};
  std::vector<std::pair<TensorPieces, at::Tensor>> slices;
  int64_t most = 0;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    slices.emplace_back(
        pieces_of(info.whole, layout, mesh, rank), at::Tensor());
    most = std::max(most, num_elements(slices.back().first));
  }
  auto padded = at::zeros({most}, own.options().requires_grad(false));
  padded.narrow(0, 0, own.numel()).copy_(own.detach().flatten());
  const auto all = group.all_gather(padded).cpu();
  for (size_t i = 0; i < slices.size(); ++i) {
    slices[i].second = all[static_cast<int64_t>(i)].narrow(
        0, 0, num_elements(slices[i].first));
  }
  return join_slices(info.whole, slices);
}

} // namespace accelerate
