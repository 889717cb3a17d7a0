// SPDX-License-Identifier: Apache-2.0
// Sharded training compared with DDP, whose own tests compare it with PyTorch.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <torch/torch.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "accelerate/accelerate.h"
#include "accelerate/models.h"
#include "support/long_run.h"
#include "support/rank_bodies.h"
#include "support/temp_dir.h"
#include "training/parallel/engine.h"
#include "training/parallel/prefetch_plan.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using torch::Tensor;

constexpr int64_t kWords = 37;
constexpr int64_t kWidth = 12;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, 29))),
        down(register_module("down", torch::nn::Linear(29, kWidth))) {}
  Tensor forward(const Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(Block);

/// Blocks between an embedding and a head that share one weight; the second
/// block has a frozen matrix, one layer is never used, and a buffer changes.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool has_unused = false)
      : words(register_module("words", torch::nn::Embedding(kWords, kWidth))),
        norm(register_module("norm", torch::nn::BatchNorm1d(kWidth))),
        layers(register_module("layers", torch::nn::ModuleList())) {
    for (int i = 0; i < 4; ++i) {
      layers->push_back(Block());
    }
    layers[1]->as<BlockImpl>()->up->weight.set_requires_grad(false);
    if (has_unused) {
      register_module("unused", torch::nn::Linear(3, 3));
    }
    head = register_parameter("head", words->weight);
    scale = register_parameter("scale", torch::zeros({})); // no dimension
    const torch::NoGradGuard no_grad;
    double shift = 0;
    for (auto& p : parameters()) {
      p.copy_(
          0.3 * torch::linspace(-40, 40, p.numel()).view_as(p).sin() +
          (shift += 0.01));
    }
  }
  Tensor forward(const Tensor& tokens, bool again, int64_t num_layers = 4) {
    // Batch statistics are not supported in bf16 on the CPU.
    auto h = words(tokens);
    h = h.scalar_type() == torch::kFloat
            ? norm(h)
            : torch::layer_norm(h, {kWidth}, norm->weight, norm->bias);
    for (int64_t i = 0; i < num_layers; ++i) {
      if (i == fails_before) {
        throw std::domain_error("a mistake of the user's");
      }
      auto block = std::dynamic_pointer_cast<BlockImpl>(
          layers->ptr(static_cast<size_t>(i)));
      h = again ? recompute(
                      [block](const Tensor& x) { return block->forward(x); }, h)
                : block->forward(h);
      if (i == breaks_after) {
        h.register_hook([](const Tensor&) -> Tensor {
          throw std::domain_error("a mistake in backward");
        });
      }
    }
    return torch::matmul(h, head.t()) * scale;
  }
  torch::nn::Embedding words;
  torch::nn::BatchNorm1d norm;
  torch::nn::ModuleList layers;
  Tensor head;
  Tensor scale;
  std::optional<int64_t> fails_before;
  std::optional<int64_t> breaks_after;
};
TORCH_MODULE(Net);

enum class Update { kFusedAdamW, kAdamW, kAdagrad, kRmsprop, kSgd, kLion };

struct Case {
  ShardStage stage = ShardStage::kNone;
  bool is_bf16 = false;
  bool has_masters = false;
  bool again = false;
  bool has_unused = false;
  Update update = Update::kFusedAdamW;
  int64_t window = 1;
  bool syncs_each = false;
  bool clips = false;
  bool reduces_bf16 = false;
  bool ignores = false;
  int replicas = 1;
};

AcceleratorOptions with(AcceleratorOptions options, const Case& c) {
  options.cpu = true;
  options.ddp.find_unused_parameters = c.has_unused;
  options.shard = {.stage = c.stage, .min_unit_numbers = 1};
  options.parallelism.replicate = c.stage == ShardStage::kNone ? 0 : c.replicas;
  if (c.reduces_bf16) {
    options.shard.reduce_dtype = Precision::kBf16;
  }
  if (c.ignores) {
    options.shard.ignored = {"norm", "layers.1", "layers.3.up"};
  }
  options.accumulation.num_steps = c.window;
  options.accumulation.sync_each_batch = c.syncs_each;
  options.master_weights = c.has_masters;
  if (c.is_bf16) {
    options.mixed_precision = Precision::kBf16;
  }
  return options;
}

Tensor tokens_of(int rank, int step) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(100 * rank + step));
  return torch::randint(kWords, {5}, generator);
}

