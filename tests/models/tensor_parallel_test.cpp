// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism computes what one process computes: losses, gradients and
// weights of every model family in float64. One process is torch alone, with
// torch's optimizer, without an Accelerator.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <cmath>

#include "accelerate/accelerate.h"
#include "accelerate/distributed/c10d.h"
#include "accelerate/distributed/local_sgd.h"
#include "accelerate/models.h"
#include "accelerate/training/ema.h"
#include "support/long_run.h"
#include "support/rank_bodies.h"
#include "support/temp_dir.h"
#include "training/comm/backends/backends.h"
#include "training/parallel/engine.h"
#include "training/state/sliced_state.h"

namespace accelerate::testing {
namespace {

using enum TensorSplit;
using models::ModelConfig;
using models::ModelInputs;
using models::PretrainedModel;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

constexpr int kSteps = 5;
constexpr double kRate = 0.01;
constexpr double kMaxNorm = 0.5;
// Sums of float64 in another order, relative to the largest value of a model.
constexpr double kTolerance = 1e-10;

// --- models ------------------------------------------------------------------

enum class Head { kCausal, kMasked, kClassifier };

struct Family {
  const char* name;
  Head head;
  const char* config;
};

// Vocabularies are odd, so ranks have different numbers of rows.
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "vocab_size": 37,
    "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16,
    "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "pad_token_id": 0,
    "initializer_range": 0.3})";
constexpr const char* kLlama = R"({"model_type": "llama", "vocab_size": 37,
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
    "initializer_range": 0.3})";
constexpr const char* kBert = R"({"model_type": "bert", "vocab_size": 37,
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 16,
    "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
    "initializer_range": 0.3})";
constexpr const char* kRoberta = R"({"model_type": "roberta", "vocab_size": 37,
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 16,
    "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
    "initializer_range": 0.3})";
constexpr const char* kDistilBert = R"({"model_type": "distilbert",
    "vocab_size": 37, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12,
    "max_position_embeddings": 16, "dropout": 0, "attention_dropout": 0,
    "seq_classif_dropout": 0, "initializer_range": 0.3})";
constexpr const char* kUntiedDistilBert = R"({"model_type": "distilbert",
    "vocab_size": 37, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 12,
    "max_position_embeddings": 16, "dropout": 0, "attention_dropout": 0,
    "tie_word_embeddings": false, "initializer_range": 0.3})";

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"gpt2", Head::kCausal, kGpt2},
      {"gpt2 classifier", Head::kClassifier, kGpt2},
      {"llama", Head::kCausal, kLlama},
      {"bert", Head::kMasked, kBert},
      {"untied distilbert", Head::kMasked, kUntiedDistilBert},
      {"bert classifier", Head::kClassifier, kBert},
      {"roberta", Head::kMasked, kRoberta},
      {"distilbert", Head::kMasked, kDistilBert}};
  return all;
}

/// The same weights in every call. Not concurrently, because torch's generator
/// draws them.
std::shared_ptr<PretrainedModel> make(const Family& family) {
  torch::manual_seed(7);
  const auto config = ModelConfig::parse(family.config);
  std::shared_ptr<PretrainedModel> model;
  switch (family.head) {
    case Head::kCausal:
      model = models::AutoModelForCausalLM::from_config(config);
      break;
    case Head::kMasked:
      model = models::AutoModelForMaskedLM::from_config(config);
      break;
    case Head::kClassifier:
      model = models::AutoModelForSequenceClassification::from_config(
          config, {.num_labels = 3});
      break;
  }
  model->to(torch::kDouble);
  model->train();
  return model;
}

std::vector<std::shared_ptr<PretrainedModel>> make(
    const Family& family,
    int num_models) {
  std::vector<std::shared_ptr<PretrainedModel>> copies;
  for (int i = 0; i < num_models; ++i) {
    copies.push_back(make(family));
  }
  return copies;
}

constexpr int64_t kBatch = 4;
constexpr int64_t kTokens = 6;

/// The rows of one step of all ranks together.
ModelInputs batch_of(const Family& family, int step) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(step + 1));
  const auto ids =
      torch::randint(2, 37, {kBatch, kTokens}, generator).to(torch::kLong);
  ModelInputs batch{.input_ids = ids, .attention_mask = torch::ones_like(ids)};
  // The same number of tokens of every row counts, so that the mean over all
  // rows is the mean of the means over equal parts.
  batch.attention_mask.narrow(1, kTokens - 1, 1).zero_();
  if (family.head == Head::kClassifier) {
    batch.labels = ids.select(1, 0).remainder(3);
  } else {
    batch.labels = ids.clone();
    batch.labels.narrow(1, kTokens - 2, 2).fill_(-100);
  }
  return batch;
}

ModelInputs rows_of(const ModelInputs& batch, int part, int num_parts) {
  const auto own = [&](const Tensor& x) {
    return x.chunk(num_parts)[static_cast<size_t>(part)];
  };
  return {
      .input_ids = own(batch.input_ids),
      .attention_mask = own(batch.attention_mask),
      .labels = own(batch.labels)};
}

// --- one process -------------------------------------------------------------

struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  /// Of each step.
  std::vector<std::vector<Tensor>> gradients;
  std::vector<Tensor> weights;
};

Trained train_with_torch(const Family& family, int num_steps = kSteps) {
  const auto model = make(family);
  torch::optim::AdamW adamw(
      model->parameters(), torch::optim::AdamWOptions(kRate).weight_decay(0.1));
  Trained result;
  for (int step = 0; step < num_steps; ++step) {
    const auto loss = model->forward(batch_of(family, step)).loss;
    loss.backward();
    result.losses.push_back(loss.item<double>());
    result.gradients.emplace_back();
    for (const auto& parameter : model->parameters()) {
      result.gradients.back().push_back(
          parameter.grad().defined() ? parameter.grad().clone()
                                     : torch::zeros_like(parameter));
    }
    result.norms.push_back(
        torch::nn::utils::clip_grad_norm_(model->parameters(), kMaxNorm));
    adamw.step();
    adamw.zero_grad();
  }
  for (const auto& parameter : model->parameters()) {
    result.weights.push_back(parameter.detach().clone());
  }
  return result;
}

