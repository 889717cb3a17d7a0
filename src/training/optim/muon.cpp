// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "training/optim/optimizer_of.h"

namespace accelerate::optim {

template <>
struct Fields<MuonOptions> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("lr", self.lr);
    visit("weight_decay", self.weight_decay);
    visit("momentum", self.momentum);
    visit("nesterov", self.nesterov);
    visit("ns_coefficients", self.ns_coefficients);
    visit("eps", self.eps);
    visit("ns_steps", self.ns_steps);
    visit("adjust_lr", self.adjust_lr);
  }
};

template <>
void check_options(const MuonOptions& options) {
  check_lr_and_decay(options);
  check_option(
      options.momentum >= 0, "Muon", "momentum", options.momentum, "0 or more");
  check_option(
      options.ns_steps >= 0 && options.ns_steps < 100,
      "Muon",
      "ns_steps",
      static_cast<double>(options.ns_steps),
      "0 to 99");
}

template class OptimizerOf<MuonOptions, MomentumState>;

namespace {

void check_matrix(const at::Tensor& parameter) {
  if (parameter.dim() != 2) {
    throw UsageError(str_cat(
        "[Muon] A parameter has shape ",
        parameter.sizes(),
        ", but Muon only trains matrices. Train the other parameters with "
        "AdamW (see split_groups)"));
  }
}

void check_matrices(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      check_matrix(parameter);
    }
  }
}

/// The nearest matrix whose singular values are about 1, by Newton-Schulz
/// iterations in bfloat16.
at::Tensor orthogonalized(
    const at::Tensor& matrix,
    const MuonOptions& options) {
  const bool is_tall = matrix.size(0) > matrix.size(1);
  // Copy even a bfloat16 matrix, because it may be the momentum itself.
  at::Tensor x = matrix.to(at::kBFloat16, false, /*copy=*/true);
  if (is_tall) {
    x = x.t();
  }
  x.div_(x.norm().clamp_min(options.eps));
  const auto [a, b, c] = options.ns_coefficients;
  for (int64_t i = 0; i < options.ns_steps; ++i) {
    const at::Tensor gram = x.matmul(x.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, b, c);
    x = at::addmm(x, polynomial, x, a);
  }
  return is_tall ? x.t() : x;
}

double adjusted_lr(const MuonOptions& options, const at::Tensor& parameter) {
  const auto rows = static_cast<double>(parameter.size(0));
  const auto columns = static_cast<double>(parameter.size(1));
  return options.lr * (options.adjust_lr == MuonAdjustLr::kOriginal
                           ? std::sqrt(std::max(1.0, rows / columns))
                           : 0.2 * std::sqrt(std::max(rows, columns)));
}

} // namespace

Muon::Muon(std::vector<at::Tensor> parameters, MuonOptions options)
    : OptimizerOf(std::move(parameters), options) {
  check_matrices(*this);
}
Muon::Muon(const std::vector<ParameterGroup>& groups, MuonOptions options)
    : OptimizerOf(groups, options) {
  check_matrices(*this);
}

void Muon::update(
    const MuonOptions& options,
    const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    check_matrix(parameter);
    const at::Tensor& gradient = parameter.grad();
    at::Tensor& momentum = state_of(parameter).momentum_buffer;
    if (!momentum.defined()) {
      momentum = zeros_for(parameter);
    }
    momentum.lerp_(gradient, 1 - options.momentum);
    const at::Tensor update = orthogonalized(
        options.nesterov ? gradient.lerp(momentum, options.momentum) : momentum,
        options);
    parameter.mul_(1 - options.lr * options.weight_decay);
    parameter.add_(update, -adjusted_lr(options, parameter));
  }
}

} // namespace accelerate::optim
