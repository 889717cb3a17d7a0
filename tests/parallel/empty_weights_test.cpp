// SPDX-License-Identifier: Apache-2.0
// Modules created without memory, compared with the same created normally.
#include "accelerate/training/empty_weights.h"

#include <gmock/gmock.h>

#include "accelerate/files/safetensors_index.h"
#include "accelerate/models.h"
#include "parallel/tower.h"
#include "support/temp_dir.h"
#include "training/parallel/engine.h"
#include "training/state/deferred_tensors.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;
namespace fs = std::filesystem;

Tower empty_tower(int64_t width, int num_floors) {
  const EmptyWeights empty;
  return Tower(width, num_floors);
}

/// As PyTorch has created it, in a file.
Tower write_tower(const fs::path& folder, int64_t width, int num_floors) {
  Tower tower(width, num_floors);
  Accelerator alone({.cpu = true});
  auto prepared = alone.prepare(tower);
  alone.save_model(prepared, folder);
  return tower;
}

std::map<std::string, Tensor> values_of(
    PreparedModel<TowerImpl>& model,
    const Tower& tower) {
  std::map<std::string, Tensor> values;
  auto wholes = model.engine().whole_parameters(true);
  const auto named = tower->named_parameters();
  std::map<const void*, Tensor> whole_of;
  std::vector<Tensor> once;
  std::set<const void*> seen;
  for (const auto& item : named) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      once.push_back(item.value());
    }
  }
  for (size_t i = 0; i < once.size(); ++i) {
    whole_of[once[i].unsafeGetTensorImpl()] =
        wholes.empty() ? once[i].detach() : wholes[i];
  }
  for (const auto& item : named) {
    values[item.key()] = whole_of[item.value().unsafeGetTensorImpl()];
  }
  for (const auto& item : tower->named_buffers()) {
    values[item.key()] = item.value();
  }
  return values;
}

void expect_equal(
    const std::map<std::string, Tensor>& got,
    const Tower& expected,
    const std::string& what) {
  size_t num = 0;
  for (const auto& items :
       {expected->named_parameters(), expected->named_buffers()}) {
    for (const auto& item : items) {
      ++num;
      EXPECT_TRUE(torch::equal(got.at(item.key()), item.value()))
          << what << ": " << item.key();
    }
  }
  EXPECT_EQ(got.size(), num);
}