double largest(const std::vector<Tensor>& tensors) {
  double most = 0;
  for (const auto& tensor : tensors) {
    most = std::max(most, tensor.abs().max().item<double>());
  }
  return most;
}

// --- several ranks -----------------------------------------------------------

struct Layout {
  MeshSizes sizes = {};
  ShardStage stage = ShardStage::kNone;
  int64_t accumulation = 1;
  /// Activation checkpointing.
  bool recomputes = false;
};

int num_ranks(const Layout& layout) {
  const auto& sizes = layout.sizes;
  return std::max(sizes.replicate, 1) * std::max(sizes.shard, 1) * sizes.tensor;
}

AcceleratorOptions with(AcceleratorOptions options, const Layout& layout) {
  options.cpu = true;
  options.debug = layout.stage == ShardStage::kNone;
  options.shard.stage = layout.stage;
  options.parallelism = layout.sizes;
  options.accumulation.num_steps = layout.accumulation;
  return options;
}

/// The largest difference from one process, relative to the largest value.
struct Difference {
  double losses = 0;
  double norms = 0;
  double gradients = 0;
  double weights = 0;
  double worst() const { return std::max({losses, norms, gradients, weights}); }
};

/// One rank of a run.
class Training {
 public:
  Training(
      const AcceleratorOptions& options,
      const Layout& layout,
      std::shared_ptr<PretrainedModel> model)
      : layout_(layout),
        model_(std::move(model)),
        accelerator(with(options, layout)),
        adamw_(model_->parameters(), {.lr = kRate, .weight_decay = 0.1}),
        net(accelerator.prepare(model_)),
        optimizer(accelerator.prepare(adamw_)) {}

  void
  train(const Family& family, int begin, int end, const Trained& expected) {
    const auto& mesh = net.engine().mesh();
    const int parts = mesh.size(MeshDimension::kData);
    const int part = mesh.coordinate(MeshDimension::kData);
    for (int step = begin; step < end; ++step) {
      const auto rows = rows_of(batch_of(family, step), part, parts);
      double loss = 0;
      for (int64_t micro = 0; micro < layout_.accumulation; ++micro) {
        const auto guard = accelerator.accumulate(net);
        const auto output = net(rows_of(
            rows,
            static_cast<int>(micro),
            static_cast<int>(layout_.accumulation)));
        accelerator.backward(output.loss);
        loss += output.loss.item<double>() /
                static_cast<double>(layout_.accumulation);
        if (accelerator.sync_gradients()) {
          compare_step(static_cast<size_t>(step), expected);
        }
        optimizer.step();
        optimizer.zero_grad();
      }
      const auto mean = accelerator.reduce(
          torch::full({1}, loss, torch::kDouble), ReduceOp::kMean);
      const auto wanted = expected.losses[static_cast<size_t>(step)];
      note(
          difference.losses,
          std::abs(mean.item<double>() - wanted) / std::abs(wanted));
    }
  }

  void compare_weights(const Trained& expected) {
    const auto wholes = net.engine().whole_parameters(true);
    ASSERT_TRUE(wholes.empty() || wholes.size() == expected.weights.size());
    const double most = largest(expected.weights);
    const auto parameters = model_->parameters();
    for (size_t i = 0; i < expected.weights.size(); ++i) {
      const auto own = wholes.empty() ? parameters[i].detach() : wholes[i];
      ASSERT_EQ(own.sizes(), expected.weights[i].sizes());
      note(
          difference.weights,
          (own - expected.weights[i]).abs().max().item<double>() / most);
    }
  }

 private:
  // NaN is larger than any number.
  static void note(double& worst, double value) {
    worst = std::isnan(value) || value > worst ? value : worst;
    worst = std::isnan(worst) ? INFINITY : worst;
  }

  void compare_step(size_t step, const Trained& expected) {
    const auto& all = expected.gradients[step];
    const double most = largest(all);
    const auto parameters = model_->parameters();
    const auto& engine = net.engine();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto own = engine.gradient(parameters[i]);
      const auto& pieces = engine.pieces(parameters[i]);
      if (!own.defined() || own.numel() == 0) {
        continue;
      }
      const auto wanted =
          pieces ? elements_at(all[i], *pieces) : all[i].flatten();
      ASSERT_EQ(own.numel(), wanted.numel());
      note(
          difference.gradients,
          (own.flatten() - wanted).abs().max().item<double>() / most);
    }
    const double norm =
        accelerator.clip_grad_norm_(model_->parameters(), kMaxNorm)
            .item<double>();
    note(
        difference.norms,
        std::abs(norm - expected.norms[step]) / expected.norms[step]);
  }

  Layout layout_;
  std::shared_ptr<PretrainedModel> model_;

 public:
  Accelerator accelerator;

 private:
  optim::AdamW adamw_;

 public:
  PreparedModel<PretrainedModel> net;
  PreparedOptimizer optimizer;
  Difference difference;
};

/// Trains in threads and returns the worst difference of any rank.
Difference differences(
    const Family& family,
    const Layout& layout,
    const Trained& expected,
    const std::string& backend = Backend::kAuto) {
  const auto copies = make(family, num_ranks(layout));
  std::vector<Difference> all(copies.size());
  run_ranks(
      num_ranks(layout),
      [&](ProcessGroup group) {
        const auto rank = static_cast<size_t>(group.rank());
        copies[rank]->gradient_checkpointing_enable(layout.recomputes);
        Training run({.process_group = group}, layout, copies[rank]);
        run.train(
            family, 0, static_cast<int>(expected.losses.size()), expected);
        run.compare_weights(expected);
        all[rank] = run.difference;
      },
      {.backend = backend});
  Difference worst;
  for (const auto& each : all) {
    worst.losses = std::max(worst.losses, each.losses);
    worst.norms = std::max(worst.norms, each.norms);
    worst.gradients = std::max(worst.gradients, each.gradients);
    worst.weights = std::max(worst.weights, each.weights);
  }
  return worst;
}

