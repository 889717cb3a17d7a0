// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/collate.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <unordered_map>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;
using torch::tensor;
using Tensor = torch::Tensor;
using TensorMap = std::map<std::string, Tensor>;

template <class T>
void expect_equal(const Tensor& got, const std::vector<T>& values) {
  const auto expected =
      torch::tensor(values, c10::CppTypeToScalarType<T>::value);
  EXPECT_EQ(got.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(got.reshape({-1}).equal(expected)) << got;
}

TEST(Collate, StacksTensorsAlongANewFirstDimension) {
  const auto batch =
      collate(std::vector{tensor({1, 2}), tensor({3, 4}), tensor({5, 6})});
  EXPECT_EQ(batch.sizes(), (torch::IntArrayRef{3, 2}));
  expect_equal<int64_t>(batch, {1, 2, 3, 4, 5, 6});
  // Not contiguous and with a gradient: not copied as bytes.
  const auto rows = torch::arange(6.0).reshape({2, 3}).requires_grad_();
  EXPECT_TRUE(collate(std::vector{rows.t()[0], rows.t()[1]}).requires_grad());
  EXPECT_TRUE(collate(std::vector{rows.t(), rows.t()})[1].equal(rows.t()));
}

TEST(Collate, MakesTensorsFromNumbers) {
  expect_equal<int64_t>(collate(std::vector<int>{3, -1}), {3, -1});
  expect_equal<int64_t>(collate(std::vector<uint8_t>{255}), {255});
  expect_equal<float>(collate(std::vector<float>{0.5F}), {0.5F});
  expect_equal<double>(collate(std::vector<double>{0.1, 2}), {0.1, 2});
  EXPECT_THAT(
      [] { collate(std::vector<uint64_t>{~uint64_t{0}}); },
      ThrowsMessage<UsageError>(HasSubstr("does not fit into int64")));
  EXPECT_THROW(
      collate(std::vector<std::vector<uint64_t>>{{1, ~uint64_t{0}}}),
      UsageError);
  const auto flags = collate(std::vector{true, false});
  EXPECT_TRUE(flags.equal(torch::tensor({true, false})));
}

TEST(Collate, MakesOneTensorOfVectorsAndArraysOfNumbers) {
  const auto batch = collate(std::vector<std::vector<int32_t>>{{1, 2}, {3, 4}});
  EXPECT_EQ(batch.sizes(), (torch::IntArrayRef{2, 2}));
  expect_equal<int64_t>(batch, {1, 2, 3, 4});
  expect_equal<float>(
      collate(std::vector<std::array<float, 2>>{{1, 2}, {3, 4}}), {1, 2, 3, 4});
}

TEST(Collate, KeepsStringsAsAList) {
  EXPECT_THAT(
      collate(std::vector<std::string>{"a", "b"}), ElementsAre("a", "b"));
}

TEST(Collate, FollowsTuplesVectorsMapsOptionalsAndExamples) {
  using Sample = std::tuple<
      std::vector<Tensor>,
      std::unordered_map<std::string, double>,
      std::pair<std::string, std::optional<bool>>>;
  const std::vector<Sample> samples = {
      {{tensor(1), tensor(2)}, {{"x", 0.5}, {"y", 1}}, {"one", true}},
      {{tensor(3), tensor(4)}, {{"y", 2}, {"x", 1.5}}, {"two", false}}};
  const auto [tensors, map, pair] = collate(samples);
  expect_equal<int64_t>(tensors.at(0), {1, 3});
  expect_equal<int64_t>(tensors.at(1), {2, 4});
  expect_equal<double>(map.at("x"), {0.5, 1.5});
  expect_equal<double>(map.at("y"), {1, 2});
  EXPECT_THAT(pair.first, ElementsAre("one", "two"));
  EXPECT_TRUE(pair.second->equal(tensor({true, false})));

  using Example = torch::data::Example<>;
  const Example example = collate(
      std::vector<Example>{{tensor(1), tensor(2)}, {tensor(3), tensor(4)}});
  expect_equal<int64_t>(example.target, {2, 4});
}

// Fields keep their type.
struct Point {
  Tensor x;
  std::vector<Tensor> neighbours;
  int id = 0;
};
auto tensor_fields(Point& p) {
  return std::tie(p.x, p.neighbours);
}

// Fields change their type: the struct says what a batch is.
struct Review {
  std::string text;
  int64_t stars = 0;
  struct Batch {
    std::vector<std::string> text;
    Tensor stars;
  };
};
auto tensor_fields(Review& r) {
  return std::tie(r.text, r.stars);
}
auto tensor_fields(Review::Batch& b) {
  return std::tie(b.text, b.stars);
}

// As above, without `Batch`.
struct Labelled {
  Tensor image;
  int64_t label;
};
auto tensor_fields(Labelled& l) {
  return std::tie(l.image, l.label);
}

TEST(Collate, KeepsStructsWhoseFieldsKeepTheirType) {
  const Point batch = collate(std::vector<Point>{
      {tensor(1), {tensor(2)}, 7}, {tensor(3), {tensor(4)}}});
  expect_equal<int64_t>(batch.x, {1, 3});
  expect_equal<int64_t>(batch.neighbours.at(0), {2, 4});
  EXPECT_EQ(batch.id, 7);
}

TEST(Collate, MakesTheBatchTypeOfAStructOrATupleOfItsFields) {
  const Review::Batch reviews =
      collate(std::vector<Review>{{"good", 5}, {"bad", 1}});
  EXPECT_THAT(reviews.text, ElementsAre("good", "bad"));
  expect_equal<int64_t>(reviews.stars, {5, 1});

  const std::tuple<Tensor, Tensor> labelled =
      collate(std::vector<Labelled>{{tensor(1), 5}, {tensor(2), 6}});
  expect_equal<int64_t>(std::get<1>(labelled), {5, 6});
}

template <class T>
auto complaint(const std::vector<T>& samples, const auto& how) {
  return [=] { how(samples); };
}
const auto kPlainly = [](const auto& samples) { collate(samples); };

TEST(Collate, NamesFieldSamplesAndShapesOfRaggedBatches) {
  const auto ids = [](int64_t n) { return TensorMap{{"ids", torch::ones(n)}}; };
  EXPECT_THAT(
      complaint(std::vector{ids(3), ids(3), ids(2)}, kPlainly),
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr(
              "Field 'ids': Sample 2 has shape [2], but sample 0 has [3]"),
          HasSubstr("PaddingCollator"))));
  // Padding the first dimension would not help.
  EXPECT_THAT(
      complaint(
          std::vector{torch::ones({2, 3}), torch::ones({2, 2})}, kPlainly),
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr("[2, 2]"), Not(HasSubstr("Padding")))));
  EXPECT_THAT(
      complaint(
          std::vector<Point>{
              {tensor(1), {tensor(2)}}, {tensor(1), {tensor({1, 2})}}},
          kPlainly),
      ThrowsMessage<UsageError>(HasSubstr("Field '1.0': Sample 1")));
}