TEST(EmptyWeights, TakeNoMemoryUntilTheyArePrepared) {
  const HostBytes bytes;
  const auto& count = HostBytes::restart();
  const auto before = count.now.load();
  // A gigabyte, including what torch's own modules do in their constructors.
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  {
    const EmptyWeights empty;
    modules.push_back(Tower(2048, 16).ptr());
    modules.push_back(torch::nn::LSTM(512, 512).ptr());
    modules.push_back(
        torch::nn::Transformer(torch::nn::TransformerOptions(512, 8)).ptr());
    modules.push_back(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(512, 512, 3)).ptr());
    modules.push_back(torch::nn::BatchNorm2d(512).ptr());
  }
  int64_t num_bytes = 0;
  for (const auto& module : modules) {
    for (const auto& p : module->parameters()) {
      EXPECT_TRUE(p.is_meta());
      EXPECT_TRUE(p.requires_grad());
      num_bytes += static_cast<int64_t>(p.nbytes());
    }
  }
  EXPECT_GT(num_bytes, 1'000'000'000);
  EXPECT_LT(count.peak - before, 100'000);
  EXPECT_TRUE(torch::zeros({2}).is_cpu());
}

TEST(EmptyWeights, AreWhatTheConstructorSays) {
  torch::manual_seed(3);
  Tower tower = empty_tower(24, 2);
  Accelerator accelerator({.cpu = true});
  auto net = accelerator.prepare(tower);
  const Tower usual(24, 2);
  // Computed values are exact.
  EXPECT_TRUE(torch::equal(tower->table, usual->table));
  EXPECT_TRUE(torch::equal(tower->count, usual->count));
  EXPECT_TRUE(tower->head.is_same(tower->words->weight));
  const auto* floor = tower->floors[1]->as<FloorImpl>();
  EXPECT_TRUE(torch::equal(floor->norm->weight, torch::ones({24})));
  // Random ones have the same distribution: Linear's are uniform in 1 /
  // sqrt(inputs).
  const auto& up = floor->up->weight;
  EXPECT_LE(up.abs().max().item<double>(), 1 / std::sqrt(24.0));
  EXPECT_NEAR(up.std().item<double>(), 1 / std::sqrt(3 * 24.0), 0.01);
  EXPECT_NEAR(tower->words->weight.std().item<double>(), 1.0, 0.2);
  EXPECT_FALSE(torch::equal(up, tower->floors[0]->as<FloorImpl>()->up->weight));
  // Determined by the seed, whenever they are computed.
  torch::manual_seed(3);
  Tower again = empty_tower(24, 2);
  torch::rand({17});
  auto other = accelerator.prepare(again);
  for (const auto& item : tower->named_parameters()) {
    EXPECT_TRUE(
        torch::equal(item.value(), again->named_parameters()[item.key()]))
        << item.key();
  }
  accelerator.backward(tower_loss(net(tower_tokens(0)), 0));
  EXPECT_GT(up.grad().abs().sum().item<double>(), 0);
}

TEST(EmptyWeights, AreThoseOfTheFileInEveryStageAndOnAnyNumberOfRanks) {
  TempDir folder;
  const auto expected = write_tower(folder.path(), 20, 3);
  for (const int n : {1, 2, 3}) {
    for (const auto stage :
         {ShardStage::kNone,
          ShardStage::kOptimizer,
          ShardStage::kGradients,
          ShardStage::kParameters}) {
      run_ranks(n, [&](ProcessGroup group) {
        Tower tower = empty_tower(20, 3);
        load_weights(*tower, folder.path());
        Accelerator accelerator(tower_options(group, stage));
        auto net = accelerator.prepare(tower);
        expect_equal(
            values_of(net, tower),
            expected,
            std::to_string(n) + " ranks, stage " +
                std::to_string(static_cast<int>(stage)));
      });
    }
  }
}

// One host has an outdated copy.
TEST(EmptyWeights, FromDifferentFilesAreRejectedOnAllRanks) {
  TempDir folder;
  write_tower(folder.path() / "0", 20, 3);
  write_tower(folder.path() / "1", 20, 3);
  run_ranks(2, [&](ProcessGroup group) {
    Tower tower = empty_tower(20, 3);
    load_weights(*tower, folder.path() / std::to_string(group.rank()));
    Accelerator accelerator(tower_options(group, ShardStage::kParameters));
    EXPECT_THAT(
        [&] { accelerator.prepare(tower); },
        ThrowsMessage<MismatchError>(
            HasSubstr("all ranks see the same files")));
  });
}

TEST(EmptyWeights, OfRankZeroAreBroadcastIfRandom) {
  for (const auto stage : {ShardStage::kGradients, ShardStage::kParameters}) {
    std::vector<std::map<std::string, Tensor>> seen(2);
    run_ranks(2, [&](ProcessGroup group) {
      Tower tower = empty_tower(20, 3);
      Accelerator accelerator(tower_options(group, stage));
      auto net = accelerator.prepare(tower);
      seen[static_cast<size_t>(group.rank())] = values_of(net, tower);
    });
    for (const auto& [name, value] : seen[0]) {
      EXPECT_TRUE(torch::equal(value, seen[1].at(name))) << name;
    }
  }
}

TEST(EmptyWeights, GiveEachRankOnlyItsShard) {
  constexpr int64_t kWidth = 256;
  constexpr int kFloors = 16;
  TempDir folder;
  write_tower(folder.path(), kWidth, kFloors);
  const HostBytes bytes;
  for (const bool is_in_file : {true, false}) {
    run_ranks(4, [&](ProcessGroup group) {
      const auto& count = HostBytes::restart();
      const auto before = count.now.load();
      Tower tower = empty_tower(kWidth, kFloors);
      if (is_in_file) {
        load_weights(*tower, folder.path());
      }
      int64_t num_bytes = 0;
      for (const auto& p : tower->parameters()) {
        num_bytes += static_cast<int64_t>(p.nbytes());
      }
      const int64_t unit = num_bytes / kFloors;
      Accelerator accelerator(tower_options(group, ShardStage::kParameters));
      auto net = accelerator.prepare(tower);
      const int64_t part = num_bytes / 4;
      EXPECT_GT(num_bytes, 16'000'000);
      EXPECT_GE(count.now - before, part);
      // From a file only the shard; otherwise one unit, and what rank 0 draws.
      EXPECT_LT(
          count.peak - before, part + (is_in_file ? unit / 4 : 5 * unit / 2));
    });
  }
}

TEST(EmptyWeights, TrainAsUsual) {
  TempDir folder;
  write_tower(folder.path(), 20, 3);
  const auto train = [&](const ProcessGroup& group, bool is_empty) {
    Tower tower = is_empty ? empty_tower(20, 3) : Tower(20, 3);
    load_weights(*tower, folder.path());
    optim::AdamW adamw(tower->parameters(), {.lr = 0.01});
    Accelerator accelerator(tower_options(group, ShardStage::kParameters));
    auto [net, opt] = accelerator.prepare(tower, adamw);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(
          tower_loss(net(tower_tokens(step + group.rank())), step));
      opt.step();
      opt.zero_grad();
    }
    return values_of(net, tower);
  };
  run_ranks(2, [&](ProcessGroup group) {
    const auto expected = train(group, false);
    for (const auto& [name, value] : train(group, true)) {
      EXPECT_TRUE(torch::equal(value, expected.at(name))) << name;
    }
  });
}