void expect_equal(const Difference& difference, const std::string& what) {
  EXPECT_LE(difference.losses, kTolerance) << what;
  EXPECT_LE(difference.norms, kTolerance) << what;
  EXPECT_LE(difference.gradients, kTolerance) << what;
  EXPECT_LE(difference.weights, kTolerance) << what;
}

std::string name_of(const Family& family, const Layout& layout) {
  return std::string(family.name) + ", " + to_text(layout.sizes) + ", stage " +
         std::to_string(static_cast<int>(layout.stage));
}

TEST(TensorParallel, TrainsEveryFamilyAsOneProcess) {
  for (const auto& family : families()) {
    const auto expected = train_with_torch(family);
    for (const Layout& layout :
         {Layout{{.tensor = 2}}, Layout{{.replicate = 2, .tensor = 2}}}) {
      expect_equal(
          differences(family, layout, expected), name_of(family, layout));
    }
  }
}

TEST(TensorParallel, CombinesWithShardingAndAccumulation) {
  std::vector<Layout> layouts = {
      {{.shard = 2, .tensor = 2}, ShardStage::kOptimizer},
      {{.replicate = 1, .shard = 2, .tensor = 2}, ShardStage::kGradients},
      {{.shard = 2, .tensor = 2}, ShardStage::kParameters},
      {{.tensor = 2}, ShardStage::kNone, 2},
      {{.tensor = 2}, ShardStage::kNone, 1, /*recomputes=*/true},
      {{.replicate = 2, .tensor = 2}, ShardStage::kNone, 2}};
  auto tested = std::vector<Family>{families()[0], families()[2]};
  if (is_long_run()) {
    tested = families();
    layouts.push_back(
        {{.replicate = 2, .shard = 2, .tensor = 2}, ShardStage::kOptimizer});
    layouts.push_back({{.shard = 2, .tensor = 2}, ShardStage::kParameters, 2});
  }
  for (const auto& family : tested) {
    const auto expected = train_with_torch(family);
    for (const auto& layout : layouts) {
      expect_equal(
          differences(family, layout, expected), name_of(family, layout));
    }
  }
}

// bf16 has 8 significant bits, and ranks add numbers in another order: 2 % of a
// loss that falls by much more.
TEST(TensorParallel, TrainsMasterWeights) {
  const Family family = families()[2];
  std::vector<double> norms[2];
  const auto losses_with = [&](int tensor) {
    const auto copies = make(family, tensor);
    std::vector<double> losses;
    run_ranks(tensor, [&](ProcessGroup group) {
      Accelerator accelerator(
          {.cpu = true,
           .mixed_precision = Precision::kBf16,
           .master_weights = true,
           .parallelism = {.tensor = tensor},
           .process_group = group});
      const auto& model = copies[static_cast<size_t>(group.rank())];
      model->to(torch::kFloat);
      optim::AdamW adamw(model->parameters(), {.lr = kRate});
      auto [net, optimizer] = accelerator.prepare(model, adamw);
      for (int step = 0; step < 10; ++step) {
        const auto loss = net(batch_of(family, 0)).loss;
        accelerator.backward(loss);
        const auto norm =
            accelerator.clip_grad_norm_(model->parameters(), kMaxNorm);
        optimizer.step();
        optimizer.zero_grad();
        if (group.rank() == 0) {
          losses.push_back(loss.item().toDouble());
          norms[tensor - 1].push_back(norm.item().toDouble());
        }
      }
      EXPECT_EQ(model->parameters()[0].scalar_type(), torch::kBFloat16);
    });
    return losses;
  };
  const auto expected = losses_with(1);
  const auto ours = losses_with(2);
  EXPECT_LT(expected.back(), 0.7 * expected.front());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(ours[i], expected[i], 0.02 * expected.front()) << i;
  }
  // Later, gradients of a small batch depend on the rounding of weights.
  EXPECT_NEAR(norms[1][0], norms[0][0], 0.02 * norms[0][0]);
}

// --- processes ---------------------------------------------------------------

const RankBodyRegistration kTrain(
    "train with tensor parallelism",
    [](const AcceleratorOptions& options) {
      const Family family = families()[2];
      const Layout layout = {{.tensor = 2}};
      const auto expected = train_with_torch(family);
      Training run(options, layout, make(family));
      run.train(family, 0, kSteps, expected);
      run.compare_weights(expected);
      return to_text(torch::tensor({run.difference.worst()}).to(torch::kFloat));
    });

TEST(TensorParallel, TrainsInProcesses) {
  for (const auto& text :
       run_body(RankKind::kProcesses, 2, "train with tensor parallelism")) {
    EXPECT_LE(from_text(text).item<double>(), kTolerance);
  }
}

// Ranks draw different numbers before the forward, as after different data
// augmentation. Dropout of what every rank has must agree nevertheless.
const RankBodyRegistration kDropout(
    "dropout with tensor parallelism",
    [](const AcceleratorOptions& options) {
      auto own = options;
      own.cpu = true;
      own.parallelism = {.tensor = 2};
      Accelerator accelerator(own);
      auto config = ModelConfig::parse(kGpt2);
      config.set("resid_pdrop", 0.3);
      config.set("embd_pdrop", 0.3);
      config.set("attn_pdrop", 0.3);
      torch::manual_seed(1);
      auto model = models::AutoModelForCausalLM::from_config(config);
      model->train();
      auto net = accelerator.prepare(model);
      torch::manual_seed(100 + accelerator.process_index());
      std::string text;
      for (int step = 0; step < 3; ++step) {
        torch::rand({accelerator.process_index() + 1});
        const auto output = net(batch_of(families()[0], step));
        accelerator.backward(output.loss);
        text += to_text(output.loss.detach().reshape({1}));
        text += to_text(model->named_parameters()["transformer.ln_f.weight"]
                            .grad()
                            .clone());
        model->zero_grad();
      }
      return text;
    });

