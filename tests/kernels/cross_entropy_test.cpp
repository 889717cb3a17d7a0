// SPDX-License-Identifier: Apache-2.0
// Compared with torch's own cross-entropy, in double precision.
#include <accelerate/error.h>
#include <accelerate/training/kernels.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

struct Result {
  Tensor loss, gradient;
};

Result ours(const Tensor& values, const Tensor& labels, int64_t num_classes) {
  const auto logits = values.detach().clone().requires_grad_(true);
  const auto loss = kernels::cross_entropy(logits, labels, num_classes, -7);
  (loss * 3).backward();
  return {loss.detach(), logits.grad()};
}

Result
expected(const Tensor& values, const Tensor& labels, int64_t num_classes) {
  const auto logits = values.detach().to(torch::kDouble).requires_grad_(true);
  const auto loss = at::cross_entropy_loss(
      logits.narrow(1, 0, num_classes), labels, {}, at::Reduction::Mean, -7);
  (loss * 3).backward();
  return {loss.detach(), logits.grad()};
}

Tensor some_labels(int64_t num_rows, int64_t num_classes) {
  auto labels = torch::randint(num_classes, {num_rows}, torch::kLong);
  labels[1] = -7;
  return labels;
}

TEST(CrossEntropy, IsTorchsWithPaddingAndIgnoredRows) {
  torch::manual_seed(1);
  for (const auto type : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    for (const int64_t num_classes : {1, 3, 8}) {
      auto values = torch::randn({5, 8}, torch::kDouble).mul(4).to(type);
      // The padding must not count, whatever it contains.
      values.slice(1, num_classes).fill_(100);
      const auto labels = some_labels(5, num_classes);
      const auto got = ours(values, labels, num_classes);
      const auto want = expected(values, labels, num_classes);
      const bool is_double = type == torch::kDouble;
      EXPECT_EQ(
          got.loss.scalar_type(), is_double ? torch::kDouble : torch::kFloat);
      EXPECT_EQ(got.gradient.scalar_type(), type);
      // Rounding of the type; a gradient is at most 3 / 4.
      const double unit = is_double               ? 1e-12
                          : type == torch::kFloat ? 1e-6
                                                  : 4e-3;
      EXPECT_NEAR(
          got.loss.item<double>(),
          want.loss.item<double>(),
          is_double ? 1e-12 : 1e-5);
      EXPECT_LE((got.gradient - want.gradient).abs().max().item<double>(), unit)
          << type << ' ' << num_classes;
    }
  }
}

TEST(CrossEntropy, OfNoRowThatCountsIsNaNAsTorchs) {
  const auto loss = kernels::cross_entropy(
      torch::randn({2, 4}), torch::full({2}, -100, torch::kLong), 4);
  EXPECT_TRUE(std::isnan(loss.item<double>()));
}

TEST(CrossEntropy, IsAnOperatorOfTheDispatcher) {
  const auto handle = c10::Dispatcher::singleton().findSchema(
      {"accelerate::cross_entropy", ""});
  ASSERT_TRUE(handle.has_value());
  const auto call =
      handle->typed<Tensor(const Tensor&, const Tensor&, int64_t, int64_t)>();
  const auto logits = torch::randn({3, 4});
  const auto labels = torch::tensor({0, 3, 1}, torch::kLong);
  EXPECT_TRUE(torch::equal(
      call.call(logits, labels, 4, -100),
      kernels::cross_entropy(logits, labels, 4)));
}

TEST(CrossEntropy, RefusesWhatDoesNotFit) {
  const auto logits = torch::randn({3, 4});
  const auto labels = torch::zeros({3}, torch::kLong);
  const auto refused = [](const Tensor& x, const Tensor& y, int64_t classes) {
    EXPECT_THAT(
        [&] { kernels::cross_entropy(x, y, classes); },
        ThrowsMessage<UsageError>(HasSubstr("[cross_entropy] Got logits")));
  };
  refused(logits, labels, 5);
  refused(logits, labels, 0);
  refused(logits, labels.narrow(0, 0, 2), 4);
  refused(logits, labels.to(torch::kFloat), 4);
  refused(logits.to(torch::kLong), labels, 4);
  refused(logits.unsqueeze(0), labels, 4);
}

} // namespace
} // namespace accelerate