TEST(EmptyWeights, WorkWithOurModels) {
  TempDir folder;
  const auto config = models::ModelConfig::parse(
      R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 32,
          "intermediate_size": 48, "num_hidden_layers": 3,
          "num_attention_heads": 4, "num_key_value_heads": 2})",
      "a test");
  using models::AutoModelForCausalLM;
  const auto usual = AutoModelForCausalLM::from_config(config);
  usual->save_pretrained(folder.path());
  const auto ids = (torch::arange(24) * 7 % 96).view({2, 12});
  usual->eval();
  const auto expected = usual->forward({.input_ids = ids}).logits;
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    run_ranks(2, [&](ProcessGroup group) {
      std::shared_ptr<models::CausalLanguageModel> model;
      {
        const EmptyWeights empty;
        model = AutoModelForCausalLM::from_pretrained(
            folder.path(), {.dtype = dtype});
      }
      for (const auto& p : model->parameters()) {
        EXPECT_TRUE(is_read_in_slices(p));
      }
      Accelerator accelerator(tower_options(group, ShardStage::kParameters));
      auto net = accelerator.prepare(model);
      const torch::NoGradGuard no_grad;
      const auto logits = net(models::ModelInputs{.input_ids = ids}).logits;
      if (dtype == torch::kFloat) {
        EXPECT_TRUE(torch::equal(logits, expected));
      } else {
        EXPECT_TRUE(
            torch::allclose(logits.to(torch::kFloat), expected, 0, 0.1));
      }
    });
  }
}