TEST(TensorParallel, DrawsTheSameDropoutOnAllRanks) {
  const auto texts =
      run_body(RankKind::kProcesses, 2, "dropout with tensor parallelism");
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(TensorParallel, RefusesDropoutInThreads) {
  auto config = ModelConfig::parse(kGpt2);
  config.set("resid_pdrop", 0.1);
  const std::vector<std::shared_ptr<PretrainedModel>> copies = {
      models::AutoModelForCausalLM::from_config(config),
      models::AutoModelForCausalLM::from_config(config)};
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator(
        {.cpu = true, .parallelism = {.tensor = 2}, .process_group = group});
    const auto& model = copies[static_cast<size_t>(group.rank())];
    model->train();
    auto net = accelerator.prepare(model);
    const auto batch = batch_of(families()[0], 0);
    EXPECT_THAT(
        [&] { net(batch); },
        ThrowsMessage<UsageError>(HasSubstr("share one random generator")));
    model->eval();
    EXPECT_NO_THROW(net(batch));
  });
}

// --- what is sent ------------------------------------------------------------

/// Gloo, but counts what this thread reduces, and can leave one reduction out.
class CountingBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  static inline std::atomic<int64_t> num_bytes = 0;
  static inline std::atomic<int64_t> num_others = 0;
  static inline thread_local int64_t num_reductions = 0;
  static inline std::atomic<int64_t> left_out = -1;

  explicit CountingBackend(c10::intrusive_ptr<c10d::Backend> gloo)
      : c10d::Backend(gloo->getRank(), gloo->getSize()),
        gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "tensor-count"; }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    for (const auto& tensor : tensors) {
      (tensor.scalar_type() == torch::kDouble ? num_bytes : num_others) +=
          static_cast<int64_t>(tensor.nbytes());
    }
    if (tensors[0].scalar_type() == torch::kDouble &&
        num_reductions++ == left_out) {
      Tensors others = {tensors[0].clone()};
      return gloo_->allreduce(others, options);
    }
    return gloo_->allreduce(tensors, options);
  }
  WorkPtr _allgather_base(
      Tensor& whole,
      Tensor& part,
      const c10d::AllgatherOptions& options) override {
    num_others += static_cast<int64_t>(part.nbytes());
    return gloo_->_allgather_base(whole, part, options);
  }
  WorkPtr allgather(
      std::vector<Tensors>& wholes,
      Tensors& parts,
      const c10d::AllgatherOptions& options) override {
    num_others += static_cast<int64_t>(parts[0].nbytes());
    return gloo_->allgather(wholes, parts, options);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options)
      override {
    return gloo_->broadcast(tensors, options);
  }
  WorkPtr send(Tensors& tensors, int rank, int tag) override {
    return gloo_->send(tensors, rank, tag);
  }
  WorkPtr recv(Tensors& tensors, int rank, int tag) override {
    return gloo_->recv(tensors, rank, tag);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return gloo_->barrier(options);
  }
  void shutdown() override { gloo_->shutdown(); }

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
};

class TensorTraffic : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    register_backend(
        {.name = "tensor-count",
         .devices = {c10::kCPU},
         .available = [] { return true; },
         .make = [](const BackendArguments& arguments)
             -> c10::intrusive_ptr<c10d::Backend> {
           BackendArguments own = arguments;
           own.parent = {};
           own.address = "127.0.0.1";
           return c10::make_intrusive<CountingBackend>(
               find_backend("gloo")->make(own));
         }});
  }
};

// N rows of C channels for the embedding, and per layer for the outputs of
// attention and of the MLP, and for the gradients of their inputs; once for the
// gradient of the head's input. The loss exchanges two sums per row, and a
// maximum, which is sent as an integer.
TEST_F(TensorTraffic, IsThatOfTheClosedForm) {
  const Family family = families()[0];
  const auto copies = make(family, 2);
  constexpr int64_t kCountedSteps = 2;
  run_ranks(
      2,
      [&](ProcessGroup group) {
        Accelerator accelerator(
            {.cpu = true,
             .parallelism = {.tensor = 2},
             .process_group = group});
        const auto& model = copies[static_cast<size_t>(group.rank())];
        optim::AdamW adamw(model->parameters(), {.lr = kRate});
        auto [net, optimizer] = accelerator.prepare(model, adamw);
        for (int step = 0; step < 3 + kCountedSteps; ++step) {
          if (step == 3) {
            accelerator.wait_for_everyone();
            CountingBackend::num_bytes = 0;
            CountingBackend::num_others = 0;
            accelerator.wait_for_everyone();
            CountingBackend::num_others = 0;
          }
          accelerator.backward(net(batch_of(family, step)).loss);
          optimizer.step();
          optimizer.zero_grad();
        }
        accelerator.wait_for_everyone();
      },
      {.backend = "tensor-count"});
  constexpr int64_t kLayers = 2, kChannels = 8;
  constexpr int64_t kN = kBatch * kTokens;
  constexpr int64_t kBytes =
      8 * (kN * kChannels * (1 + 2 * kLayers + 2 * kLayers + 1) + 2 * kN);
  EXPECT_EQ(CountingBackend::num_bytes, 2 * kCountedSteps * kBytes);
  EXPECT_GE(CountingBackend::num_others, 2 * kCountedSteps * 8 * kN);
  EXPECT_LT(CountingBackend::num_others, 2 * kCountedSteps * (8 * kN + 500));
}

