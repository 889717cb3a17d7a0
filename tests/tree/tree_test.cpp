// SPDX-License-Identifier: Apache-2.0
#include "accelerate/state/tree.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <unordered_map>

#include "accelerate/detail/tree_bytes.h"
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

TEST(Tree, MapKeepsOtherValues) {
  const Sample doubled = tree::map(
      Sample{number(1), number(2), 7}, [](const Tensor& t) { return t * 2; });
  EXPECT_EQ(doubled.input.item<double>(), 2);
  EXPECT_EQ(doubled.target.item<double>(), 4);
  EXPECT_EQ(doubled.id, 7);
}

TEST(Tree, StructureDistinguishesTrees) {
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

struct Note {
  std::string text;
  std::map<std::string, Tensor> tensors;
  std::optional<std::vector<std::pair<int, double>>> pairs;
};
auto tensor_fields(Note& note) {
  return std::tie(note.text, note.tensors, note.pairs);
}

TEST(TreeBytes, RoundTripATree) {
  const Note note{
      "some text",
      {{"half", torch::arange(3, torch::kHalf)},
       {"empty", torch::zeros({0, 2})},
       {"turned", torch::arange(6).view({2, 3}).t()},
       {"undefined", Tensor()}},
      {{{1, 0.5}, {2, -1}}}};
  const auto back = tree::from_bytes<Note>(tree::to_bytes(note));
  EXPECT_EQ(back.text, note.text);
  EXPECT_EQ(back.pairs, note.pairs);
  for (const char* name : {"half", "empty", "turned"}) {
    EXPECT_TRUE(back.tensors.at(name).equal(note.tensors.at(name))) << name;
    EXPECT_EQ(
        back.tensors.at(name).scalar_type(),
        note.tensors.at(name).scalar_type());
  }
  EXPECT_FALSE(back.tensors.at("undefined").defined());
}

TEST(TreeBytes, RejectTruncatedBytesAndOtherTypes) {
  const auto bytes = tree::to_bytes(std::make_pair(1, torch::arange(4)));
  EXPECT_THAT(
      ([&] {
        tree::from_bytes<std::pair<int, Tensor>>(
            bytes.substr(0, bytes.size() - 1));
      }),
      ::testing::ThrowsMessage<CommError>(
          HasSubstr("The message is truncated")));
  EXPECT_THAT(
      [&] { tree::from_bytes<std::string>(bytes); },
      ::testing::ThrowsMessage<CommError>(HasSubstr("the same type")));
  EXPECT_THAT(
      [&] { tree::from_bytes<int>(std::string(16, '\x7f')); },
      ::testing::ThrowsMessage<CommError>(HasSubstr("not written by")));
}

} // namespace
} // namespace accelerate
