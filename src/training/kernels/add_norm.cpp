// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/add_norm.h"

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

using Given = std::optional<at::Tensor>;

Given given(const at::Tensor& tensor) {
  return tensor.defined() ? Given(tensor) : std::nullopt;
}

const auto& forward_operator() {
  static const auto handle = typed_operator<decltype(plain_add_norm_forward)>(
      "accelerate::_add_norm_forward");
  return handle;
}
const auto& backward_operator() {
  static const auto handle = typed_operator<decltype(plain_add_norm_backward)>(
      "accelerate::_add_norm_backward");
  return handle;
}

/// The results are the sum if there is a branch, then the normalised values if
/// there is a weight, twice if requested.
class AddNorm final : public torch::autograd::Function<AddNorm> {
 public:
  static variable_list forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& residual,
      const Given& branch,
      const Given& branch_bias,
      const Given& weight,
      const Given& bias,
      double dropout,
      double epsilon,
      bool norms_twice) {
    const auto [sum, normed, mean, deviation, mask] = forward_operator().call(
        residual, branch, branch_bias, weight, bias, dropout, epsilon);
    const bool has_branch = branch.has_value();
    context->set_materialize_grads(false);
    context->save_for_backward(
        // User code may write to the sum unless a norm reads it.
        {!weight      ? at::Tensor()
         : has_branch ? sum
                      : residual,
         weight.value_or(at::Tensor()),
         mean,
         deviation,
         mask});
    context->saved_data["has_branch"] = has_branch;
    context->saved_data["has_branch_bias"] = branch_bias.has_value();
    context->saved_data["has_norm"] = weight.has_value();
    context->saved_data["dropout"] = dropout;
    context->saved_data["norms_twice"] = norms_twice;
    if (norms_twice) {
      // Not a view of the first tensor, because both would then share one
      // history.
      return {normed, normed.tensor_data()};
    }
    variable_list results;
    if (has_branch) {
      results.push_back(sum);
    }
    if (weight) {
      results.push_back(normed);
    }
    return results;
  }

  static variable_list backward(
      torch::autograd::AutogradContext* context,
      const variable_list& gradients) {
    const auto work = [&](const variable_list& saved) -> variable_list {
      const bool has_branch = context->saved_data["has_branch"].toBool();
      const bool has_norm = context->saved_data["has_norm"].toBool();
      const bool norms_twice = context->saved_data["norms_twice"].toBool();
      const at::Tensor of_sum =
          has_branch && !norms_twice ? gradients[0] : at::Tensor();
      const at::Tensor of_normed = has_norm ? gradients.back() : at::Tensor();
      const at::Tensor of_normed_too =
          norms_twice ? gradients[0] : at::Tensor();
      const auto [of_residual, of_branch, vectors] = backward_operator().call(
          given(of_sum),
          given(of_normed),
          given(of_normed_too),
          has_norm ? saved[0] : of_sum,
          given(saved[1]),
          saved[2],
          saved[3],
          saved[4],
          has_branch,
          context->saved_data["dropout"].toDouble());
      const auto vector = [&](int64_t index, bool is_there) {
        return is_there ? vectors.select(0, index) : at::Tensor();
      };
      // If no consumer used the norm, its parameters get no gradient.
      const bool is_read = of_normed.defined() || of_normed_too.defined();
      return {
          of_residual,
          !has_branch             ? at::Tensor()
          : of_branch.numel() > 0 ? of_branch
                                  : of_residual,
          vector(2, context->saved_data["has_branch_bias"].toBool()),
          vector(0, is_read),
          vector(1, is_read),
          {},
          {},
          {}};
    };
    const char* operation =
        !context->saved_data["has_branch"].toBool() ? "layer_norm"
        : context->saved_data["has_norm"].toBool()  ? "add_dropout_layer_norm"
                                                    : "add_dropout";
    return once_differentiable(operation, context, gradients, work);
  }
};

/// Rows of one shape, and vectors with one element per channel. Absent ones are
/// undefined.
struct Rows {
  at::Tensor residual, branch, branch_bias, weight, bias;
};