// The comparison finds a reduction that is missing: any of one step.
TEST_F(TensorTraffic, IsNeededForTheResult) {
  const Family family = families()[0];
  const auto expected = train_with_torch(family, 1);
  constexpr int kReductionsPerStep = 1 + 2 * 2 + 2 * 2 + 1 + 1;
  for (int left_out = 0; left_out < kReductionsPerStep; ++left_out) {
    CountingBackend::left_out = left_out;
    const auto difference =
        differences(family, {{.tensor = 2}}, expected, "tensor-count");
    EXPECT_GT(difference.worst(), 1e3 * kTolerance) << left_out;
  }
  CountingBackend::left_out = -1;
  expect_equal(
      differences(family, {{.tensor = 2}}, expected, "tensor-count"), "all");
}

// --- checkpoints -------------------------------------------------------------

TEST(TensorParallel, LoadsCheckpointsOfOtherLayouts) {
  const TempDir folder;
  const Family family = families()[0];
  const auto expected = train_with_torch(family);
  const auto halfway = train_with_torch(family, 3);
  const auto initial = make(family)->parameters();
  const auto run_with = [&](const Layout& layout, const auto& work) {
    const auto copies = make(family, num_ranks(layout));
    run_ranks(num_ranks(layout), [&](ProcessGroup group) {
      Training run(
          {.process_group = group},
          layout,
          copies[static_cast<size_t>(group.rank())]);
      const auto ema = std::make_shared<Ema>(run.net, EmaOptions{.decay = 0.5});
      run.accelerator.state().add("ema", ema);
      work(run, *ema);
    });
  };
  const auto check_averages = [&](const Training& run, const Ema& ema) {
    const auto state = ema.state_dict();
    const auto names = run.net->named_parameters().keys();
    for (size_t i = 0; i < names.size(); ++i) {
      const auto average = initial[i].detach() * 0.5 + halfway.weights[i] * 0.5;
      for (const auto& [name, value] : state) {
        if (name != "averages." + names[i]) {
          continue;
        }
        const auto* slice = std::get_if<TensorSlice>(&value);
        const auto own = slice ? slice->values : std::get<Tensor>(value);
        EXPECT_TRUE(torch::allclose(
            own.flatten(),
            slice ? elements_at(average, slice->pieces) : average.flatten(),
            0,
            1e-10))
            << name;
      }
    }
  };
  struct Case {
    Layout from, to;
  };
  const Case cases[] = {
      {{{.tensor = 2}}, {}},
      {{}, {{.tensor = 2}}},
      {{{.tensor = 2}}, {{.replicate = 2, .tensor = 2}}},
      {{{.shard = 2, .tensor = 2}, ShardStage::kOptimizer}, {{.tensor = 2}}},
      {{{.tensor = 2}}, {{.shard = 2}, ShardStage::kOptimizer}}};
  for (size_t i = 0; i < std::size(cases); ++i) {
    const auto path = folder.path() / std::to_string(i);
    run_with(cases[i].from, [&](Training& run, Ema& ema) {
      run.train(family, 0, 3, expected);
      ema.update();
      run.accelerator.save_state(path);
    });
    run_with(cases[i].to, [&](Training& run, Ema& ema) {
      run.accelerator.load_state(path);
      check_averages(run, ema);
      run.train(family, 3, 5, expected);
      run.compare_weights(expected);
      expect_equal(run.difference, std::to_string(i));
    });
  }
  // The batch does not have 3 equal parts, so these ranks do not train.
  run_with({{.replicate = 3}}, [&](Training& run, Ema& ema) {
    run.accelerator.load_state(folder.path() / "0");
    check_averages(run, ema);
    run.compare_weights(halfway);
    expect_equal(run.difference, "3 data ranks");
  });
}

TEST(TensorParallel, SavesWholeModels) {
  const TempDir folder;
  for (const size_t index : {size_t{0}, size_t{2}, size_t{4}}) {
    const Family family = families()[index];
    const auto copies = make(family, 2);
    for (const auto& copy : copies) {
      copy->to(torch::kFloat);
    }
    const auto whole = make(family);
    const auto with_accelerator = folder.path() / "one";
    const auto by_model = folder.path() / "two";
    run_ranks(2, [&](ProcessGroup group) {
      Accelerator accelerator(
          {.cpu = true, .parallelism = {.tensor = 2}, .process_group = group});
      auto net = accelerator.prepare(copies[static_cast<size_t>(group.rank())]);
      accelerator.save_model(net, with_accelerator);
      net->save_pretrained(by_model);
    });
    for (const auto& path : {with_accelerator, by_model}) {
      const auto loaded =
          family.head == Head::kCausal
              ? std::shared_ptr<PretrainedModel>(
                    models::AutoModelForCausalLM::from_pretrained(path))
              : models::AutoModelForMaskedLM::from_pretrained(path);
      const auto expected = whole->named_parameters();
      for (const auto& item : loaded->named_parameters()) {
        EXPECT_TRUE(
            torch::equal(item.value().to(torch::kDouble), expected[item.key()]))
            << item.key();
      }
    }
  }
}

// --- outputs -----------------------------------------------------------------