template <class Model>
Tensor loss_of(Model& net, int rank, int step, bool again = false) {
  const auto tokens = tokens_of(rank, step);
  return torch::nn::functional::cross_entropy(
      net(tokens, again), tokens.roll(1));
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(
    Net& net,
    Update update = Update::kFusedAdamW) {
  std::vector<Tensor> trained;
  std::set<const void*> seen;
  for (const auto& p : net->parameters()) {
    if (p.requires_grad() && seen.insert(p.unsafeGetTensorImpl()).second) {
      trained.push_back(p);
    }
  }
  switch (update) {
    case Update::kAdamW:
      return std::make_unique<torch::optim::AdamW>(
          trained, torch::optim::AdamWOptions(0.01));
    case Update::kAdagrad:
      return std::make_unique<torch::optim::Adagrad>(
          trained,
          torch::optim::AdagradOptions(0.05)
              .lr_decay(0.1)
              .initial_accumulator_value(0.2));
    case Update::kRmsprop:
      return std::make_unique<torch::optim::RMSprop>(
          trained,
          torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true));
    case Update::kSgd:
      return std::make_unique<optim::SGD>(
          trained, optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
    case Update::kLion:
      return std::make_unique<optim::Lion>(
          trained, optim::LionOptions{.lr = 0.01});
    default:
      return std::make_unique<optim::AdamW>(
          trained, optim::AdamWOptions{.lr = 0.01});
  }
}

/// As in a sharded model: tied ones once.
std::vector<Tensor> each_once(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> each;
  std::set<const void*> seen;
  for (const auto& p : parameters) {
    if (seen.insert(p.unsafeGetTensorImpl()).second) {
      each.push_back(p);
    }
  }
  return each;
}

/// All weights one after the other.
template <class Model>
Tensor weights_of(Model& model, bool is_sharded) {
  std::vector<Tensor> flat;
  if (is_sharded) {
    for (const auto& p : model.engine().whole_parameters(true)) {
      flat.push_back(p.flatten());
    }
  } else {
    for (const auto& p : each_once(model->parameters())) {
      flat.push_back(model.engine().trained(p).detach().flatten());
    }
  }
  return torch::cat(flat);
}

Tensor train(const AcceleratorOptions& base, const Case& c, int num_steps = 4) {
  Accelerator accelerator(with(base, c));
  Net model(c.has_unused);
  auto sgd = optimizer_of(model, c.update);
  auto [net, opt] = accelerator.prepare(model, *sgd);
  const int rank = accelerator.process_index();
  for (int step = 0; step < num_steps; ++step) {
    const auto window = accelerator.accumulate(net);
    accelerator.backward(loss_of(net, rank, step, c.again));
    if (c.clips) {
      accelerator.clip_grad_norm_(net.parameters(), 0.1);
    }
    opt.step();
    opt.zero_grad();
  }
  Tensor seen;
  {
    const torch::NoGradGuard no_grad;
    net.eval();
    seen = net(tokens_of(7, 7), false).flatten().to(torch::kFloat);
  }
  return torch::cat({weights_of(net, c.stage != ShardStage::kNone), seen});
}

std::vector<Case> cases() {
  return {
      {},
      {.again = true},
      {.has_unused = true},
      {.update = Update::kAdamW},
      {.update = Update::kAdagrad},
      {.update = Update::kRmsprop},
      {.update = Update::kSgd},
      {.update = Update::kLion},
      {.is_bf16 = true},
      {.is_bf16 = true, .again = true},
      {.window = 2},
      {.window = 2, .ignores = true},
  };
}

/// How many elements differ, and by how much; empty if none does.
std::string differences(const Tensor& a, const Tensor& b) {
  const auto num = (a != b).sum().item<int64_t>();
  return num == 0 ? std::string()
                  : std::to_string(num) + " of " + std::to_string(a.numel()) +
                        " by up to " +
                        std::to_string((a - b).abs().max().item<double>());
}

const RankBodyRegistration kEqual(
    "equals ddp",
    [](const AcceleratorOptions& options) {
      std::string problems;
      for (auto c : cases()) {
        const auto expected = train(options, c);
        for (const auto stage :
             {ShardStage::kOptimizer,
              ShardStage::kGradients,
              ShardStage::kParameters}) {
          c.stage = stage;
          const auto text = differences(train(options, c), expected);
          if (!text.empty()) {
            problems += "stage " + std::to_string(static_cast<int>(stage)) +
                        " bf16 " + std::to_string(c.is_bf16) + " again " +
                        std::to_string(c.again) + " unused " +
                        std::to_string(c.has_unused) + " window " +
                        std::to_string(c.window) + " update " +
                        std::to_string(static_cast<int>(c.update)) +
                        " ignored " + std::to_string(c.ignores) + ": " + text +
                        "\n";
          }
        }
      }
      return problems;
    });

class ShardedRanks : public ::testing::TestWithParam<RankKind> {};
INSTANTIATE_TEST_SUITE_P(
    Kinds,
    ShardedRanks,
    ::testing::Values(RankKind::kThreads, RankKind::kProcesses));

TEST_P(ShardedRanks, EqualDdpBitForBitOnTwo) {
  EXPECT_THAT(run_body(GetParam(), 2, "equals ddp"), Each(IsEmpty()));
}

const Case kNear[] = {
    {},
    {.window = 2},
    {.window = 2, .syncs_each = true},
    {.clips = true},
    {.clips = true, .ignores = true},
    {.reduces_bf16 = true},
    {.clips = true, .replicas = 2},
    {.reduces_bf16 = true, .ignores = true, .replicas = 2},
    {.is_bf16 = true, .has_masters = true}};

TEST(Sharded, IsNearDdpOnMoreRanksAndWithOtherOrdersOfSums) {
  for (const int n : {3, 4, 8}) {
    if (n > 4 && !is_long_run()) {
      break;
    }
    for (auto c : kNear) {
      if (n % c.replicas != 0) {
        continue;
      }
      run_ranks(n, [&](ProcessGroup group) {
        Case own = c;
        const auto expected = train({.process_group = group}, own);
        for (const auto stage :
             {ShardStage::kGradients, ShardStage::kParameters}) {
          own.stage = stage;
          const auto weights = train({.process_group = group}, own);
          // AdamW turns a gradient that rounds to zero into a step. bf16
          // outputs, which come last, are too coarse to compare.
          const bool is_coarse = c.has_masters || c.reduces_bf16;
          const double bound = is_coarse ? 0.05 : 2e-4;
          const auto size = weights.numel() - (is_coarse ? 5 * kWords : 0);
          const auto off = (weights - expected).slice(0, 0, size);
          EXPECT_LT(off.abs().max().item<double>(), bound)
              << n << " ranks, stage " << static_cast<int>(stage);
        }
      });
    }
  }
}

std::vector<Tensor> parameters_of(Net& net) {
  std::vector<Tensor> parameters;
  std::set<const void*> seen;
  for (const auto& p : net->parameters()) {
    if (seen.insert(p.unsafeGetTensorImpl()).second) {
      parameters.push_back(p);
    }
  }
  return parameters;
}

/// Steps of SGD by hand on fp32 master weights: the model reads them as `used`,
/// and ranks sum gradients as `reduced`.
Tensor train_by_hand(
    const ProcessGroup& group,
    at::ScalarType used,
    at::ScalarType reduced,
    int num_steps,
    double rate) {
  Net net;
  auto parameters = parameters_of(net);
  std::vector<Tensor> masters;
  for (const auto& p : parameters) {
    masters.push_back(p.detach().clone());
  }
  for (int step = 0; step < num_steps; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad().reset();
      parameters[i].set_data(masters[i].to(used, false, /*copy=*/true));
    }
    const auto tokens = tokens_of(group.rank(), step);
    torch::nn::functional::cross_entropy(
        net(tokens, false).to(torch::kFloat), tokens.roll(1))
        .backward();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].requires_grad()) {
        continue;
      }
      const auto rows = group.all_gather(parameters[i].grad().to(reduced));
      const auto sum = rows.to(torch::kFloat).sum(0).to(reduced);
      masters[i].add_(sum.to(torch::kFloat) / group.world_size(), -rate);
    }
  }
  for (auto& master : masters) {
    master = master.flatten();
  }
  return torch::cat(masters);
}