TEST(EmptyWeights, MayBeCastAndChangedBeforeTheyArePrepared) {
  struct Odd : torch::nn::Module {
    Odd() {
      // As stochastic depth is often written.
      rate = torch::linspace(0, 0.4, 5)[3].item<double>();
      weight = register_parameter("weight", torch::ones({3, 4}));
      scale = register_parameter(
          "scale",
          torch::full({4}, 2.0, weight.options().requires_grad(false)));
      fixed = register_buffer("fixed", torch::tensor({1.0F, 2.0F, 3.0F}));
      sums = register_buffer(
          "sums", fixed.unsqueeze(1) * torch::arange(4) + torch::eye(3, 4));
      column = register_buffer("column", sums.select(1, 2));
      const torch::NoGradGuard no_grad;
      weight.select(0, 1).fill_(5);
      sums[2][2] = 100;
    }
    double rate = 0;
    Tensor weight, scale, fixed, sums, column;
  };
  std::shared_ptr<Odd> odd;
  {
    const EmptyWeights empty;
    odd = std::make_shared<Odd>();
  }
  {
    const torch::NoGradGuard no_grad;
    odd->weight.mul_(3);
  }
  odd->to(torch::kDouble);
  EXPECT_EQ(odd->weight.scalar_type(), torch::kDouble);
  Accelerator accelerator({.cpu = true});
  auto net = accelerator.prepare(odd);
  EXPECT_NEAR(odd->rate, 0.3, 1e-6);
  const Odd usual;
  EXPECT_TRUE(torch::equal(odd->weight, 3 * usual.weight.to(torch::kDouble)));
  EXPECT_TRUE(torch::equal(odd->scale, usual.scale.to(torch::kDouble)));
  EXPECT_TRUE(torch::equal(odd->sums, usual.sums.to(torch::kDouble)));
  EXPECT_TRUE(torch::equal(odd->column, usual.column.to(torch::kDouble)));
  EXPECT_TRUE(torch::equal(odd->fixed, usual.fixed.to(torch::kDouble)));
}

TEST(EmptyWeights, KeepViewsOfOneMemory) {
  struct Two : torch::nn::Module {
    Two() {
      whole = register_buffer("whole", torch::arange(6));
      half = register_buffer("half", whole.narrow(0, 3, 3));
    }
    Tensor whole, half;
  };
  std::shared_ptr<Two> two;
  {
    const EmptyWeights empty;
    two = std::make_shared<Two>();
  }
  Accelerator accelerator({.cpu = true});
  auto net = accelerator.prepare(two);
  two->whole.fill_(9);
  EXPECT_TRUE(torch::equal(two->half, torch::full({3}, 9)));
}

TEST(EmptyWeights, RejectInvalidUse) {
  Tower tower = empty_tower(8, 1);
  EXPECT_THAT(
      [&] { (void)tower->words->weight.sum(); },
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr("[EmptyWeights] aten::sum reads a weight"),
          HasSubstr("prepare"))));
  EXPECT_THAT(
      [&] { (void)tower->words->weight.data_ptr(); },
      ThrowsMessage<c10::Error>(HasSubstr("data pointer")));
  Accelerator accelerator({.cpu = true});
  {
    const EmptyWeights empty;
    EXPECT_THAT(
        [&] { accelerator.prepare(tower); },
        ThrowsMessage<UsageError>(HasSubstr("An EmptyWeights still exists")));
  }
  const auto bare = std::make_shared<torch::nn::Module>();
  bare->register_parameter("weight", torch::empty({2}, torch::kMeta));
  EXPECT_THAT(
      [&] { accelerator.prepare(bare); },
      ThrowsMessage<UsageError>(HasSubstr("'weight' is on the meta device")));
  auto source = torch::zeros({11, 8});
  {
    const torch::NoGradGuard no_grad;
    tower->words->weight.copy_(source);
  }
  source.add_(1);
  EXPECT_THAT(
      [&] { accelerator.prepare(tower); },
      ThrowsMessage<UsageError>(
          HasSubstr("changed after a weight was created from it")));
}

TEST(LoadWeights, NamesAllMismatches) {
  TempDir folder;
  write_tower(folder.path(), 8, 2);
  Tower other(8, 3);
  EXPECT_THAT(
      [&] { load_weights(*other, folder.path()); },
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr("[load_weights]"),
          HasSubstr("missing tensors (6): 'floors.2.norm.weight'"))));
  const auto before = other->floors[2]->as<FloorImpl>()->up->weight.clone();
  load_weights(*other, folder.path(), {.strict = false});
  EXPECT_TRUE(
      torch::equal(other->floors[2]->as<FloorImpl>()->up->weight, before));
  Tower small(4, 1);
  EXPECT_THAT(
      [&] { load_weights(*small, folder.path(), {.strict = false}); },
      ThrowsMessage<UsageError>(HasSubstr("of a different shape")));
  EXPECT_THAT(
      [&] { load_weights(*small, folder.path() / "none"); },
      ThrowsMessage<SystemError>(HasSubstr("none")));
}

} // namespace
} // namespace accelerate::testing