TEST(TensorParallel, GivesWholeLogitsAndTokens) {
  for (const size_t index : {size_t{0}, size_t{2}}) {
    const Family family = families()[index];
    const auto copies = make(family, 2);
    const auto whole =
        std::dynamic_pointer_cast<models::CausalLanguageModel>(make(family));
    whole->eval();
    const auto batch = batch_of(family, 0);
    const auto expected = whole->forward(batch);
    const auto tokens = whole->generate(batch.input_ids, {.max_new_tokens = 4});
    run_ranks(2, [&](ProcessGroup group) {
      Accelerator accelerator(
          {.cpu = true, .parallelism = {.tensor = 2}, .process_group = group});
      const auto model = std::dynamic_pointer_cast<models::CausalLanguageModel>(
          copies[static_cast<size_t>(group.rank())]);
      auto net = accelerator.prepare(model);
      // In training with labels, no rank has all logits.
      EXPECT_FALSE(net(batch).logits.defined());
      auto unlabelled = batch;
      unlabelled.labels = Tensor();
      EXPECT_TRUE(
          torch::allclose(net(unlabelled).logits, expected.logits, 0, 1e-12));
      model->eval();
      const auto output = net(batch);
      EXPECT_TRUE(torch::allclose(output.logits, expected.logits, 0, 1e-12));
      EXPECT_TRUE(torch::allclose(output.loss, expected.loss, 0, 1e-12));
      EXPECT_TRUE(torch::equal(
          model->generate(batch.input_ids, {.max_new_tokens = 4}), tokens));
      // Both ranks sample the same tokens, although they share a generator and
      // so draw different numbers.
      const auto sampled = model->generate(
          batch.input_ids, {.max_new_tokens = 4, .do_sample = true});
      const auto of_all = group.all_gather(sampled);
      EXPECT_TRUE(torch::equal(of_all[0], of_all[1]));
      EXPECT_THAT(
          [&] {
            net(batch, models::ForwardOptions{.output_attentions = true});
          },
          ThrowsMessage<UsageError>(HasSubstr("output_attentions")));
    });
  }
}

// The gradient of a loss that the caller computes from whole logits.
TEST(TensorParallel, SendsGradientsThroughGatheredLogits) {
  const Family family = families()[0];
  const auto copies = make(family, 2);
  const auto whole = make(family);
  auto batch = batch_of(family, 0);
  batch.labels = Tensor();
  whole->forward(batch).logits.square().mean().backward();
  const auto parameters = whole->parameters();
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator(
        {.cpu = true, .parallelism = {.tensor = 2}, .process_group = group});
    const auto& model = copies[static_cast<size_t>(group.rank())];
    auto net = accelerator.prepare(model);
    accelerator.backward(net(batch).logits.square().mean());
    const auto own = model->parameters();
    for (size_t i = 0; i < own.size(); ++i) {
      const auto& pieces = net.engine().pieces(own[i]);
      const auto expected = pieces ? elements_at(parameters[i].grad(), *pieces)
                                   : parameters[i].grad().flatten();
      EXPECT_TRUE(torch::allclose(own[i].grad().flatten(), expected, 0, 1e-10))
          << i;
    }
  });
}

// --- data --------------------------------------------------------------------

TEST(TensorParallel, GathersEachSampleOnce) {
  run_ranks(4, [](ProcessGroup group) {
    Accelerator accelerator(
        {.cpu = true,
         .parallelism = {.replicate = 2, .tensor = 2},
         .process_group = group});
    auto loader = accelerator.prepare(
        DataLoader(TensorDataset({torch::arange(10)}), {.batch_size = 2}));
    std::vector<Tensor> gathered;
    for (auto& batch : loader) {
      gathered.push_back(accelerator.gather_for_metrics(batch[0]));
      const auto of_pair = group.all_gather(batch[0]);
      EXPECT_TRUE(torch::equal(of_pair[0], of_pair[1]));
      EXPECT_TRUE(torch::equal(of_pair[2], of_pair[3]));
    }
    const auto all = std::get<0>(torch::cat(gathered).sort());
    EXPECT_TRUE(torch::equal(all, torch::arange(10)));
  });
}

TEST(TensorParallel, FindsDifferentInputsOfOneGroup) {
  const Family family = families()[0];
  const auto copies = make(family, 2);
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator(
        {.cpu = true, .parallelism = {.tensor = 2}, .process_group = group});
    auto net = accelerator.prepare(copies[static_cast<size_t>(group.rank())]);
    EXPECT_THAT(
        [&] { net(batch_of(family, group.rank())); },
        ThrowsMessage<MismatchError>(HasSubstr("different inputs")));
  });
}

// --- other people's modules --------------------------------------------------

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t num_classes = 5)
      : words(register_module("words", torch::nn::Embedding(11, 6))),
        up(register_module("up", torch::nn::Linear(6, 8))),
        down(register_module("down", torch::nn::Linear(8, 6))),
        head(register_module("head", torch::nn::Linear(6, num_classes))) {}
  Tensor forward(const Tensor& ids) {
    const auto x = words(ids);
    return head(x + down(torch::tanh(up(x))));
  }
  torch::nn::Embedding words;
  torch::nn::Linear up, down, head;
};
TORCH_MODULE(Net);

const TensorPlan kNetPlan = {
    {.modules = "words", .split = kVocabulary},
    {.modules = "up", .split = kColumns},
    {.modules = "down", .split = kRows},
    {.modules = "head", .split = kGatheredColumns}};

