// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "accelerate/error.h"
#include "accelerate/training/kernels.h"
#include "core/base/str.h"
#include "training/kernels/operator.h"

namespace accelerate::kernels {
namespace {

using torch::autograd::variable_list;

const char* gelu_name(bool is_tanh) {
  return is_tanh ? "tanh" : "none";
}

const auto& linear_gelu_operator() {
  static const auto handle =
      typed_operator<decltype(plain_linear_gelu)>("accelerate::_linear_gelu");
  return handle;
}
const auto& gelu_operator() {
  static const auto handle =
      typed_operator<decltype(plain_gelu)>("accelerate::_gelu");
  return handle;
}
const auto& gelu_gradient_operator() {
  static const auto handle = typed_operator<decltype(plain_gelu_gradient)>(
      "accelerate::_gelu_gradient");
  return handle;
}
const auto& column_sums_operator() {
  static const auto handle =
      typed_operator<decltype(plain_column_sums)>("accelerate::_column_sums");
  return handle;
}

/// The product in the memory layout of the weight, so that it is not copied
/// later.
at::Tensor product_gradient(
    const at::Tensor& x_MI,
    const at::Tensor& of_y_MO,
    const at::Tensor& weight_OI) {
  const bool is_transposed =
      !weight_OI.is_contiguous() && weight_OI.t().is_contiguous();
  return is_transposed ? at::mm(x_MI.t(), of_y_MO).t()
                       : at::mm(of_y_MO.t(), x_MI);
}

class LinearFunction final : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x_MI,
      const at::Tensor& weight_OI,
      const at::Tensor& bias_O) {
    context->save_for_backward({x_MI, weight_OI});
    return at::addmm(bias_O, x_MI, weight_OI.t());
  }

  static variable_list backward(
      torch::autograd::AutogradContext* context,
      const variable_list& gradients) {
    const auto work = [&](const variable_list& saved) -> variable_list {
      const auto of_y_MO = gradients[0].contiguous();
      at::Tensor of_x, of_weight, of_bias;
      if (context->needs_input_grad(0)) {
        of_x = at::mm(of_y_MO, saved[1]);
      }
      if (context->needs_input_grad(1)) {
        of_weight = product_gradient(saved[0], of_y_MO, saved[1]);
      }
      if (context->needs_input_grad(2)) {
        of_bias = column_sums_operator().call(of_y_MO);
      }
      return {of_x, of_weight, of_bias};
    };
    return once_differentiable("linear", context, gradients, work);
  }
};

class GeluPairFunction final
    : public torch::autograd::Function<GeluPairFunction> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x_MC,
      const at::Tensor& up_IC,
      const at::Tensor& up_bias_I,
      const at::Tensor& down_OI,
      bool is_tanh) {
    const auto [outer_MI, inner_MI] =
        linear_gelu_operator().call(x_MC, up_IC, up_bias_I, is_tanh);
    context->save_for_backward({x_MC, up_IC, down_OI, inner_MI, outer_MI});
    context->saved_data["is_tanh"] = is_tanh;
    return at::mm(outer_MI, down_OI.t());
  }

  static variable_list backward(
      torch::autograd::AutogradContext* context,
      const variable_list& gradients) {
    const auto work = [&](const variable_list& saved) -> variable_list {
      const auto& x_MC = saved[0];
      const auto& up_IC = saved[1];
      const auto& down_OI = saved[2];
      const auto& inner_MI = saved[3];
      const auto& outer_MI = saved[4];
      const auto of_y_MO = gradients[0].contiguous();
      const auto [of_inner_MI, of_up_bias_I] = gelu_gradient_operator().call(
          at::mm(of_y_MO, down_OI),
          inner_MI,
          context->saved_data["is_tanh"].toBool());
      at::Tensor of_x, of_up, of_down;
      if (context->needs_input_grad(0)) {
        of_x = at::mm(of_inner_MI, up_IC);
      }
      if (context->needs_input_grad(1)) {
        of_up = product_gradient(x_MC, of_inner_MI, up_IC);
      }
      if (context->needs_input_grad(3)) {
        of_down = product_gradient(outer_MI, of_y_MO, down_OI);
      }
      return {of_x, of_up, of_up_bias_I, of_down, {}};
    };
    return once_differentiable("linear_gelu_linear", context, gradients, work);
  }
};