Rows checked_rows(const char* operation, Rows rows, double dropout = 0) {
  auto& [residual, branch, branch_bias, weight, bias] = rows;
  widen_together(residual, branch, branch_bias, weight, bias);
  bool fits = residual.dim() > 0 && residual.is_floating_point();
  std::string others;
  for (const auto& [other, name, is_vector] :
       {std::tuple(branch, "branch", false),
        {branch_bias, "bias of the branch", true},
        {weight, "weight", true},
        {bias, "bias", true}}) {
    if (!other.defined()) {
      continue;
    }
    others += str_cat(", ", name, " ", described(other));
    fits = fits && other.dtype() == residual.dtype() &&
           (is_vector ? other.dim() == 1 && other.size(0) == residual.size(-1)
                      : other.sizes() == residual.sizes());
  }
  if (!fits) {
    throw UsageError(str_cat(
        "[",
        operation,
        "] Got rows ",
        described(residual),
        others,
        ". Pass rows of the same shape and vectors with one element per "
        "channel, all of the same floating-point type"));
  }
  if (!(dropout >= 0 && dropout <= 1)) {
    throw UsageError(
        str_cat("[", operation, "] dropout is ", dropout, ", expected 0 to 1"));
  }
  return rows;
}

variable_list add_and_norm(
    const char* operation,
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& branch_bias,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double dropout,
    double epsilon,
    bool norms_twice) {
  const auto rows = checked_rows(
      operation, {residual, branch, branch_bias, weight, bias}, dropout);
  return AddNorm::apply(
      rows.residual,
      Given(rows.branch),
      given(rows.branch_bias),
      Given(rows.weight),
      Given(rows.bias),
      dropout,
      epsilon,
      norms_twice);
}

} // namespace

bool has_kernels(c10::Device device) {
  return forward_operator().hasKernelForDispatchKey(
      c10::computeDispatchKey(at::kFloat, at::kStrided, device));
}

AddNormResult plain_add_norm_forward(
    const at::Tensor& residual,
    const std::optional<at::Tensor>& branch,
    const std::optional<at::Tensor>& branch_bias,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double dropout,
    double epsilon) {
  const auto none = at::empty({0}, residual.options());
  auto sum = none;
  auto normed = none;
  auto mean = none;
  auto deviation = none;
  auto mask = none;
  const auto exact = exact_type(residual);
  if (branch) {
    auto x = branch->to(exact);
    if (branch_bias) {
      x = x + *branch_bias;
    }
    if (dropout > 0) {
      std::tie(x, mask) = at::native_dropout(x, dropout, true);
    }
    sum = (residual + x).to(residual.scalar_type());
  }
  if (weight) {
    const auto values = (branch ? sum : residual).to(exact);
    std::tie(normed, mean, deviation) = at::native_layer_norm(
        values, {values.size(-1)}, weight->to(exact), bias->to(exact), epsilon);
    normed = normed.to(residual.scalar_type());
  }
  return {sum, normed, mean, deviation, mask};
}

AddNormGradient plain_add_norm_backward(
    const std::optional<at::Tensor>& of_sum,
    const std::optional<at::Tensor>& of_normed,
    const std::optional<at::Tensor>& of_normed_too,
    const at::Tensor& sum,
    const std::optional<at::Tensor>& weight,
    const at::Tensor& mean,
    const at::Tensor& reciprocal_deviation,
    const at::Tensor& mask,
    bool has_branch,
    double dropout) {
  const auto exact = exact_type(sum);
  auto total = of_sum ? of_sum->to(exact)
                      : at::zeros(sum.sizes(), sum.options().dtype(exact));
  auto vectors = at::zeros({3, sum.size(-1)}, total.options());
  const auto of_all = of_normed && of_normed_too
                          ? Given(of_normed->to(exact) + *of_normed_too)
                      : of_normed ? of_normed
                                  : of_normed_too;
  if (weight && of_all) {
    const auto [of_values, of_weight, of_bias] = at::native_layer_norm_backward(
        of_all->to(exact),
        sum.to(exact),
        {sum.size(-1)},
        mean,
        reciprocal_deviation,
        weight->to(exact),
        at::zeros_like(*weight, exact),
        {true, true, true});
    total = total + of_values;
    vectors.select(0, 0).copy_(of_weight);
    vectors.select(0, 1).copy_(of_bias);
  }
  auto of_branch = at::empty({0}, sum.options());
  if (has_branch) {
    auto dropped = total;
    if (dropout > 0) {
      dropped =
          dropout < 1 ? total * mask / (1 - dropout) : at::zeros_like(total);
      of_branch = dropped.to(sum.scalar_type());
    }
    vectors.select(0, 2).copy_(dropped.reshape({-1, sum.size(-1)}).sum(0));
  }
  return {
      total.to(sum.scalar_type()), of_branch, vectors.to(sum.scalar_type())};
}