TEST(TensorParallel, DividesTorchModulesByThePlanOfTheUser) {
  // Five classes are divided unevenly.
  for (const auto& [casts, num_classes] :
       {std::pair(false, 5), std::pair(false, 6), std::pair(true, 5)}) {
    torch::manual_seed(3);
    Net whole(num_classes);
    std::vector<Net> copies;
    for (int rank = 0; rank < 2; ++rank) {
      Net copy(num_classes);
      const torch::NoGradGuard no_grad;
      const auto values = whole->parameters();
      auto own = copy->parameters();
      for (size_t i = 0; i < values.size(); ++i) {
        own[i].copy_(values[i]);
      }
      copies.push_back(copy);
    }
    if (!casts) {
      whole->to(torch::kDouble);
    }
    const auto ids = torch::tensor({{1, 10, 5}, {3, 3, 0}});
    const auto expected = whole(ids);
    expected.square().mean().backward();
    run_ranks(2, [&, casts = casts](ProcessGroup group) {
      AcceleratorOptions options = {
          .cpu = true,
          .parallelism = {.tensor = 2},
          .tensor_plan = kNetPlan,
          .process_group = group};
      if (casts) {
        options.mixed_precision = Precision::kBf16;
      }
      Accelerator accelerator(options);
      auto& copy = copies[static_cast<size_t>(group.rank())];
      if (!casts) {
        copy->to(torch::kDouble);
      }
      auto net = accelerator.prepare(copy);
      EXPECT_EQ(copy->up->weight.size(0), 4);
      EXPECT_EQ(copy->words->weight.size(0), group.rank() == 0 ? 6 : 5);
      const auto output = net(ids);
      // bf16 has 8 significant bits.
      const double tolerance = casts ? 0.05 : 1e-12;
      EXPECT_TRUE(torch::allclose(output, expected, tolerance, tolerance));
      accelerator.backward(output.square().mean());
      const auto parameters = copy->parameters();
      const auto wholes = whole->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        const auto& pieces = net.engine().pieces(parameters[i]);
        const auto all = wholes[i].grad();
        EXPECT_TRUE(torch::allclose(
            parameters[i].grad().flatten(),
            pieces ? elements_at(all, *pieces) : all.flatten(),
            tolerance,
            tolerance))
            << i;
      }
    });
  }
}

// The bias of a projection that is divided by rows is added to whole outputs.
TEST(TensorParallel, DividesProjectionsLikeEmbeddings) {
  torch::manual_seed(3);
  std::vector<Net> copies(2);
  {
    const torch::NoGradGuard no_grad;
    torch::nn::utils::vector_to_parameters(
        torch::nn::utils::parameters_to_vector(copies[0]->parameters()),
        copies[1]->parameters());
  }
  const auto ids = torch::tensor({{1, 10, 5}, {3, 3, 0}});
  const auto expected = copies[0](ids).detach();
  auto plan = kNetPlan;
  plan[3].split = kVocabulary;
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator(
        {.cpu = true,
         .parallelism = {.tensor = 2},
         .tensor_plan = plan,
         .process_group = group});
    auto net = accelerator.prepare(copies[static_cast<size_t>(group.rank())]);
    EXPECT_TRUE(torch::allclose(net(ids), expected, 1e-5, 1e-6));
  });
}

// --- checks ------------------------------------------------------------------

TEST(TensorParallel, ComparesWeightsOfRanksWithTheSamePart) {
  run_ranks(4, [](ProcessGroup group) {
    Accelerator accelerator(
        {.cpu = true,
         .debug = true,
         .parallelism = {.replicate = 2, .tensor = 2},
         .tensor_plan = kNetPlan,
         .process_group = group});
    Net model;
    auto net = accelerator.prepare(model);
    accelerator.check_ranks_equal(net);
    const torch::NoGradGuard no_grad;
    const auto change = [&](int rank, const Tensor& weight) {
      if (group.rank() == rank) {
        weight.add_(1);
      }
    };
    const auto check = [&] { accelerator.check_ranks_equal(net); };
    change(3, model->up->weight);
    EXPECT_THAT(
        check,
        ThrowsMessage<MismatchError>(
            HasSubstr("'up.weight' of rank 3 differs from rank 1's")));
    change(1, model->up->weight);
    check();
    change(1, model->down->bias);
    EXPECT_THAT(
        check,
        ThrowsMessage<MismatchError>(
            HasSubstr("'down.bias' of rank 1 differs from rank 0's")));
  });
}

// Adagrad creates its state together with the optimizer, for whole tensors.
TEST(TensorParallel, DividesStateThatAnOptimizerHasAtTheStart) {
  const Family family = families()[0];
  const auto batch = batch_of(family, 0);
  const auto whole = make(family);
  const auto step = [&](auto& optimizer, const auto& backward) {
    for (int i = 0; i < 3; ++i) {
      backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  // With sums that begin at 0, the first step would turn rounding errors of
  // gradients near 0 into updates of the size of the learning rate.
  const auto options =
      torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.5);
  torch::optim::Adagrad adagrad(whole->parameters(), options);
  step(adagrad, [&] { whole->forward(batch).loss.backward(); });
  const auto expected = whole->parameters();
  for (const auto stage : {ShardStage::kNone, ShardStage::kOptimizer}) {
    const int num_ranks = stage == ShardStage::kNone ? 2 : 4;
    const auto copies = make(family, num_ranks);
    run_ranks(num_ranks, [&](ProcessGroup group) {
      const auto& model = copies[static_cast<size_t>(group.rank())];
      torch::optim::Adagrad own(model->parameters(), options);
      Accelerator accelerator(
          {.cpu = true,
           .shard = {.stage = stage},
           .parallelism = {.shard = num_ranks / 2, .tensor = 2},
           .process_group = group});
      auto [net, optimizer] = accelerator.prepare(model, own);
      step(optimizer, [&, &net = net] {
        accelerator.backward(net(batch).loss);
      });
      const auto trained = net.engine().whole_parameters(true);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(torch::allclose(trained[i], expected[i], 0, 1e-10)) << i;
      }
    });
  }
}

TEST(TensorParallel, RefusesIdsOutOfRange) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        {.cpu = true,
         .parallelism = {.tensor = 2},
         .tensor_plan = kNetPlan,
         .process_group = group});
    auto net = accelerator.prepare(Net());
    net(torch::tensor({{0, 10}}));
    for (const int64_t wrong : {-1, 11}) {
      EXPECT_THAT(
          [&] {
            net(torch::tensor({int64_t{3}, wrong, int64_t{10}}));
          },
          ThrowsMessage<UsageError>(HasSubstr(
              "Embedding id " + std::to_string(wrong) +
              " is out of range. Pass ids from 0 to 10")));
    }
  });
}

// --- what does not combine ---------------------------------------------------