TEST(Sharded, CommunicatesBf16AndTrainsInFp32) {
  run_ranks(2, [](ProcessGroup group) {
    for (const bool gathers_bf16 : {false, true}) {
      for (const auto stage :
           {ShardStage::kOptimizer,
            ShardStage::kGradients,
            ShardStage::kParameters}) {
        Accelerator accelerator(with(
            {.process_group = group},
            {.stage = stage,
             .is_bf16 = gathers_bf16,
             .has_masters = gathers_bf16,
             .reduces_bf16 = !gathers_bf16}));
        Net model;
        const double rate = 0.05;
        std::vector<Tensor> trained;
        for (const auto& p : parameters_of(model)) {
          if (p.requires_grad()) {
            trained.push_back(p);
          }
        }
        torch::optim::SGD sgd(trained, rate);
        auto [net, opt] = accelerator.prepare(model, sgd);
        for (int step = 0; step < 3; ++step) {
          accelerator.backward(loss_of(net, group.rank(), step));
          opt.step();
          opt.zero_grad();
        }
        const auto expected = train_by_hand(
            group,
            gathers_bf16 ? torch::kBFloat16 : torch::kFloat,
            gathers_bf16 ? torch::kFloat : torch::kBFloat16,
            3,
            rate);
        EXPECT_EQ(differences(weights_of(net, true), expected), "")
            << "stage " << static_cast<int>(stage) << ", bf16 gathers "
            << gathers_bf16;
      }
    }
  });
}

TEST(Sharded, ShardsEachReplicaOverItsOwnRanks) {
  run_ranks(4, [](ProcessGroup group) {
    for (const int replicas : {1, 2, 4}) {
      Accelerator accelerator(with(
          {.process_group = group},
          {.stage = ShardStage::kParameters, .replicas = replicas}));
      Net model;
      auto net = accelerator.prepare(model);
      auto num_own = torch::zeros({1}, torch::kLong);
      int64_t num_all = 0;
      for (const auto& p : parameters_of(model)) {
        num_own += net.engine().trained(p).numel();
        num_all += p.numel();
      }
      group.all_reduce(num_own, ReduceOp::kSum);
      EXPECT_EQ(num_own.item<int64_t>(), replicas * num_all);
    }
    auto options = with(
        {.process_group = group},
        {.stage = ShardStage::kParameters, .replicas = 3});
    EXPECT_THAT(
        [&] { Accelerator{options}; },
        ThrowsMessage<ConfigError>(
            HasSubstr("replicate 3 x shard any needs a multiple of 3 ranks")));
  });
}

TEST(Sharded, RejectsUnknownStages) {
  AcceleratorOptions options{.cpu = true};
  options.shard.stage = static_cast<ShardStage>(4);
  EXPECT_THAT(
      [&] { Accelerator{options}; },
      ThrowsMessage<ConfigError>(
          HasSubstr("stage is 4. Use a stage from 0 to 3")));
  options.shard = {};
  options.parallelism.shard = 2;
  EXPECT_THAT(
      [&] { Accelerator{options}; },
      ThrowsMessage<ConfigError>(
          HasSubstr("shard size of 2, but nothing is sharded. Set .shard")));
}

TEST(Sharded, RefusesDimensionsThatNoEngineServes) {
  const std::pair<const char*, MeshSizes> unserved[] = {
      {"pipeline", {.pipeline = 2}},
      {"context", {.context = 2}},
      {"sequence", {.sequence = 2}}};
  for (const auto& [name, sizes] : unserved) {
    const AcceleratorOptions options{.cpu = true, .parallelism = sizes};
    EXPECT_THAT(
        [&] { Accelerator{options}; },
        ThrowsMessage<ConfigError>(HasSubstr(
            std::string("a ") + name + " size of 2, which is not supported")));
  }
}

TEST(Sharded, LeavesIgnoredParametersWhole) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(with(
        {.process_group = group},
        {.stage = ShardStage::kParameters, .ignores = true}));
    Net model;
    auto net = accelerator.prepare(model);
    for (const auto& item : model->named_parameters()) {
      const bool is_whole = item.key().starts_with("norm") ||
                            item.key().starts_with("layers.1") ||
                            item.key().starts_with("layers.3.up");
      const auto& engine = net.engine();
      EXPECT_EQ(engine.pieces(item.value()).has_value(), !is_whole)
          << item.key();
      EXPECT_EQ(engine.trained(item.value()).is_same(item.value()), is_whole)
          << item.key();
    }
    accelerator.backward(loss_of(net, group.rank(), 0));
    EXPECT_TRUE(
        torch::isfinite(model->norm->weight.grad().norm()).item<bool>());
  });
}