TEST(Collate, NamesWhatElseDiffersBetweenSamples) {
  EXPECT_THAT(
      complaint(std::vector{tensor(1), tensor(1.5)}, kPlainly),
      ThrowsMessage<UsageError>(
          HasSubstr("Sample 1 is Float on cpu, but sample 0 is Long on cpu")));
  EXPECT_THAT(
      complaint(std::vector{tensor(1), Tensor()}, kPlainly),
      ThrowsMessage<UsageError>(HasSubstr("Sample 1 has an undefined tensor")));
  using Map = std::map<std::string, int>;
  EXPECT_THAT(
      complaint(std::vector<Map>{{{"a", 1}}, {{"b", 1}}}, kPlainly),
      ThrowsMessage<UsageError>(HasSubstr("Sample 1 has no key a")));
  EXPECT_THAT(
      complaint(std::vector<Map>{{{"a", 1}}, {{"a", 1}, {"b", 1}}}, kPlainly),
      ThrowsMessage<UsageError>(HasSubstr("Sample 1 has 2 keys")));
  using Texts = std::vector<std::string>;
  EXPECT_THAT(
      complaint(std::vector<Texts>{{"a"}, {"a", "b"}}, kPlainly),
      ThrowsMessage<UsageError>(HasSubstr("Sample 1 has 2 elements")));
  EXPECT_THAT(
      complaint(std::vector<std::optional<int>>{1, std::nullopt}, kPlainly),
      ThrowsMessage<UsageError>(HasSubstr("Sample 1 has no value")));
  EXPECT_THAT(
      complaint(std::vector<int>{}, kPlainly),
      ThrowsMessage<UsageError>(HasSubstr("The batch is empty")));
}