template <class Work>
void expect_refused(
    const AcceleratorOptions& options,
    const char* message,
    const Work& work) {
  run_ranks(2, [&](ProcessGroup group) {
    auto own = options;
    own.cpu = true;
    own.process_group = group;
    if (own.parallelism == MeshSizes()) {
      own.parallelism = {.tensor = 2};
    }
    try {
      Accelerator accelerator(own);
      work(accelerator);
      ADD_FAILURE() << "no error: " << message;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  });
}

/// Calls a function with its modules and the input.
struct AnyNetImpl : torch::nn::Module {
  using Forward = std::function<Tensor(AnyNetImpl& self, const Tensor& x)>;
  explicit AnyNetImpl(Forward body)
      : up(register_module("up", torch::nn::Linear(6, 8))),
        down(register_module("down", torch::nn::Linear(8, 6))),
        head(register_module("head", torch::nn::Linear(8, 6))),
        body(std::move(body)) {}
  Tensor forward(const Tensor& x) { return body(*this, x); }
  torch::nn::Linear up, down, head;
  Forward body;
};
TORCH_MODULE(AnyNet);

TEST(TensorParallel, RefusesForwardsThatComputeSomethingElse) {
  const std::vector<std::pair<AnyNetImpl::Forward, const char*>> cases = {
      {[](auto& net, const auto& x) { return net.up(x); },
       "The outputs of the layer of 'up.weight' stayed divided"},
      {[](auto& net, const auto& x) {
         return net.head(torch::tanh(net.up(x)));
       },
       "A linear layer for 8 features received 4"},
      {[](auto& net, const auto& x) {
         return net.head(net.up(x).unsqueeze(1));
       },
       "A linear layer for 8 features received 4"},
      {[](auto& net, const auto& x) {
         return net.down(torch::linear(x, net.up->weight * 2));
       },
       "aten::mul cannot compute with 'up.weight'"},
      {[](auto& net, const auto& x) {
         return net.down(torch::einsum("bi,oi->bo", {x, net.up->weight}));
       },
       "aten::einsum cannot compute with 'up.weight'"},
      {[](auto& net, const auto& x) {
         return net.down(torch::matmul(x, net.up->weight.transpose(0, 1)));
       },
       "cannot compute with 'up.weight'"},
      {[](auto& net, const auto& x) {
         return net.down(net.up(x)) + net.up->weight.pow(2).sum();
       },
       "aten::pow cannot compute with 'up.weight'"},
      {[](auto& net, const auto& x) {
         return net.down(torch::matmul(x, net.up->weight.t() * 2));
       },
       "aten::mul cannot compute with 'up.weight'"}};
  for (const auto& [body, message] : cases) {
    expect_refused(
        {.tensor_plan =
             {{.modules = "up", .split = kColumns},
              {.modules = "down", .split = kRows}}},
        message,
        [&body = body](Accelerator& accelerator) {
          auto net = accelerator.prepare(AnyNet(body));
          net(torch::ones({2, 6}));
        });
  }
}

TEST(TensorParallel, SaysWhatDoesNotCombine) {
  const auto prepare_net = [](Accelerator& accelerator) {
    Net net;
    accelerator.prepare(net);
  };
  expect_refused({}, "has no tensor plan", prepare_net);
  expect_refused(
      {.engine = {[](const EngineArguments&) -> std::unique_ptr<Layer> {
         return nullptr;
       }}},
      "Tensor parallelism does not work with a custom engine",
      prepare_net);
  expect_refused(
      {.tensor_plan = {{.modules = "down", .split = kRows}}},
      "Divide the layer before it with kColumns",
      [](Accelerator& accelerator) {
        Net net;
        auto prepared = accelerator.prepare(net);
        prepared(torch::zeros({1, 2}, torch::kLong));
      });
  expect_refused(
      {.tensor_plan =
           {{.modules = "up", .split = kColumns},
            {.modules = "words", .split = kVocabulary}}},
      "tensor plan has kColumns but no kRows",
      prepare_net);
  expect_refused(
      {.tensor_plan =
           {{.modules = "up", .split = kColumns, .is_transposed = true}}},
      "'up.weight' belongs to a torch::nn::Linear",
      prepare_net);
  expect_refused(
      {.tensor_plan = {{.modules = "words", .split = kGatheredColumns}}},
      "Use kVocabulary",
      prepare_net);
  expect_refused(
      {.tensor_plan = kNetPlan},
      "needs whole matrices",
      [](Accelerator& accelerator) {
        Net net;
        optim::Adafactor adafactor(net->parameters());
        accelerator.prepare(net, adafactor);
      });
  expect_refused(
      {.tensor_plan = kNetPlan},
      "already been divided",
      [](Accelerator& accelerator) {
        Net net;
        { auto prepared = accelerator.prepare(net); }
        const auto again = std::make_shared<NetImpl>(*net);
        accelerator.prepare(again);
      });
  expect_refused(
      {.tensor_plan = kNetPlan},
      "LocalSGD does not work with tensor parallelism",
      [](Accelerator& accelerator) {
        Net net;
        auto prepared = accelerator.prepare(net);
        const LocalSGD local(accelerator, prepared, 2);
      });
  expect_refused(
      {.tensor_plan = kNetPlan},
      "does not support a different number of batches",
      [](Accelerator& accelerator) {
        Net net;
        auto prepared = accelerator.prepare(net);
        const auto guard = accelerator.join_uneven_inputs(prepared);
      });
  // 3 key-value heads on 2 ranks.
  const auto config = ModelConfig::parse(R"({"model_type": "llama",
      "vocab_size": 9, "hidden_size": 24, "intermediate_size": 8,
      "num_hidden_layers": 1, "num_attention_heads": 6,
      "num_key_value_heads": 3})");
  expect_refused(
      {},
      "k_proj.weight' has 3 heads, which cannot be divided equally among 2",
      [&](Accelerator& accelerator) {
        accelerator.prepare(models::AutoModelForCausalLM::from_config(config));
      });
}

} // namespace
} // namespace accelerate::testing