/// Counts the bytes in use and their maximum.
struct CountingAllocator final : c10::Allocator {
  struct Held {
    CountingAllocator* owner;
    c10::DataPtr memory;
    size_t size;
  };
  c10::DataPtr allocate(size_t size) override {
    now += size;
    peak = std::max(peak, now.load());
    auto memory = c10::GetAllocator(c10::kCPU)->allocate(size);
    void* data = memory.get();
    return {
        data,
        new Held{this, std::move(memory), size},
        [](void* held) {
          auto* own = static_cast<Held*>(held);
          own->owner->now -= own->size;
          delete own;
        },
        c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
  /// A thread of the backend may release memory after the operation.
  void wait_for(size_t most) const {
    while (now > most) {
      std::this_thread::yield();
    }
  }
  std::atomic<size_t> now = 0;
  size_t peak = 0;
};

TEST(Sharded, HoldsShardsAtRestAndTwoUnitsInAStep) {
  for (const bool is_bf16 : {false, true}) {
    run_ranks(2, [is_bf16](ProcessGroup group) {
      CountingAllocator parameters;
      CountingAllocator gradients;
      AcceleratorOptions options = with(
          {.process_group = group},
          {.stage = ShardStage::kParameters,
           .is_bf16 = is_bf16,
           .has_masters = is_bf16});
      options.memory = {.parameters = &parameters, .gradients = &gradients};
      Accelerator accelerator(options);
      Net model;
      auto adamw = optimizer_of(model);
      auto [net, opt] = accelerator.prepare(model, *adamw);
      size_t all = 0;
      size_t largest = 0;
      const auto& units = net.engine().layout().units();
      ASSERT_EQ(units.size(), 6u); // Four blocks, one in two; the rest.
      for (const auto& unit : units) {
        const auto granule = 64 * 2;
        const auto size = static_cast<size_t>(
            (unit.num_elements + granule - 1) / granule * granule * 4);
        all += size;
        largest = std::max(largest, size);
      }
      // What is gathered; shards are fp32.
      const size_t unit = is_bf16 ? largest / 2 : largest;
      parameters.wait_for(all / 2); // what was broadcast
      EXPECT_EQ(parameters.now, all / 2);
      for (int step = 0; step < 3; ++step) {
        parameters.peak = parameters.now;
        gradients.peak = gradients.now;
        accelerator.backward(loss_of(net, group.rank(), step));
        EXPECT_EQ(parameters.now, all / 2);
        EXPECT_GT(parameters.peak, all / 2);
        EXPECT_LE(parameters.peak, all / 2 + 2 * unit);
        // Shards of gradients, and units being sent.
        gradients.wait_for(all / 2);
        EXPECT_LE(gradients.peak, all / 2 + 3 * largest);
        opt.step();
        opt.zero_grad();
        gradients.wait_for(0);
        EXPECT_EQ(parameters.now, all / 2);
      }
    });
  }
}

TEST(Sharded, FindsNanInTheLargestGradient) {
  for (const int owner : {0, 1}) {
    run_ranks(2, [&](ProcessGroup group) {
      Accelerator accelerator(
          {.cpu = true,
           .shard = {.stage = ShardStage::kGradients},
           .process_group = group});
      torch::nn::Linear model(64, 4);
      auto net = accelerator.prepare(model);
      auto x = torch::ones({1, 64});
      accelerator.backward(net(x).sum());
      // From one rank's shard only.
      const auto weight = model->weight;
      const auto& engine = net.engine();
      auto own = engine.trained(weight).grad();
      if (group.rank() == owner) {
        own[0] = std::nan("");
      }
      const auto norm = accelerator.clip_grad_norm_(
          model->parameters(), 1, std::numeric_limits<double>::infinity());
      EXPECT_TRUE(std::isnan(norm.item<double>())) << owner;
    });
  }
}

/// What one of four ranks generates.
struct Question {
  Tensor prompt;
  models::GenerateOptions options;
};
Question question_of(int rank) {
  constexpr int64_t kNumNew[] = {2, 9, 5, 1};
  return {
      (torch::arange(2 * (rank + 1)) * 7 + rank).view({2, -1}) % 38 + 1,
      {.max_new_tokens = kNumNew[rank],
       .do_sample = rank >= 1,
       .generator = at::make_generator<at::CPUGeneratorImpl>(rank),
       .use_cache = rank != 2}};
}

// Different prompts that end at different lengths, between steps of training.
// Expected: the same model on one process.
TEST(Sharded, GeneratesWhatOneProcessGenerates) {
  struct Case {
    const char* config;
    int num_ranks, replicas;
  };
  constexpr const char* kGpt2 =
      R"({"model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_head": 2,
          "n_layer": 2, "n_positions": 24, "initializer_range": 0.3,
          "eos_token_id": [3, 8, 11, 19, 25, 38], "pad_token_id": 0,
          "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0})";
  constexpr const char* kLlama =
      R"({"model_type": "llama", "vocab_size": 40, "hidden_size": 16,
          "intermediate_size": 24, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 1,
          "initializer_range": 0.3})";
  for (const auto& [config, n, replicas] :
       {Case{kGpt2, 2, 1}, Case{kLlama, 4, 1}, Case{kGpt2, 4, 2}}) {
    using Model = std::shared_ptr<models::CausalLanguageModel>;
    const auto make = [text = config] {
      torch::manual_seed(1);
      return models::AutoModelForCausalLM::from_config(
          models::ModelConfig::parse(text));
    };
    const auto answers = [](Accelerator& accelerator, Model model, auto ranks) {
      torch::optim::SGD sgd(model->parameters(), 0.1);
      auto [net, opt] = accelerator.prepare(model, sgd);
      std::vector<Tensor> answers;
      for (int step = 0; step < 3; ++step) {
        for (const int rank : ranks) {
          const auto question = question_of(rank);
          answers.push_back(net->generate(question.prompt, question.options));
        }
        const auto ids = torch::arange(step, step + 6).view({1, 6});
        accelerator.backward(
            net(models::ModelInputs{.input_ids = ids, .labels = ids}).loss);
        opt.step();
        opt.zero_grad();
      }
      return answers;
    };
    std::vector<int> all(size_t(n), 0);
    std::iota(all.begin(), all.end(), 0);
    Accelerator alone({.cpu = true});
    const auto expected = answers(alone, make(), all);
    std::vector<Model> models;
    for (int rank = 0; rank < n; ++rank) {
      models.push_back(make());
    }
    run_ranks(n, [&, n = n, replicas = replicas](ProcessGroup group) {
      AcceleratorOptions options{.cpu = true, .process_group = group};
      options.shard = {.stage = ShardStage::kParameters, .min_unit_numbers = 1};
      options.parallelism.replicate = replicas;
      Accelerator accelerator(options);
      const auto rank = group.rank();
      const auto found = answers(
          accelerator, models.at(size_t(rank)), std::vector<int>{int(rank)});
      for (size_t step = 0; step < found.size(); ++step) {
        const auto& wanted = expected.at(step * size_t(n) + size_t(rank));
        EXPECT_TRUE(torch::equal(found[step], wanted))
            << n << " ranks, rank " << rank << ", step " << step << ": "
            << found[step] << " instead of " << wanted;
      }
    });
  }
}

