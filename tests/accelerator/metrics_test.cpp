// SPDX-License-Identifier: Apache-2.0
// Metrics compared with scikit-learn's, early stopping, averaged weights, and
// weights that differ between ranks.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

json scores() {
  std::ifstream file(std::string(TEST_REFERENCE_DIR) + "/metrics.json");
  return json::parse(file);
}

at::Tensor whole_numbers(const json& numbers) {
  return torch::tensor(numbers.get<std::vector<int64_t>>());
}

// 101 samples in batches of 8: three ranks repeat some in the last round, and
// each must be counted once.
TEST(Metrics, EqualScikitLearnOnAnyNumberOfRanks) {
  const std::map<std::string, F1Average> averages{
      {"binary", F1Average::kBinary},
      {"macro", F1Average::kMacro},
      {"micro", F1Average::kMicro},
      {"weighted", F1Average::kWeighted}};
  for (const auto& expected : scores()) {
    const PairDataset data(
        whole_numbers(expected["predictions"]),
        whole_numbers(expected["labels"]));
    const int64_t num_classes = expected["num_classes"];
    for (const int num_ranks : {1, 2, 3}) {
      run_ranks(num_ranks, [&](ProcessGroup group) {
        Accelerator accelerator({.cpu = true, .process_group = group});
        auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 8}));
        Accuracy accuracy(accelerator);
        Mean mean(accelerator);
        std::map<std::string, F1> f1;
        for (const auto& [name, score] : expected["f1"].items()) {
          f1.emplace(
              name,
              F1(accelerator,
                 {.num_classes = num_classes, .average = averages.at(name)}));
        }
        for (auto& [predictions, labels] : loader) {
          accuracy.update(torch::one_hot(predictions, num_classes), labels);
          mean.update(predictions.eq(labels));
          for (auto& [name, metric] : f1) {
            metric.update(predictions, labels);
          }
        }
        // A single division of integers: only rounding may differ.
        EXPECT_NEAR(accuracy.compute(), expected["accuracy"], 1e-14);
        EXPECT_NEAR(mean.compute(), expected["accuracy"], 1e-14);
        for (auto& [name, metric] : f1) {
          EXPECT_NEAR(metric.compute(), expected["f1"][name], 1e-14) << name;
        }
        accuracy.reset();
        EXPECT_TRUE(std::isnan(accuracy.compute()));
      });
    }
  }
}

TEST(Metrics, CountTokensExceptIgnoredOnes) {
  Accelerator accelerator({.cpu = true});
  torch::manual_seed(1);
  const auto logits = torch::randn({3, 5, 7});
  auto labels = torch::randint(7, {3, 5});
  labels.index_put_({0, torch::indexing::Slice(2)}, kIgnoredLabel);
  EXPECT_EQ(num_loss_tokens(labels), 12);
  const double loss = torch::nn::functional::cross_entropy(
                          logits.view({-1, 7}), labels.view(-1))
                          .item<double>();
  Perplexity perplexity(accelerator);
  perplexity.update(logits.slice(0, 0, 1), labels.slice(0, 0, 1));
  perplexity.update(logits.slice(0, 1), labels.slice(0, 1));
  EXPECT_NEAR(perplexity.compute(), std::exp(loss), 1e-5);
  Accuracy accuracy(accelerator);
  accuracy.update(logits.transpose(1, 2), labels);
  const auto right = logits.argmax(2).eq(labels).sum().item<double>();
  EXPECT_EQ(accuracy.compute(), right / 12);
  EXPECT_THAT(
      [&] {
        accuracy.update(torch::zeros({3, 4}), labels);
      },
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr("[3, 4]"), HasSubstr("[3, 5]"))));
  Mean mean(accelerator);
  mean.update(2.0, 3);
  mean.update(torch::tensor({6.0}), torch::tensor({1.0}));
  EXPECT_EQ(mean.compute(), 3.0);
  EXPECT_THROW(F1(accelerator, {.num_classes = 3}), UsageError);
}

/// Batches of 2, 2 and 1 of five samples.
class TwoTwoOne final : public BatchSampler {
 public:
  std::vector<std::vector<int64_t>> batches(uint64_t, int64_t) const override {
    return {{0, 1}, {2, 3}, {4}};
  }
};