at::Tensor layer_norm(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double epsilon) {
  const auto rows = checked_rows("layer_norm", {x, {}, {}, weight, bias});
  return AddNorm::apply(
      rows.residual,
      Given(),
      Given(),
      Given(rows.weight),
      Given(rows.bias),
      0.0,
      epsilon,
      false)[0];
}

at::Tensor add_dropout(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& branch_bias,
    double dropout) {
  const auto rows = checked_rows(
      "add_dropout", {residual, branch, branch_bias, {}, {}}, dropout);
  return AddNorm::apply(
      rows.residual,
      Given(rows.branch),
      given(rows.branch_bias),
      Given(),
      Given(),
      dropout,
      0.0,
      false)[0];
}

SumAndNorm add_dropout_layer_norm(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& branch_bias,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double dropout,
    double epsilon) {
  const auto results = add_and_norm(
      "add_dropout_layer_norm",
      residual,
      branch,
      branch_bias,
      weight,
      bias,
      dropout,
      epsilon,
      /*norms_twice=*/false);
  return {results[0], results[1]};
}

NormedTwice add_dropout_layer_norm_twice(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& branch_bias,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double dropout,
    double epsilon) {
  const auto results = add_and_norm(
      "add_dropout_layer_norm_twice",
      residual,
      branch,
      branch_bias,
      weight,
      bias,
      dropout,
      epsilon,
      /*norms_twice=*/true);
  return {results[0], results[1]};
}

namespace {

/// The signature for the dispatcher: a bias may be missing, and results are a
/// tuple.
template <auto kOperation>
std::tuple<at::Tensor, at::Tensor> as_operator(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const std::optional<at::Tensor>& branch_bias,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double dropout,
    double epsilon) {
  const auto [first, second] = kOperation(
      residual,
      branch,
      branch_bias.value_or(at::Tensor()),
      weight,
      bias,
      dropout,
      epsilon);
  return {first, second};
}

} // namespace

TORCH_LIBRARY_FRAGMENT(accelerate, library) {
  library.def(
      "layer_norm(Tensor x, Tensor weight, Tensor bias, float epsilon) -> "
      "Tensor",
      layer_norm);
  library.def(
      "add_dropout(Tensor residual, Tensor branch, Tensor? branch_bias, "
      "float dropout) -> Tensor",
      [](const at::Tensor& residual,
         const at::Tensor& branch,
         const std::optional<at::Tensor>& branch_bias,
         double dropout) {
        return add_dropout(
            residual, branch, branch_bias.value_or(at::Tensor()), dropout);
      });
  library.def(
      "add_dropout_layer_norm_twice(Tensor residual, Tensor branch, "
      "Tensor? branch_bias, Tensor weight, Tensor bias, float dropout, "
      "float epsilon) -> (Tensor first, Tensor second)",
      as_operator<add_dropout_layer_norm_twice>);
  library.def(
      "add_dropout_layer_norm(Tensor residual, Tensor branch, "
      "Tensor? branch_bias, Tensor weight, Tensor bias, float dropout, "
      "float epsilon) -> (Tensor sum, Tensor normed)",
      as_operator<add_dropout_layer_norm>);
  library.def(
      "_add_norm_forward(Tensor residual, Tensor? branch, Tensor? branch_bias, "
      "Tensor? weight, Tensor? bias, float dropout, float epsilon) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "_add_norm_backward(Tensor? of_sum, Tensor? of_normed, "
      "Tensor? of_normed_too, Tensor sum, Tensor? weight, Tensor mean, Tensor "
      "reciprocal_deviation, Tensor mask, "
      "bool has_branch, float dropout) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(accelerate, CompositeExplicitAutograd, library) {
  library.impl("_add_norm_forward", plain_add_norm_forward);
  library.impl("_add_norm_backward", plain_add_norm_backward);
}

} // namespace accelerate::kernels