TensorMap text(std::vector<int64_t> ids) {
  const auto input = tensor(ids);
  return {{"input_ids", input}, {"labels", input + 10}, {"score", tensor(0.5)}};
}

TEST(PaddingCollator, PadsToTheLongestAndAddsTheMask) {
  const auto batch = PaddingCollator()(std::vector{text({1, 2, 3}), text({4})});
  expect_equal<int64_t>(batch.at("input_ids"), {1, 2, 3, 4, 0, 0});
  expect_equal<int64_t>(batch.at("labels"), {11, 12, 13, 14, -100, -100});
  expect_equal<int64_t>(batch.at("attention_mask"), {1, 1, 1, 1, 0, 0});
  EXPECT_EQ(batch.at("score").sizes(), (torch::IntArrayRef{2}));
}

TEST(PaddingCollator, PadsToAMultipleOnTheLeftWithGivenValues) {
  const PaddingCollator pad(
      {.multiple_of = 2, .left = true, .values = {{"input_ids", 9}}});
  const auto batch = pad(std::vector{text({1, 2, 3}), text({4})});
  expect_equal<int64_t>(batch.at("input_ids"), {9, 1, 2, 3, 9, 9, 9, 4});
  expect_equal<int64_t>(batch.at("labels"), {0, 11, 12, 13, 0, 0, 0, 14});
  expect_equal<int64_t>(batch.at("attention_mask"), {0, 1, 1, 1, 0, 0, 0, 1});
}

TEST(PaddingCollator, PadsListedFieldsToAGivenLength) {
  const PaddingCollator pad({.length = 3, .fields = {"input_ids"}});
  const std::vector<std::map<std::string, std::vector<float>>> samples = {
      {{"input_ids", {1}}, {"box", {1, 2}}},
      {{"input_ids", {1, 2}}, {"box", {3, 4}}}};
  const auto batch = pad(samples);
  expect_equal<float>(batch.at("input_ids"), {1, 0, 0, 1, 2, 0});
  expect_equal<float>(batch.at("box"), {1, 2, 3, 4});
  EXPECT_THAT(
      complaint(std::vector{text({1, 2, 3, 4})}, pad),
      ThrowsMessage<UsageError>(HasSubstr(
          "Sample 0 has length 4, but samples are padded to length 3")));
}

TEST(PaddingCollator, KeepsAMaskThatIsGiven) {
  auto sample = text({1, 2});
  sample["attention_mask"] = tensor({0, 1});
  auto longer = text({1, 2, 3});
  longer["attention_mask"] = tensor({1, 1, 0});
  const auto batch = PaddingCollator()(std::vector{sample, longer});
  expect_equal<int64_t>(batch.at("attention_mask"), {0, 1, 0, 1, 1, 0});
}

struct Encoded {
  Tensor attention_mask;
  Tensor input_ids;
};
auto tensor_fields(Encoded& e) {
  return std::tie(e.attention_mask, e.input_ids);
}
auto field_names(const Encoded&) {
  return std::array{"attention_mask", "input_ids"};
}

TEST(PaddingCollator, FillsTheMaskOfAStructAndKeepsItToThatStruct) {
  const std::vector<std::pair<Encoded, TensorMap>> samples = {
      {{{}, torch::ones({2, 2})}, {{"x", tensor({1})}}},
      {{{}, torch::ones({1, 2})}, {{"x", tensor({2})}}}};
  const auto [encoded, map] = PaddingCollator()(samples);
  EXPECT_EQ(encoded.input_ids.sizes(), (torch::IntArrayRef{2, 2, 2}));
  EXPECT_EQ(encoded.input_ids.sum().item<double>(), 6);
  expect_equal<int64_t>(encoded.attention_mask, {1, 1, 1, 0});
  EXPECT_EQ(map.count("attention_mask"), 0U);
}

TEST(PaddingCollator, RejectsSamplesThatCannotBePadded) {
  EXPECT_THAT(
      complaint(
          std::vector{torch::ones({1, 2}), torch::ones({2, 3})},
          PaddingCollator()),
      ThrowsMessage<UsageError>(
          HasSubstr("Only the first dimension may differ")));
  EXPECT_THAT(
      [] { PaddingCollator({.multiple_of = 0}); },
      ThrowsMessage<UsageError>(HasSubstr("multiple_of is 0")));
}

} // namespace
} // namespace accelerate