// Three packed batches for two ranks: the one that pads the last round does
// not count, although its single row is not its number of samples.
TEST(Metrics, DropRepeatedBatchesWhoseRowsAreNotSamples) {
  torch::manual_seed(3);
  const auto logits = torch::randn({5, 4, 7}, torch::kDouble);
  const auto labels = torch::randint(7, {5, 4});
  const double loss = torch::nn::functional::cross_entropy(
                          logits.view({-1, 7}), labels.view(-1))
                          .item<double>();
  const double accuracy =
      logits.argmax(2).eq(labels).to(torch::kDouble).mean().item<double>();
  for (const bool dispatches : {false, true}) {
    run_ranks(2, [&](ProcessGroup group) {
      Accelerator accelerator({.cpu = true, .process_group = group});
      using Batch = std::pair<at::Tensor, at::Tensor>;
      auto loader = accelerator.prepare(DataLoader(
          PairDataset(logits, labels),
          {.batch_sampler = std::make_shared<TwoTwoOne>(),
           .dispatch_batches = dispatches},
          [](const std::vector<Batch>& samples) {
            std::vector<at::Tensor> rows;
            std::vector<at::Tensor> classes;
            for (const auto& [row, label] : samples) {
              rows.push_back(row);
              classes.push_back(label);
            }
            return Batch(
                at::cat(rows).unsqueeze(0), at::cat(classes).unsqueeze(0));
          }));
      Perplexity perplexity(accelerator);
      Perplexity of_losses(accelerator);
      Accuracy share(accelerator);
      Mean mean(accelerator);
      int64_t num_tokens = 0;
      int64_t num_objects = 0;
      for (auto& [scores, wanted] : loader) {
        perplexity.update(scores, wanted);
        share.update(scores.transpose(1, 2), wanted);
        const auto own = torch::nn::functional::cross_entropy(
            scores.view({-1, 7}), wanted.view(-1));
        of_losses.update(own.item<double>(), wanted.numel());
        mean.update(own, torch::tensor(wanted.numel()));
        num_tokens += accelerator.gather_for_metrics(wanted.flatten()).numel();
        num_objects +=
            static_cast<int64_t>(accelerator
                                     .gather_for_metrics(std::vector<int64_t>(
                                         static_cast<size_t>(wanted.numel())))
                                     .size());
      }
      // Sums of 20 numbers in another order.
      EXPECT_NEAR(perplexity.compute(), std::exp(loss), 1e-12);
      EXPECT_NEAR(of_losses.compute(), std::exp(loss), 1e-12);
      EXPECT_NEAR(mean.compute(), loss, 1e-12);
      EXPECT_NEAR(share.compute(), accuracy, 1e-14);
      EXPECT_EQ(num_tokens, 20);
      EXPECT_EQ(num_objects, 20);
    });
  }
}

// Five samples in batches of two: rank 0's last batch has a repeat.
TEST(Metrics, RejectRowsOfABatchWithSomeRepeatedSamples) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    auto loader = accelerator.prepare(
        DataLoader(TensorDataset({torch::arange(5)}), {.batch_size = 2}));
    Accuracy accuracy(accelerator);
    Mean mean(accelerator);
    int64_t round = 0;
    for (auto& batch : loader) {
      const auto tokens = batch[0].repeat_interleave(3);
      const bool is_mixed = round++ == 1 && group.rank() == 0;
      if (is_mixed) {
        EXPECT_THAT(
            [&] { accuracy.update(tokens, tokens); },
            ThrowsMessage<UsageError>(
                AllOf(HasSubstr("1 of the 2 samples"), HasSubstr("6 rows"))));
      } else {
        accuracy.update(tokens, tokens);
      }
      // The loss of a batch represents all of it.
      mean.update(torch::ones({1}));
    }
    EXPECT_EQ(accuracy.compute(), 1.0);
    EXPECT_EQ(mean.compute(), 1.0);
  });
}