// Inside another module: called from its forward, and from outside.
TEST(Sharded, GeneratesAsAPartOfAnotherModel) {
  struct Writer : torch::nn::Module {
    Writer() {
      torch::manual_seed(1);
      text =
          models::AutoModelForCausalLM::from_config(models::ModelConfig::parse(
              R"({"model_type": "gpt2", "vocab_size": 40, "n_embd": 16,
                  "n_head": 2, "n_layer": 2, "n_positions": 24,
                  "initializer_range": 0.3, "attn_pdrop": 0, "embd_pdrop": 0,
                  "resid_pdrop": 0})"));
      register_module("text", text);
    }
    Tensor forward(int rank) {
      const auto question = question_of(rank);
      const auto ids = text->generate(question.prompt, question.options);
      const models::ModelInputs batch{.input_ids = ids, .labels = ids};
      return text->forward(batch).loss;
    }
    std::shared_ptr<models::CausalLanguageModel> text;
  };
  std::vector<std::shared_ptr<Writer>> writers;
  std::vector<Tensor> expected;
  for (const int rank : {0, 1}) {
    writers.push_back(std::make_shared<Writer>());
    expected.push_back(writers.back()->forward(rank));
  }
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator(
        with({.process_group = group}, {.stage = ShardStage::kParameters}));
    const auto rank = static_cast<int>(group.rank());
    auto net = accelerator.prepare(writers.at(size_t(rank)));
    for (int step = 0; step < 2; ++step) {
      const auto question = question_of(1 - rank);
      net->text->generate(question.prompt, question.options);
      const auto loss = net(rank);
      EXPECT_TRUE(torch::equal(loss, expected.at(size_t(rank))));
      accelerator.backward(loss);
    }
  });
}

TEST(Sharded, GenerateIsCollective) {
  const auto make = [] {
    return models::AutoModelForCausalLM::from_config(models::ModelConfig::parse(
        R"({"model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_head": 2,
            "n_layer": 2, "n_positions": 24})"));
  };
  const std::vector models{make(), make()};
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator(
        with({.process_group = group}, {.stage = ShardStage::kParameters}));
    auto net = accelerator.prepare(models.at(size_t(group.rank())));
    const auto generate = [&] {
      net->generate(torch::ones({1, 2}, at::kLong));
    };
    if (group.rank() == 0) {
      EXPECT_THROW(generate(), MismatchError);
    } else {
      EXPECT_THROW(accelerator.wait_for_everyone(), MismatchError);
    }
    EXPECT_NO_THROW(generate());
  });
}

TEST(Sharded, RejectsInvalidUse) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        with({.process_group = group}, {.stage = ShardStage::kParameters}));
    Net model;
    auto adamw = optimizer_of(model);
    auto [net, opt] = accelerator.prepare(model, *adamw);
    const auto outside = HasSubstr("outside of the prepared model's forward");
    EXPECT_THAT(
        [&] { model->words->weight.norm(); },
        ThrowsMessage<UsageError>(AllOf(HasSubstr("[shard]"), outside)));
    EXPECT_THAT(
        [&] { model->forward(tokens_of(0, 0), false); },
        ThrowsMessage<UsageError>(outside));
    EXPECT_THAT(
        [&] { model->words->clone(); }, ThrowsMessage<UsageError>(outside));
    EXPECT_THAT(
        [&] { accelerator.check_ranks_equal(net); },
        ThrowsMessage<UsageError>(outside));
    EXPECT_THAT(
        [&] {
          const torch::NoGradGuard no_grad;
          model->words->weight.mul_(2);
        },
        ThrowsMessage<UsageError>(HasSubstr("aten::mul_ would write to")));
    TempDir folder;
    EXPECT_THAT(
        [&] { torch::save(model, (folder.path() / "x.pt").string()); },
        ThrowsMessage<c10::Error>(HasSubstr("save them with save_model()")));
    EXPECT_THAT(
        [&] { LocalSGD(accelerator, net, 2); },
        ThrowsMessage<UsageError>(HasSubstr("[LocalSGD]")));
    EXPECT_THAT(
        [&] { std::ignore = accelerator.join_uneven_inputs(net); },
        ThrowsMessage<UsageError>(HasSubstr("different number of batches")));
    accelerator.backward(loss_of(net, group.rank(), 0));
    EXPECT_THAT(
        [&] { torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0); },
        ThrowsMessage<UsageError>(
            HasSubstr("clip_grad_norm_() and step with")));
    torch::optim::LBFGS lbfgs(model->parameters());
    EXPECT_THAT(
        [&] { accelerator.prepare(lbfgs); },
        ThrowsMessage<UsageError>(HasSubstr("LBFGS needs a closure")));
    optim::Adafactor adafactor(std::vector<Tensor>{model->words->weight}, {});
    EXPECT_THAT(
        [&] { accelerator.prepare(adafactor); },
        ThrowsMessage<UsageError>(HasSubstr("whole matrices")));
  });
}

