// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tree.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <unordered_map>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::Throws;
using torch::Tensor;

struct Sample {
  Tensor input;
  Tensor target;
  int id = 0;
};
auto tensor_fields(Sample& s) {
  return std::tie(s.input, s.target);
}

Tensor number(double value) {
  return torch::tensor(value);
}

std::vector<double> values(const std::vector<Tensor>& tensors) {
  std::vector<double> result;
  for (const auto& tensor : tensors) {
    result.push_back(tensor.item<double>());
  }
  return result;
}

TEST(Tree, WalksEveryKindOfContainerInAFixedOrder) {
  const std::tuple tree(
      number(1),
      std::vector{number(2), number(3)},
      std::map<std::string, Tensor>{{"b", number(5)}, {"a", number(4)}},
      std::unordered_map<std::string, Tensor>{
          {"z", number(7)}, {"y", number(6)}},
      std::optional<Tensor>(number(8)),
      std::optional<Tensor>(),
      Sample{number(9), number(10)},
      torch::data::Example<>(number(11), number(12)),
      std::string("text"),
      3.5);
  EXPECT_EQ(
      values(tree::flatten(tree)),
      (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST(Tree, MapKeepsWhatIsNoTensor) {
  const Sample doubled = tree::map(
      Sample{number(1), number(2), 7}, [](const Tensor& t) { return t * 2; });
  EXPECT_EQ(doubled.input.item<double>(), 2);
  EXPECT_EQ(doubled.target.item<double>(), 4);
  EXPECT_EQ(doubled.id, 7);
}

TEST(Tree, StructureTellsTreesApartThatDoNotFit) {
  using Map = std::map<std::string, Tensor>;
  const auto one = number(1);
  EXPECT_EQ(tree::structure(one), "T,");
  EXPECT_EQ(tree::structure(Map{{"a", one}}), "map1(a1(T)),");
  EXPECT_NE(tree::structure(Map{{"a", one}}), tree::structure(Map{{"b", one}}));
  EXPECT_NE(
      tree::structure(std::vector{one}),
      tree::structure(std::vector{one, one}));
  EXPECT_NE(
      tree::structure(std::optional<Tensor>(one)),
      tree::structure(std::optional<Tensor>()));
}

TEST(Tree, StackJoinsSamplesAlongANewFirstDimension) {
  const std::vector<Sample> samples = {
      {torch::tensor({1, 2}), number(1)}, {torch::tensor({3, 4}), number(2)}};
  const Sample batch = tree::stack(samples);
  EXPECT_TRUE(batch.input.equal(torch::tensor({{1, 2}, {3, 4}})));
  EXPECT_TRUE(batch.target.equal(torch::tensor({1., 2.})));
}

TEST(Tree, StackNamesTheSampleThatDoesNotFit) {
  const std::vector<Sample> samples = {
      {torch::zeros(2), number(1)}, {torch::zeros(3), number(2)}};
  EXPECT_THAT(
      [&] { tree::stack(samples); },
      ::testing::ThrowsMessage<UsageError>(HasSubstr("sample 1")));
  EXPECT_THROW(tree::stack(std::vector<Sample>{}), UsageError);
}

} // namespace
} // namespace accelerate