// The last batch has as many tokens as a full one has samples.
TEST(Metrics, GatherAllRowsIfNothingIsRepeated) {
  Accelerator accelerator({.cpu = true});
  auto loader = accelerator.prepare(
      DataLoader(TensorDataset({torch::arange(33.0)}), {.batch_size = 18}));
  for (auto& batch : loader) {
    const auto losses = torch::arange(18.0);
    EXPECT_EQ(accelerator.gather_for_metrics(losses).size(0), 18);
    EXPECT_EQ(
        accelerator.gather_for_metrics(torch::ones({18}, torch::kLong)).size(0),
        18);
    // A loss that the loop repeats counts once per sample.
    const auto loss = batch[0].mean();
    for (const auto& repeated :
         {loss.repeat({18}), loss.expand({18, 2}), loss.log().repeat({18})}) {
      EXPECT_EQ(
          accelerator.gather_for_metrics(-repeated).size(0), batch[0].size(0));
    }
    EXPECT_EQ(
        accelerator.gather_for_metrics(torch::full({18}, NAN)).size(0),
        batch[0].size(0));
  }
}

TEST(Metrics, KeepTheDigitsOfDoubles) {
  Accelerator accelerator({.cpu = true});
  // One of two classes is ahead by d: the loss is log(1 + exp(-d)).
  const double ahead = 1.0 / 3;
  const auto logits = torch::tensor({{{ahead, 0.0}}}, torch::kDouble);
  Perplexity perplexity(accelerator);
  perplexity.update(logits, torch::zeros({1, 1}, torch::kLong));
  EXPECT_NEAR(perplexity.compute(), 1 + std::exp(-ahead), 1e-15);
}

TEST(Metrics, RejectInputsThatTheyWouldMiscount) {
  Accelerator accelerator({.cpu = true});
  const auto labels = torch::tensor({0, 1, 1});
  const auto probabilities = torch::tensor({0.2, 0.7, 0.9});
  Accuracy accuracy(accelerator);
  F1 f1(accelerator);
  const auto is_refused = ThrowsMessage<UsageError>(HasSubstr("score > 0.5"));
  EXPECT_THAT([&] { accuracy.update(probabilities, labels); }, is_refused);
  EXPECT_THAT([&] { f1.update(probabilities, labels); }, is_refused);
  EXPECT_THAT(
      [&] {
        accuracy.update(probabilities.view({3, 1}), labels);
      },
      is_refused);
  accuracy.update(probabilities > 0.5, labels);
  EXPECT_EQ(accuracy.compute(), 1.0);

  Perplexity perplexity(accelerator);
  const auto logits = torch::zeros({1, 3, 7});
  perplexity.update(logits, torch::tensor({{0, 6, -100}}).to(torch::kInt));
  EXPECT_NEAR(perplexity.compute(), 7.0, 1e-5);
  EXPECT_THAT(
      [&] {
        perplexity.update(logits, torch::tensor({{0, 7, 1}}));
      },
      ThrowsMessage<UsageError>(HasSubstr("0 to 6")));
  Mean mean(accelerator);
  EXPECT_THAT(
      [&] {
        mean.update(torch::ones({2, 3}), torch::ones({2}));
      },
      ThrowsMessage<UsageError>(HasSubstr("weights have shape [2]")));
}

TEST(EarlyStopping, StopsAfterSeveralValuesWithoutImprovement) {
  EarlyStopping stopping({.patience = 2, .min_delta = 0.1});
  EXPECT_FALSE(stopping.should_stop(1.0));
  EXPECT_TRUE(stopping.is_best());
  EXPECT_FALSE(stopping.should_stop(0.95)); // Not by enough.
  EXPECT_FALSE(stopping.is_best());
  EarlyStopping resumed({.patience = 2, .min_delta = 0.1});
  resumed.load_state_dict(stopping.state_dict());
  EXPECT_FALSE(stopping.should_stop(0.8));
  EXPECT_TRUE(resumed.should_stop(std::nan("")));
  EXPECT_EQ(resumed.best(), 1.0);
  EarlyStopping rising({.patience = 1, .larger_is_better = true});
  EXPECT_FALSE(rising.should_stop(0.5));
  EXPECT_FALSE(rising.should_stop(0.6));
  EXPECT_TRUE(rising.should_stop(0.6));
}