void check_product(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  const bool fits = x.dim() > 0 && x.is_floating_point() && weight.dim() == 2 &&
                    weight.size(1) == x.size(-1) && bias.defined() &&
                    bias.dim() == 1 && bias.size(0) == weight.size(0) &&
                    weight.dtype() == x.dtype() && bias.dtype() == x.dtype();
  if (!fits) {
    throw UsageError(str_cat(
        "[linear] Got x ",
        described(x),
        ", a weight ",
        described(weight),
        " and a bias ",
        described(bias),
        ". Pass tensors of the same floating-point type, with a weight of "
        "shape [outputs, inputs] and a bias with one element per output"));
  }
}

at::Tensor as_rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// The rows, in the shape of the input that they were computed from.
at::Tensor shaped_as(const at::Tensor& rows, const at::Tensor& x) {
  auto sizes = x.sizes().vec();
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

at::Tensor gelu_pair(
    const at::Tensor& given_x,
    const at::Tensor& given_up,
    const at::Tensor& given_up_bias,
    const at::Tensor& given_down,
    bool is_tanh) {
  const auto x = lowered(given_x);
  const auto up = lowered(given_up);
  const auto up_bias = lowered(given_up_bias);
  const auto down = lowered(given_down);
  check_product(x, up, up_bias);
  if (down.dim() != 2 || down.size(1) != up.size(0) ||
      down.dtype() != up.dtype()) {
    throw UsageError(str_cat(
        "[linear_gelu_linear] The second weight is ",
        c10::toString(down.scalar_type()),
        down.sizes(),
        ", expected ",
        c10::toString(up.scalar_type()),
        "[outputs, ",
        up.size(0),
        "]"));
  }
  return shaped_as(
      GeluPairFunction::apply(as_rows(x), up, up_bias, down, is_tanh), x);
}

} // namespace

std::tuple<at::Tensor, at::Tensor> plain_linear_gelu(
    const at::Tensor& x_MI,
    const at::Tensor& weight_OI,
    const at::Tensor& bias_O,
    bool is_tanh) {
  const auto inner = at::addmm(bias_O, x_MI, weight_OI.t());
  return {gelu_operator().call(inner, is_tanh), inner};
}

at::Tensor plain_gelu(const at::Tensor& inner, bool is_tanh) {
  return at::gelu(inner, gelu_name(is_tanh));
}

std::tuple<at::Tensor, at::Tensor> plain_gelu_gradient(
    const at::Tensor& of_outer_MO,
    const at::Tensor& inner_MO,
    bool is_tanh) {
  const auto of_inner =
      at::gelu_backward(of_outer_MO, inner_MO, gelu_name(is_tanh));
  return {of_inner, of_inner.sum(0)};
}

at::Tensor plain_column_sums(const at::Tensor& x_MO) {
  return x_MO.sum(0);
}

at::Tensor linear(
    const at::Tensor& given_x,
    const at::Tensor& given_weight,
    const at::Tensor& given_bias) {
  const auto x = lowered(given_x);
  const auto weight = lowered(given_weight);
  const auto bias = lowered(given_bias);
  check_product(x, weight, bias);
  return shaped_as(LinearFunction::apply(as_rows(x), weight, bias), x);
}

at::Tensor linear_gelu_linear(
    const at::Tensor& x,
    const at::Tensor& up,
    const at::Tensor& up_bias,
    const at::Tensor& down,
    Gelu gelu) {
  return gelu_pair(x, up, up_bias, down, gelu == Gelu::kTanh);
}

TORCH_LIBRARY_FRAGMENT(accelerate, library) {
  library.def("linear(Tensor x, Tensor weight, Tensor bias) -> Tensor", linear);
  library.def(
      "linear_gelu_linear(Tensor x, Tensor up, Tensor up_bias, Tensor down, "
      "bool is_tanh) -> Tensor",
      gelu_pair);
  library.def(
      "_linear_gelu(Tensor x, Tensor weight, Tensor bias, bool is_tanh) -> "
      "(Tensor, Tensor)");
  library.def("_gelu(Tensor inner, bool is_tanh) -> Tensor");
  library.def(
      "_gelu_gradient(Tensor of_outer, Tensor inner, bool is_tanh) -> "
      "(Tensor, Tensor)");
  library.def("_column_sums(Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(accelerate, CompositeExplicitAutograd, library) {
  library.impl("_linear_gelu", plain_linear_gelu);
  library.impl("_gelu", plain_gelu);
  library.impl("_gelu_gradient", plain_gelu_gradient);
  library.impl("_column_sums", plain_column_sums);
}

} // namespace accelerate::kernels
