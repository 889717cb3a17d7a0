// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/gated.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "accelerate/error.h"
#include "accelerate/training/kernels.h"
#include "core/base/str.h"
#include "training/kernels/operator.h"

namespace accelerate::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<at::Tensor>;

at::Tensor in_exact(const at::Tensor& tensor) {
  return tensor.to(exact_type(tensor));
}

/// The results are the sum, if there is a branch, and the normalised values.
class RmsNormFunction final
    : public torch::autograd::Function<RmsNormFunction> {
 public:
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& residual,
      const MaybeTensor& branch,
      const at::Tensor& weight,
      double epsilon) {
    static const auto forward =
        typed_operator<decltype(plain_rms_norm_forward)>(
            "accelerate::_rms_norm_forward");
    const auto [sum, normed, root] =
        forward.call(residual, branch, weight, epsilon);
    context->set_materialize_grads(false);
    context->save_for_backward({branch ? sum : residual, weight, root});
    context->saved_data["has_branch"] = branch.has_value();
    return branch ? variable_list{sum, normed} : variable_list{normed};
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const auto work = [&](const variable_list& saved) -> variable_list {
      static const auto backward =
          typed_operator<decltype(plain_rms_norm_backward)>(
              "accelerate::_rms_norm_backward");
      const bool has_branch = context->saved_data["has_branch"].toBool();
      const at::Tensor of_sum = has_branch ? gradients[0] : at::Tensor();
      if (!gradients.back().defined()) {
        return {of_sum, has_branch ? of_sum : at::Tensor(), {}, {}};
      }
      const auto [of_residual, of_weight] = backward.call(
          of_sum.defined() ? MaybeTensor(of_sum) : std::nullopt,
          gradients.back(),
          saved[0],
          saved[1],
          saved[2]);
      return {
          of_residual, has_branch ? of_residual : at::Tensor(), of_weight, {}};
    };
    return once_differentiable("rms_norm", context, gradients, work);
  }
};

class RotateFunction final : public torch::autograd::Function<RotateFunction> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& cos,
      const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    return handle().call(x, cos, sin, false);
  }
  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const auto work = [&](const variable_list& saved) -> variable_list {
      return {handle().call(gradients[0], saved[0], saved[1], true), {}, {}};
    };
    return once_differentiable("rotate", context, gradients, work);
  }

 private:
  static const c10::TypedOperatorHandle<decltype(plain_rotate)>& handle() {
    static const auto rotate =
        typed_operator<decltype(plain_rotate)>("accelerate::_rotate");
    return rotate;
  }
};

class SwigluFunction final : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& gate,
      const at::Tensor& up) {
    static const auto forward =
        typed_operator<decltype(plain_swiglu)>("accelerate::_swiglu");
    context->save_for_backward({gate, up});
    return forward.call(gate, up);
  }
  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const auto work = [&](const variable_list& saved) -> variable_list {
      static const auto backward =
          typed_operator<decltype(plain_swiglu_backward)>(
              "accelerate::_swiglu_backward");
      const auto [of_gate, of_up] =
          backward.call(gradients[0], saved[0], saved[1]);
      return {of_gate, of_up};
    };
    return once_differentiable("swiglu", context, gradients, work);
  }
};

void check_rms(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& weight) {
  const bool fits = residual.dim() > 0 && residual.is_floating_point() &&
                    weight.dim() == 1 && weight.size(0) == residual.size(-1) &&
                    weight.dtype() == residual.dtype() &&
                    (!branch.defined() || (branch.sizes() == residual.sizes() &&
                                           branch.dtype() == residual.dtype()));
  if (!fits) {
    throw UsageError(str_cat(
        "[rms_norm] Got rows ",
        described(residual),
        ", a branch ",
        described(branch),
        " and a weight ",
        described(weight),
        ". Pass tensors of the same floating-point type, with a branch of the "
        "same shape as the rows and one weight per channel"));
  }
}

} // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> plain_rms_norm_forward(
    const at::Tensor& residual,
    const std::optional<at::Tensor>& branch,
    const at::Tensor& weight,
    double epsilon) {
  const auto sum =
      branch ? residual + *branch : at::empty({0}, residual.options());
  const auto exact = in_exact(branch ? sum : residual);
  const auto root = at::rsqrt(exact.square().mean(-1, true) + epsilon);
  return {
      sum,
      (exact * root * weight).to(residual.scalar_type()),
      root.reshape({-1})};
}

std::tuple<at::Tensor, at::Tensor> plain_rms_norm_backward(
    const std::optional<at::Tensor>& of_sum,
    const at::Tensor& of_normed,
    const at::Tensor& sum,
    const at::Tensor& weight,
    const at::Tensor& reciprocal_root) {
  auto shape = sum.sizes().vec();
  shape.back() = 1;
  const auto root = reciprocal_root.view(shape);
  const auto exact = in_exact(sum) * root;
  const auto given = in_exact(of_normed);
  const auto scaled = given * weight;
  auto of_residual = root * (scaled - exact * (scaled * exact).mean(-1, true));
  if (of_sum) {
    of_residual = of_residual + *of_sum;
  }
  return {
      of_residual.to(sum.scalar_type()),
      (given * exact)
          .reshape({-1, sum.size(-1)})
          .sum(0)
          .to(weight.scalar_type())};
}

