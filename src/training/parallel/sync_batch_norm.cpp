// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// Every dimension except the channels'.
std::vector<int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    dims.push_back(dim);
  }
  return dims;
}

/// Per-channel values in a shape that broadcasts with `input`.
at::Tensor as_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

/// The dtype of sums, because sums of 16-bit values need more than 16 bits.
at::ScalarType sum_type(const at::Tensor& input) {
  return at::toOpMathType(input.scalar_type());
}

/// The statistics over all ranks. The number of values per channel is a tensor,
/// so that the host need not wait for a GPU.
struct Statistics {
  at::Tensor mean, variance, count;
};

// Ranks exchange means and variances. Sums of squares would lose the variance
// of values far from zero.
Statistics statistics_of_all(
    const ProcessGroup& group,
    const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const auto type = sum_type(input);
  const auto own_count =
      static_cast<double>(input.numel()) / static_cast<double>(channels);
  auto message = at::zeros({2 * channels + 1}, input.options().dtype(type));
  if (own_count > 0) {
    const auto [variance, mean] =
        at::var_mean(input.to(type), reduced_dims(input), /*unbiased=*/false);
    message.narrow(0, 0, channels).copy_(mean);
    message.narrow(0, channels, channels).copy_(variance);
    message[2 * channels].fill_(own_count);
  }
  const auto rows = group.all_gather(message).to(at::kDouble);
  const auto means = rows.narrow(1, 0, channels);
  const auto variances = rows.narrow(1, channels, channels);
  const auto counts = rows.narrow(1, 2 * channels, 1);
  Statistics all;
  all.count = counts.sum();
  const auto shares = counts / all.count.clamp_min(1);
  const auto mean = (means * shares).sum(0);
  const auto spread = variances + (means - mean).square();
  all.mean = mean.to(type);
  all.variance = (spread * shares).sum(0).to(type);
  return all;
}

void update_running(const SyncBatchNormInput& in, const Statistics& all) {
  if (!in.running_mean.defined()) {
    return;
  }
  auto mean = in.running_mean;
  auto variance = in.running_var;
  mean.mul_(1 - in.momentum).add_(all.mean, in.momentum);
  const auto unbiased =
      all.variance * (all.count / (all.count - 1).clamp_min(1));
  variance.mul_(1 - in.momentum).add_(unbiased, in.momentum);
}

struct SyncBatchNormFunction
    : torch::autograd::Function<SyncBatchNormFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const std::optional<at::Tensor>& weight,
      const std::optional<at::Tensor>& bias,
      const SyncBatchNormInput& in,
      const ProcessGroup& group) {
    const auto all = statistics_of_all(group, input);
    update_running(in, all);
    const auto invstd = (all.variance + in.eps).rsqrt();
    context->save_for_backward({input, in.weight, all.mean, invstd, all.count});
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupCapsule>(group));
    // Computes like torch with running statistics, in one pass over the input.
    return std::get<0>(at::native_batch_norm(
        input,
        weight,
        bias,
        all.mean,
        all.variance,
        /*training=*/false,
        in.momentum,
        in.eps));
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    if (at::GradMode::is_enabled()) {
      throw UsageError(
          "[SyncBatchNorm] Second derivatives are not supported. Call backward "
          "without create_graph");
    }
    const auto saved = context->get_saved_variables();
    const auto& input = saved[0];
    const auto& weight = saved[1];
    const auto type = sum_type(input);
    const int64_t channels = input.size(1);
    const auto dims = reduced_dims(input);
    const auto dy = gradients[0].to(type);
    const auto centred = input.to(type) - as_channels(saved[2], input);
    const auto& invstd = saved[3];
    auto sums = at::cat({dy.sum(dims), (dy * centred).sum(dims)});
    tensor_list result(5);
    if (weight.defined()) {
      result[1] = (sums.narrow(0, channels, channels) * invstd)
                      .to(weight.scalar_type());
      result[2] =
          sums.narrow(0, 0, channels).to(weight.scalar_type(), false, true);
    }
    const auto group = context->saved_data["group"].toCapsule();
    static_cast<GroupCapsule&>(*group).group.all_reduce(sums, ReduceOp::kSum);
    sums.div_(saved[4].clamp_min(1));
    const auto mean_dy = sums.narrow(0, 0, channels);
    const auto slope = sums.narrow(0, channels, channels) * invstd.square();
    const auto scale = weight.defined() ? invstd * weight.to(type) : invstd;
    result[0] = ((dy - as_channels(mean_dy, input) -
                  centred * as_channels(slope, input)) *
                 as_channels(scale, input))
                    .to(input.scalar_type());
    return result;
  }

  struct GroupCapsule : torch::CustomClassHolder {
    explicit GroupCapsule(ProcessGroup group) : group(std::move(group)) {}
    ProcessGroup group;
  };
};

} // namespace

at::Tensor sync_batch_norm(
    const ProcessGroup& group,
    const SyncBatchNormInput& in) {
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return SyncBatchNormFunction::apply(
      in.input, given(in.weight), given(in.bias), in, group);
}

void check_batch_norm_dim(
    const at::Tensor& input,
    int64_t least,
    int64_t most) {
  if (input.dim() < least || input.dim() > most) {
    throw UsageError(str_cat(
        "[SyncBatchNorm] The input has shape ",
        input.sizes(),
        ". It must have ",
        least == most ? str_cat(most) : str_cat(least, " or ", most),
        " dimensions"));
  }
}

void give_process_group(torch::nn::Module& module, const ProcessGroup& group) {
  for (const auto& inner : module.modules()) {
    if (auto* needs = dynamic_cast<NeedsProcessGroup*>(inner.get())) {
      needs->set_process_group(group);
    }
  }
}

} // namespace accelerate::detail