TEST(Ema, AveragesWeightsAndSwapsThemIn) {
  Accelerator accelerator({.cpu = true});
  torch::nn::Linear model(1, 1);
  torch::nn::init::constant_(model->weight, 1.0);
  const auto net = accelerator.prepare(model);
  Ema ema(net, {.decay = 0.75});
  const auto set = [&](double value) {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(value);
  };
  set(2.0);
  ema.update(); // 0.75 + 0.5
  set(4.0);
  ema.update(); // 1.25 * 0.75 + 1
  {
    const auto averaged = ema.evaluate();
    EXPECT_FLOAT_EQ(net->weight.item<float>(), 1.9375F);
    EXPECT_THROW(ema.update(), UsageError);
    EXPECT_THROW(ema.state_dict(), UsageError);
  }
  EXPECT_EQ(net->weight.item<float>(), 4.0F);
  const testing::TempDir folder;
  save(ema.state_dict(), folder.path() / "ema.safetensors");
  EXPECT_THROW(Ema(std::shared_ptr<torch::nn::Module>()), UsageError);
  Ema other(net);
  other.load_state_dict(load(folder.path() / "ema.safetensors"));
  const auto averaged = other.evaluate();
  EXPECT_FLOAT_EQ(net->weight.item<float>(), 1.9375F);
}

TEST(StateDict, IsSavedToAFileBitForBit) {
  StateDict state;
  state.set("half", torch::ones({2, 3}, torch::kBFloat16));
  state.set("empty", torch::empty({0, 2}));
  state.set("nan", std::nan(""));
  state.set("third", 1.0 / 3);
  state.set("flag", true);
  state.set("count", int64_t{1} << 62);
  state.set("text", "a \"b\"");
  const testing::TempDir folder;
  const auto file = folder.path() / "state.safetensors";
  save(state, file);
  const auto loaded = load(file);
  EXPECT_EQ(loaded.size(), state.size());
  EXPECT_TRUE(
      loaded.get<at::Tensor>("half").equal(state.get<at::Tensor>("half")));
  EXPECT_EQ(loaded.get<at::Tensor>("empty").size(1), 2);
  EXPECT_TRUE(std::isnan(loaded.get<double>("nan")));
  EXPECT_EQ(loaded.get<double>("third"), 1.0 / 3);
  EXPECT_TRUE(loaded.get<bool>("flag"));
  EXPECT_EQ(loaded.get<int64_t>("count"), int64_t{1} << 62);
  EXPECT_EQ(loaded.get<std::string>("text"), "a \"b\"");
  EXPECT_THROW(load(folder.path() / "none"), SystemError);
}

TEST(StateDict, NamesTensorsThatFilesDoNotSupport) {
  const testing::TempDir folder;
  const auto file = folder.path() / "state.safetensors";
  StateDict text;
  text.set("bytes", "\xff");
  EXPECT_THAT(
      [&] { save(text, file); },
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr("'bytes'"), HasSubstr("UTF-8"))));
  StateDict tensor;
  tensor.set("gone", torch::Tensor());
  EXPECT_THAT(
      [&] { save(tensor, file); },
      ThrowsMessage<UsageError>(HasSubstr("'gone' is undefined")));
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Ranks, WithDifferentWeightsAreNamed) {
  run_ranks(3, [](ProcessGroup group) {
    Accelerator accelerator(
        {.cpu = true, .debug = true, .process_group = group});
    torch::nn::Linear model(2, 2);
    auto net = accelerator.prepare(model);
    accelerator.check_ranks_equal(net);
    if (group.rank() == 1) {
      const torch::NoGradGuard no_grad;
      net->bias.add_(1e-6);
    }
    const auto message = AllOf(HasSubstr("'bias' of rank 1 "));
    EXPECT_THAT(
        [&] { accelerator.check_ranks_equal(net); },
        ThrowsMessage<MismatchError>(message));
    // The first backward of a run with `debug` checks by itself.
    EXPECT_THAT(
        [&] {
          accelerator.backward(net(torch::ones({1, 2})).sum());
        },
        ThrowsMessage<MismatchError>(message));
  });
}

TEST(PreparedModel, IsSavedByTorchAsItsModule) {
  Accelerator accelerator({.cpu = true});
  auto net = accelerator.prepare(torch::nn::Linear(2, 2));
  auto other = accelerator.prepare(torch::nn::Linear(2, 2));
  std::stringstream file;
  torch::save(net, file);
  torch::load(other, file);
  EXPECT_TRUE(other->weight.equal(net->weight));
}

} // namespace
} // namespace accelerate
