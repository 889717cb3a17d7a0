// SPDX-License-Identifier: Apache-2.0
#include "accelerate/training/grad_scaler.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

void check(const GradScalerOptions& o) {
  if (!(o.init_scale > 0) || !(o.growth_factor > 1) ||
      !(o.backoff_factor > 0 && o.backoff_factor < 1) ||
      o.growth_interval < 1) {
    throw UsageError(str_cat(
        "[GradScaler] Got init_scale ",
        o.init_scale,
        ", growth_factor ",
        o.growth_factor,
        ", backoff_factor ",
        o.backoff_factor,
        " and growth_interval ",
        o.growth_interval,
        ". init_scale must be positive, growth_factor above 1, backoff_factor "
        "between 0 and 1, and growth_interval at least 1"));
  }
}

/// The gradients that one call of the operator processes.
using Batches =
    std::map<std::pair<int, at::ScalarType>, std::vector<at::Tensor>>;

Batches batches_of(const std::vector<at::Tensor>& gradients) {
  Batches batches;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& gradient = gradients[i];
    if (gradient.scalar_type() == at::kHalf) {
      throw UsageError(str_cat(
          "[unscale] Gradient ",
          i,
          " of the optimizer, of shape ",
          gradient.sizes(),
          ", is fp16. Keep the weights in fp32 and let mixed precision cast "
          "them"));
    }
    batches[{gradient.device().index(), gradient.scalar_type()}].push_back(
        gradient);
  }
  return batches;
}

std::vector<at::Tensor> parameters_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

} // namespace

GradScaler::GradScaler(GradScalerOptions options, Agreement agree)
    : options_(options),
      agree_(std::move(agree)),
      scale_(at::full({}, options.init_scale, at::kFloat)),
      growth_tracker_(at::zeros({}, at::kInt)) {
  check(options_);
}

void GradScaler::put_on(c10::Device device) {
  if (scale_.device() != device) {
    scale_ = scale_.to(device);
    growth_tracker_ = growth_tracker_.to(device);
  }
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  put_on(loss.device());
  return loss * scale_;
}

void GradScaler::unscale(
    const void* owner,
    const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) {
      gradients.push_back(parameter.grad());
    }
  }
  unscale_gradients(owner, gradients);
}

void GradScaler::unscale_gradients(
    const void* owner,
    const std::vector<at::Tensor>& gradients) {
  if (unscaled_.contains(owner)) {
    return;
  }
  const at::NoGradGuard no_grad;
  auto batches = batches_of(gradients);
  // Compute in double, because 1 / scale may not fit into a float.
  const auto inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  auto found = at::zeros({1}, scale_.options());
  for (auto& [kind, batch] : batches) {
    auto here = found.to(batch[0].device());
    at::_amp_foreach_non_finite_check_and_unscale_(
        batch, here, inverse.to(here.device()));
    found = at::max(found, here.to(found.device()));
  }
  bool has_gradients = !gradients.empty();
  if (agree_) {
    // Also exchange whether any rank has gradients. Only ranks without
    // gradients wait for the answer.
    auto flags = at::cat({found, at::full_like(found, has_gradients ? 1 : 0)});
    agree_(flags);
    found = flags.narrow(0, 0, 1);
    has_gradients = has_gradients || flags[1].item<float>() > 0;
  }
  if (has_gradients) {
    unscaled_.emplace(owner, std::move(found));
  }
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  unscale(&optimizer, parameters_of(optimizer));
}

at::Tensor GradScaler::overflow_of(const void* owner) const {
  const auto found = unscaled_.find(owner);
  return found == unscaled_.end() ? at::Tensor() : found->second;
}

bool GradScaler::found_inf(const void* owner) const {
  const auto overflow = overflow_of(owner);
  return overflow.defined() && overflow.item<float>() > 0;
}

bool GradScaler::is_unscaled(const void* owner) const {
  return unscaled_.contains(owner);
}

void GradScaler::forget(const void* owner) {
  unscaled_.erase(owner);
}

void GradScaler::scale_again(const std::vector<at::Tensor>& gradients) const {
  const at::NoGradGuard no_grad;
  for (auto& [kind, batch] : batches_of(gradients)) {
    at::_foreach_mul_(batch, scale_.to(batch[0].device()));
  }
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  unscale_(optimizer);
  if (found_inf(&optimizer)) {
    return false;
  }
  optimizer.step();
  return true;
}

void GradScaler::update(at::Tensor& scale, at::Tensor& growth_tracker) const {
  if (unscaled_.empty()) {
    return;
  }
  auto found = at::zeros({1}, scale.options());
  for (const auto& [owner, overflow] : unscaled_) {
    found = at::max(found, overflow);
  }
  at::_amp_update_scale_(
      scale,
      growth_tracker,
      found,
      options_.growth_factor,
      options_.backoff_factor,
      options_.growth_interval);
}

void GradScaler::update() {
  update(scale_, growth_tracker_);
  unscaled_.clear();
}

double GradScaler::current_scale() const {
  return scale_.item<double>();
}

StateDict GradScaler::state_dict() const {
  auto scale = scale_.clone();
  auto growth_tracker = growth_tracker_.clone();
  update(scale, growth_tracker);
  StateDict state;
  state.set("scale", scale.item<double>());
  state.set("growth_factor", options_.growth_factor);
  state.set("backoff_factor", options_.backoff_factor);
  state.set("growth_interval", options_.growth_interval);
  state.set("_growth_tracker", growth_tracker.item<int64_t>());
  return state;
}

void GradScaler::load_state_dict(const StateDict& state) {
  GradScalerOptions options;
  options.init_scale = state.get<double>("scale");
  options.growth_factor = state.get<double>("growth_factor");
  options.backoff_factor = state.get<double>("backoff_factor");
  options.growth_interval = state.get<int64_t>("growth_interval");
  check(options);
  options_ = options;
  scale_.fill_(options.init_scale);
  growth_tracker_.fill_(state.get<int64_t>("_growth_tracker"));
  unscaled_.clear();
}

} // namespace accelerate