// As torch on one process: gradients that have arrived are kept, and the others
// come with the next micro-batches.
TEST(Sharded, KeepsGradientsThatArrivedBeforeABackwardThrew) {
  constexpr int kSteps = 3;
  const auto breaks_at = [](Net& model, bool breaks) {
    model->breaks_after = breaks ? std::optional<int64_t>(1) : std::nullopt;
  };
  for (int broken = 0; broken < kSteps; ++broken) {
    Net whole;
    const auto sgd = optimizer_of(whole, Update::kSgd);
    for (int step = 0; step < 2 * kSteps; ++step) {
      breaks_at(whole, step == broken);
      for (int rank = 0; rank < 2; ++rank) {
        const auto loss = loss_of(whole, rank, step) / (2 * kSteps);
        if (step == broken) {
          EXPECT_THROW(loss.backward(), std::domain_error);
        } else {
          loss.backward();
        }
      }
      if (step % kSteps == kSteps - 1 && step != broken) {
        sgd->step();
        sgd->zero_grad();
      }
    }
    std::vector<Tensor> flat;
    for (const auto& p : each_once(whole->parameters())) {
      flat.push_back(p.detach().flatten());
    }
    const auto expected = torch::cat(flat);
    run_ranks(2, [&](ProcessGroup group) {
      for (const auto& c : std::vector<Case>{
               {.stage = ShardStage::kNone},
               {.stage = ShardStage::kOptimizer},
               {.stage = ShardStage::kGradients},
               {.stage = ShardStage::kParameters},
               {.stage = ShardStage::kGradients, .ignores = true}}) {
        auto options = with({.process_group = group}, c);
        options.accumulation.num_steps = kSteps;
        Accelerator accelerator(options);
        Net model;
        const auto own = optimizer_of(model, Update::kSgd);
        auto [net, opt] = accelerator.prepare(model, *own);
        for (int step = 0; step < 2 * kSteps; ++step) {
          breaks_at(model, step == broken);
          const auto guard = accelerator.accumulate(net);
          const auto loss = loss_of(net, group.rank(), step);
          if (step == broken) {
            EXPECT_THROW(accelerator.backward(loss), std::domain_error);
            continue;
          }
          accelerator.backward(loss);
          opt.step();
          opt.zero_grad();
        }
        EXPECT_TRUE(torch::allclose(
            weights_of(net, c.stage != ShardStage::kNone),
            expected,
            1e-5,
            1e-6))
            << "stage " << static_cast<int>(c.stage) << ", broken " << broken;
      }
    });
  }
}

// DDP would accept them, but each rank would train other weights.
TEST(Sharded, RefusesRawBackwardAndMemoryOfTheUsersInEveryStage) {
  run_ranks(2, [](ProcessGroup group) {
    for (const auto stage :
         {ShardStage::kOptimizer,
          ShardStage::kGradients,
          ShardStage::kParameters}) {
      Accelerator accelerator(with({.process_group = group}, {.stage = stage}));
      Net model;
      auto adamw = optimizer_of(model);
      auto [net, opt] = accelerator.prepare(model, *adamw);
      EXPECT_THAT(
          [&] { loss_of(net, group.rank(), 0).backward(); },
          Throws<std::runtime_error>(Property(
              &std::exception::what,
              stage == ShardStage::kParameters
                  ? HasSubstr("outside of the prepared model's forward")
                  : HasSubstr("Call accelerator.backward(loss)"))));
      // Training continues.
      accelerator.backward(loss_of(net, group.rank(), 0));
      opt.step();
      opt.zero_grad();
      const auto& weight = model->words->weight;
      weight.set_data(torch::zeros(weight.sizes()));
      EXPECT_THAT(
          [&] { loss_of(net, group.rank(), 1); },
          ThrowsMessage<UsageError>(AllOf(
              HasSubstr("'head'"), HasSubstr("was moved to new memory"))));
    }
  });
}

TEST(Sharded, ForgetsAnOptimizerThatCannotBePrepared) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        with({.process_group = group}, {.stage = ShardStage::kGradients}));
    Net model;
    auto stepped = optimizer_of(model);
    for (auto& parameter : model->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    stepped->step();
    auto net = accelerator.prepare(model);
    EXPECT_THAT(
        [&] { accelerator.prepare(*stepped); },
        ThrowsMessage<UsageError>(HasSubstr("has state for")));
    Net other;
    auto adamw = optimizer_of(other);
    auto [prepared, opt] = accelerator.prepare(other, *adamw);
    accelerator.backward(loss_of(prepared, group.rank(), 0));
    opt.step();
  });
}

TEST(Sharded, RefusesOptionsAndModelsThatDoNotFit) {
  run_ranks(2, [](ProcessGroup group) {
    auto options =
        with({.process_group = group}, {.stage = ShardStage::kGradients});
    options.shard.units = {"layers.0", "lairs.1"};
    EXPECT_THAT(
        [&] { Accelerator(options).prepare(Net()); },
        ThrowsMessage<UsageError>(
            HasSubstr("The shard unit 'lairs.1' is not a module")));
    options.shard = {.stage = ShardStage::kGradients, .ignored = {"lairs"}};
    EXPECT_THAT(
        [&] { Accelerator(options).prepare(Net()); },
        ThrowsMessage<UsageError>(
            HasSubstr("The ignored module 'lairs' is not a module")));
    options.shard = {
        .stage = ShardStage::kGradients, .reduce_dtype = Precision::kFp16};
    EXPECT_THAT(
        [&] { Accelerator(options).prepare(Net()); },
        ThrowsMessage<UsageError>(HasSubstr("fp16 as reduce_dtype")));
    options.shard = {.stage = ShardStage::kParameters, .prefetch = 0};
    EXPECT_THAT(
        [&] { Accelerator(options).prepare(Net()); },
        ThrowsMessage<UsageError>(HasSubstr("prefetch 0")));
    options.shard = {.stage = ShardStage::kParameters};
    EXPECT_THAT(
        [&] {
          Accelerator(options).prepare(torch::nn::Embedding(
              torch::nn::EmbeddingOptions(4, 4).sparse(true)));
        },
        ThrowsMessage<UsageError>(HasSubstr("sparse gradients")));
  });
}

