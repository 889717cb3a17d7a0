// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "training/optim/optimizer_of.h"

namespace accelerate::optim {

struct AdafactorState
    : torch::optim::OptimizerCloneableParamState<AdafactorState> {
  int64_t step = 0;
  /// For tensors with two or more dimensions.
  at::Tensor row_var, col_var;
  /// For vectors.
  at::Tensor variance;
};

template <>
struct Fields<AdafactorState> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    constexpr auto kSometimes = Presence::kSometimes;
    visit("step", self.step);
    visit("row_var", self.row_var, StateShape::kRow, kSometimes);
    visit("col_var", self.col_var, StateShape::kColumn, kSometimes);
    visit("variance", self.variance, StateShape::kParameter, kSometimes);
  }
};

template <>
struct Fields<AdafactorOptions> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("lr", self.lr);
    visit("beta2_decay", self.beta2_decay);
    visit("eps1", self.eps1);
    visit("eps2", self.eps2);
    visit("d", self.d);
    visit("weight_decay", self.weight_decay);
    visit("maximize", self.maximize);
  }
};

template <>
void check_options(const AdafactorOptions& options) {
  check_lr_and_decay(options);
  const auto check =
      [](bool is_right, const char* name, double got, const char* expected) {
        check_option(is_right, "Adafactor", name, got, expected);
      };
  check(
      options.beta2_decay <= 0,
      "beta2_decay",
      options.beta2_decay,
      "0 or less");
  check(
      options.eps1.value_or(0) >= 0,
      "eps1",
      options.eps1.value_or(0),
      "0 or more");
  check(options.eps2 >= 0, "eps2", options.eps2, "0 or more");
  check(options.d >= 1, "d", options.d, "1 or more");
}

template class OptimizerOf<AdafactorOptions, AdafactorState>;

namespace {

double smallest_step(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

/// Returns a double on the tensor's device, so that the host does not wait.
at::Tensor root_mean_square(const at::Tensor& tensor) {
  return tensor.norm().to(at::kDouble) /
         std::sqrt(static_cast<double>(tensor.numel()));
}

at::Tensor mean_of_squares(const at::Tensor& tensor, int64_t dim) {
  return tensor.norm(2, {dim}, /*keepdim=*/true)
      .square_()
      .div_(tensor.size(dim));
}

/// The estimate of the squared gradient, as a new tensor.
at::Tensor estimate_variance(
    AdafactorState& state,
    const at::Tensor& gradient,
    double weight,
    double eps1) {
  if (gradient.dim() < 2) {
    if (!state.variance.defined()) {
      state.variance = at::zeros_like(gradient);
    }
    return state.variance.lerp_(gradient * gradient, weight).clone();
  }
  if (!state.row_var.defined()) {
    const auto make = [&](StateShape shape) {
      return at::zeros(shape_for(shape, gradient), gradient.options());
    };
    state.row_var = make(StateShape::kRow);
    state.col_var = make(StateShape::kColumn);
  }
  state.row_var.lerp_(mean_of_squares(gradient, -1), weight);
  state.col_var.lerp_(mean_of_squares(gradient, -2), weight);
  return at::matmul(state.row_var, state.col_var)
      .div_(state.row_var.mean(-2, /*keepdim=*/true).clamp_min_(eps1));
}

void add_scaled(
    const at::Tensor& parameter,
    const at::Tensor& update,
    const at::Tensor& factor) {
  if (parameter.is_cpu()) {
    parameter.add_(update, factor.item());
  } else {
    parameter.addcmul_(update, factor.to(update.scalar_type()));
  }
}

} // namespace

void Adafactor::update(
    const AdafactorOptions& options,
    const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    const at::Tensor gradient =
        options.maximize ? -parameter.grad() : parameter.grad();
    AdafactorState& state = state_of(parameter);
    const auto step = static_cast<double>(++state.step);
    const double eps1 =
        options.eps1.value_or(smallest_step(parameter.scalar_type()));
    const double relative_step = std::min(options.lr, 1 / std::sqrt(step));
    const at::Tensor alpha =
        root_mean_square(parameter).clamp_min_(options.eps2) * relative_step;
    if (options.weight_decay != 0) {
      parameter.mul_(1 - options.lr * options.weight_decay);
    }
    // Take the root last, so that its smallest value is eps1.
    const at::Tensor update =
        estimate_variance(
            state, gradient, std::pow(step, options.beta2_decay), eps1)
            .clamp_min_(eps1 * eps1)
            .rsqrt_()
            .mul_(gradient);
    const at::Tensor excess =
        (root_mean_square(update) / options.d).clamp_min_(1);
    add_scaled(parameter, update, -alpha / excess);
  }
}

} // namespace accelerate::optim