at::Tensor plain_rotate(
    const at::Tensor& x_BTHD,
    const at::Tensor& cos_BTD,
    const at::Tensor& sin_BTD,
    bool is_inverse) {
  const auto halves = in_exact(x_BTHD).chunk(2, -1);
  const auto cos = cos_BTD.unsqueeze(2);
  const auto sin = is_inverse ? -sin_BTD.unsqueeze(2) : sin_BTD.unsqueeze(2);
  return at::cat(
             {halves[0] * cos - halves[1] * sin,
              halves[1] * cos + halves[0] * sin},
             -1)
      .to(x_BTHD.scalar_type());
}

at::Tensor plain_swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return (at::silu(in_exact(gate)) * up).to(gate.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> plain_swiglu_backward(
    const at::Tensor& of_result,
    const at::Tensor& gate,
    const at::Tensor& up) {
  const auto given = in_exact(of_result);
  const auto exact = in_exact(gate);
  const auto share = at::sigmoid(exact);
  return {
      (given * up * share * (1 + exact * (1 - share))).to(gate.scalar_type()),
      (given * exact * share).to(up.scalar_type())};
}

at::Tensor rms_norm(
    const at::Tensor& given_x,
    const at::Tensor& given_weight,
    double epsilon) {
  auto x = given_x;
  auto weight = given_weight;
  widen_together(x, weight);
  check_rms(x, {}, weight);
  return RmsNormFunction::apply(x, MaybeTensor(), weight, epsilon)[0];
}

SumAndNorm add_rms_norm(
    const at::Tensor& given_residual,
    const at::Tensor& given_branch,
    const at::Tensor& given_weight,
    double epsilon) {
  auto residual = given_residual;
  auto branch = given_branch;
  auto weight = given_weight;
  widen_together(residual, branch, weight);
  check_rms(residual, branch, weight);
  const auto results =
      RmsNormFunction::apply(residual, MaybeTensor(branch), weight, epsilon);
  return {results[0], results[1]};
}

at::Tensor rotate(
    const at::Tensor& x_BTHD,
    const at::Tensor& cos_BTD,
    const at::Tensor& sin_BTD) {
  const bool fits =
      x_BTHD.dim() == 4 && x_BTHD.is_floating_point() && cos_BTD.dim() == 3 &&
      cos_BTD.sizes() == sin_BTD.sizes() &&
      cos_BTD.size(2) * 2 == x_BTHD.size(3) &&
      cos_BTD.size(1) == x_BTHD.size(1) &&
      (cos_BTD.size(0) == 1 || cos_BTD.size(0) == x_BTHD.size(0)) &&
      cos_BTD.scalar_type() == sin_BTD.scalar_type() &&
      cos_BTD.scalar_type() == at::kFloat;
  if (!fits) {
    throw UsageError(str_cat(
        "[rotate] Got x ",
        described(x_BTHD),
        ", cosines ",
        described(cos_BTD),
        " and sines ",
        described(sin_BTD),
        ". Pass x of shape [batch, tokens, heads, channels], and cosines and "
        "sines of type Float and of shape [batch or 1, tokens, channels / 2]"));
  }
  return RotateFunction::apply(x_BTHD, cos_BTD, sin_BTD);
}

at::Tensor swiglu(const at::Tensor& given_gate, const at::Tensor& given_up) {
  auto gate = given_gate;
  auto up = given_up;
  widen_together(gate, up);
  if (!gate.is_floating_point() || gate.sizes() != up.sizes() ||
      gate.dtype() != up.dtype()) {
    throw UsageError(str_cat(
        "[swiglu] Got ",
        described(gate),
        " and ",
        described(up),
        ". Pass two tensors of the same shape and the same floating-point "
        "type"));
  }
  return SwigluFunction::apply(gate, up);
}

TORCH_LIBRARY_FRAGMENT(accelerate, library) {
  library.def(
      "rms_norm(Tensor x, Tensor weight, float epsilon) -> Tensor", rms_norm);
  library.def(
      "add_rms_norm(Tensor residual, Tensor branch, Tensor weight, "
      "float epsilon) -> (Tensor sum, Tensor normed)",
      [](const at::Tensor& residual,
         const at::Tensor& branch,
         const at::Tensor& weight,
         double epsilon) {
        const auto [sum, normed] =
            add_rms_norm(residual, branch, weight, epsilon);
        return std::tuple(sum, normed);
      });
  library.def("rotate(Tensor x, Tensor cos, Tensor sin) -> Tensor", rotate);
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor", swiglu);
  library.def(
      "_rms_norm_forward(Tensor residual, Tensor? branch, Tensor weight, "
      "float epsilon) -> (Tensor, Tensor, Tensor)");
  library.def(
      "_rms_norm_backward(Tensor? of_sum, Tensor of_normed, Tensor sum, "
      "Tensor weight, Tensor reciprocal_root) -> (Tensor, Tensor)");
  library.def(
      "_rotate(Tensor x, Tensor cos, Tensor sin, bool is_inverse) -> Tensor");
  library.def("_swiglu(Tensor gate, Tensor up) -> Tensor");
  library.def(
      "_swiglu_backward(Tensor of_result, Tensor gate, Tensor up) -> "
      "(Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(accelerate, CompositeExplicitAutograd, library) {
  library.impl("_rms_norm_forward", plain_rms_norm_forward);
  library.impl("_rms_norm_backward", plain_rms_norm_backward);
  library.impl("_rotate", plain_rotate);
  library.impl("_swiglu", plain_swiglu);
  library.impl("_swiglu_backward", plain_swiglu_backward);
}

} // namespace accelerate::kernels