TEST(Sharded, ChecksOptionsOfOneProcessToo) {
  AcceleratorOptions options;
  options.cpu = true;
  const auto refusal = [&](const char* text) {
    EXPECT_THAT(
        [&] { Accelerator(options).prepare(Net()); },
        ThrowsMessage<UsageError>(HasSubstr(text)));
  };
  options.shard = {.stage = ShardStage::kParameters, .units = {"lairs.1"}};
  refusal("The shard unit 'lairs.1' is not a module");
  options.shard = {.stage = ShardStage::kOptimizer, .min_unit_numbers = -1};
  refusal("min_unit_numbers -1");
  options.shard = {.stage = ShardStage::kParameters, .ignored = {"layers.1"}};
  options.mixed_precision = Precision::kBf16;
  options.master_weights = true;
  EXPECT_THAT(
      [&] { Accelerator{options}; },
      ThrowsMessage<ConfigError>(HasSubstr("left unsharded")));
}

TEST(Sharded, ForgetsGradientsWithTheModulesOwnZeroGrad) {
  run_ranks(2, [](ProcessGroup group) {
    const auto norm = [&](bool through_module) {
      Accelerator accelerator(
          with({.process_group = group}, {.stage = ShardStage::kGradients}));
      Net model;
      auto adamw = optimizer_of(model);
      auto [net, opt] = accelerator.prepare(model, *adamw);
      accelerator.backward(loss_of(net, group.rank(), 0));
      through_module ? model->zero_grad() : opt.zero_grad();
      accelerator.backward(loss_of(net, group.rank(), 1));
      return accelerator.clip_grad_norm_(net.parameters(), 100.0)
          .item<double>();
    };
    EXPECT_EQ(norm(true), norm(false));
  });
}

TEST(Sharded, NamesABranchThatOneRankTakes) {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator(
        with({.process_group = group}, {.stage = ShardStage::kParameters}));
    Net model;
    auto net = accelerator.prepare(model);
    const auto tokens = tokens_of(0, 0);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(net(tokens, false).sum());
    }
    try {
      // Rank 1 skips a block.
      accelerator.backward(net(tokens, false, 4 - group.rank()).sum());
    } catch (const MismatchError& error) {
      const std::lock_guard lock(mutex);
      messages.push_back(error.what());
    }
    // All skip it: the plan is dropped, and the step is right.
    net(tokens, false, 3).sum();
    accelerator.backward(net(tokens, false, 3).sum());
  });
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_THAT(messages, Each(HasSubstr("gather of unit 'layers.")));
}

// The others gather what all have agreed on, and so does the rank that left its
// forward: different sizes would abort the process inside Gloo.
TEST(Sharded, NamesAForwardThatOneRankLeft) {
  for (int64_t place = 0; place < 4; ++place) {
    std::atomic<int> num_named = 0;
    run_ranks(2, [&](ProcessGroup group) {
      Accelerator accelerator(
          with({.process_group = group}, {.stage = ShardStage::kParameters}));
      Net model;
      auto net = accelerator.prepare(model);
      const auto tokens = tokens_of(0, 0);
      const auto train = [&] {
        accelerator.backward(net(tokens, false).sum());
      };
      for (int step = 0; step < 3; ++step) {
        train();
      }
      if (group.rank() == 1) {
        model->fails_before = place;
        EXPECT_THROW(net(tokens, false), std::domain_error);
        model->fails_before.reset();
      }
      try {
        train();
      } catch (const MismatchError&) {
        ++num_named;
      }
      train();
    });
    EXPECT_EQ(num_named, 2) << place;
  }
}

// Slices begin at multiples of 64 elements, so that only rank 0 has one here.
TEST(Sharded, ClipsOnRanksWithoutASlice) {
  const auto input_of = [](int rank) {
    auto generator =
        at::detail::createCPUGenerator(static_cast<uint64_t>(rank));
    return torch::randn({4, 4}, generator, torch::kDouble);
  };
  const auto make = [](c10::ScalarType dtype) {
    torch::nn::Linear model(4, 4);
    model->to(dtype);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) {
      parameter.copy_(
          torch::linspace(-1, 1, parameter.numel(), dtype).view_as(parameter));
    }
    return model;
  };
  constexpr int kRanks = 4;
  constexpr double kMaxNorm = 0.01;
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    // The same in one process with PyTorch's own clipping.
    auto plain = make(dtype);
    std::vector<Tensor> inputs;
    for (int rank = 0; rank < kRanks; ++rank) {
      inputs.push_back(input_of(rank).to(dtype));
    }
    plain(torch::cat(inputs)).square().mean().backward();
    const double expected =
        torch::nn::utils::clip_grad_norm_(plain->parameters(), kMaxNorm);
    // Rounding of a sum of a few terms in the model's dtype.
    const double tolerance = dtype == torch::kFloat ? 1e-5 : 1e-13;
    for (const auto stage :
         {ShardStage::kOptimizer,
          ShardStage::kGradients,
          ShardStage::kParameters}) {
      run_ranks(kRanks, [&](ProcessGroup group) {
        Accelerator accelerator(
            with({.process_group = group}, {.stage = stage}));
        auto model = make(dtype);
        torch::optim::SGD sgd(model->parameters(), 1.0);
        auto [net, optimizer] = accelerator.prepare(model, sgd);
        accelerator.backward(
            net(input_of(group.rank()).to(dtype)).square().mean());
        const auto norm =
            accelerator.clip_grad_norm_(net->parameters(), kMaxNorm);
        EXPECT_EQ(norm.scalar_type(), dtype);
        EXPECT_NEAR(norm.item<double>(), expected, tolerance * expected);
        optimizer.step();
        const auto weights = net.engine().whole_parameters(true);
        for (size_t i = 0; i < weights.size(); ++i) {
          const auto right =
              make(dtype)->parameters()[i] - plain->parameters()[i].grad();
          EXPECT_TRUE(torch::allclose(
              weights[i].view_as(right), right, tolerance, tolerance));
        }
      });
    }
  }
}

const RankBodyRegistration kKilledInGather(
    "is killed before a gather",
    [](const AcceleratorOptions& options) {
      Accelerator accelerator(
          with(options, {.stage = ShardStage::kParameters}));
      Net model;
      auto net = accelerator.prepare(model);
      for (int step = 0;; ++step) {
        if (step == 3 && accelerator.process_index() == 1) {
          kill(getpid(), SIGKILL);
        }
        accelerator.backward(loss_of(net, 0, step));
      }
      return std::string();
    });

TEST(Sharded, EndsWhenAPeerIsKilled) {
  const auto result = launch_body(2, "is killed before a gather");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err, HasSubstr("[launch] Rank 1 "));
}

/// Trains two steps, saves, trains two more; or resumes from there.
Tensor train_over_a_stop(
    const ProcessGroup& group,
    Case c,
    const std::filesystem::path& folder,
    bool resumes,
    const std::filesystem::path& weights = {}) {
  c.window = 2;
  Accelerator accelerator(with({.process_group = group}, c));
  Net model;
  auto adamw = optimizer_of(model);
  auto [net, opt] = accelerator.prepare(model, *adamw);
  const auto run = [&](int begin, int end) {
    for (int step = begin; step < end; ++step) {
      const auto window = accelerator.accumulate(net);
      // All ranks see the same data, however many there are.
      accelerator.backward(loss_of(net, 0, step));
      opt.step();
      opt.zero_grad();
    }
  };
  if (resumes) {
    accelerator.load_state(folder);
  } else {
    run(0, 3);
    accelerator.save_state(folder);
  }
  run(3, 6);
  if (!weights.empty()) {
    accelerator.save_model(net, weights);
  }
  const bool is_sharded =
      c.stage != ShardStage::kNone && group.world_size() > 1;
  return weights_of(net, is_sharded);
}

bool is_part_of(const Tensor& part, const Tensor& whole) {
  return (whole.unfold(0, part.numel(), 1) == part).all(1).any().item<bool>();
}

TEST(Sharded, ResumesOnAnyNumberOfRanksAndInAnyStage) {
  struct Resume {
    int from, to;
    ShardStage saved, loaded;
    bool syncs_each = false;
    bool ignored = false;
    int replicas = 1;
  };
  const auto kFull = ShardStage::kParameters;
  for (const auto& r :
       {Resume{2, 2, kFull, kFull},
        Resume{2, 4, kFull, kFull},
        Resume{4, 2, kFull, ShardStage::kOptimizer},
        Resume{2, 1, kFull, kFull},
        Resume{1, 2, kFull, kFull},
        Resume{2, 2, kFull, ShardStage::kNone},
        Resume{2, 2, ShardStage::kGradients, kFull},
        Resume{2, 4, kFull, kFull, true},
        Resume{2, 2, kFull, kFull, false, true},
        Resume{4, 2, kFull, kFull, false, false, 2}}) {
    TempDir folder;
    Tensor expected, resumed;
    const auto body = [&](bool resumes, Tensor& result) {
      return [&, resumes](ProcessGroup group) {
        const auto weights = train_over_a_stop(
            group,
            {.stage = resumes ? r.loaded : r.saved,
             .syncs_each = r.syncs_each,
             .ignores = r.ignored && !resumes,
             .replicas = resumes ? 1 : r.replicas},
            folder.path() / "state",
            resumes,
            folder.path() / (resumes ? "resumed" : "straight"));
        if (group.rank() == 0) {
          result = weights;
        }
      };
    };
    run_ranks(r.from, body(false, expected));
    run_ranks(r.to, body(true, resumed));
    // Equal gradients have the same mean on 1, 2 and 4 ranks.
    EXPECT_EQ(differences(resumed, expected), "") << r.from << " to " << r.to;
    // Whole weights, for anybody.
    const safetensors::File file(
        folder.path() / "resumed" / "model.safetensors");
    const auto view = file.tensor("layers.2.up.weight");
    const auto own = torch::from_blob(
        const_cast<std::byte*>(view.data.data()), {29 * kWidth});
    EXPECT_TRUE(is_part_of(own, resumed));
  }
}

TEST(PrefetchPlan, FollowsThePreviousPassUntilItDiffers) {
  PrefetchPlan plan;
  const auto pass = [&](const std::vector<size_t>& units) {
    plan.begin();
    for (const auto unit : units) {
      plan.use(unit);
    }
  };
  pass({0, 1, 1, 2, 0});
  EXPECT_THAT(plan.coming(2), IsEmpty());
  EXPECT_THAT(plan.recent(2), ElementsAre(0, 2));
  plan.end();
  EXPECT_THAT(plan.coming(2), ElementsAre(0, 1));
  pass({0, 1});
  EXPECT_THAT(plan.coming(2), ElementsAre(2, 0));
  pass({0, 2}); // one is skipped
  EXPECT_THAT(plan.coming(2), ElementsAre(0));
  pass({0, 3}); // one is new
  EXPECT_THAT(plan.coming(2), IsEmpty());
}

} // namespace
} // namespace accelerate::testing
