// SPDX-License-Identifier: Apache-2.0
// A layer of the engine that the library does not have: it divides a linear
// module along a dimension of the mesh that the library leaves unused. Combined
// with the library's own layers. Nothing outside of this file knows about it.
// Expected values come from PyTorch in one process.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <unordered_map>

#include "accelerate/accelerate.h"
#include "support/temp_dir.h"
#include "training/parallel/engine.h"
#include "training/parallel/layer_table.h"
#include "training/state/sliced_state.h"

namespace accelerate::tensor_layer {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

/// A linear module of which each rank along the dimension computes some of the
/// output features; all ranks receive all of them. Its parameters are whole
/// until `prepare`.
struct ColumnLinearImpl : torch::nn::Module {
  ColumnLinearImpl(int64_t in, int64_t out, ProcessGroup ranks)
      : ranks(std::move(ranks)),
        weight(register_parameter("weight", torch::empty({out, in}))),
        bias(register_parameter("bias", torch::empty({out}))) {}

  Tensor forward(const Tensor& x) {
    const auto own = torch::linear(sum_gradient(x), weight, bias);
    auto all = ranks.all_gather(own.detach().contiguous()).unbind();
    all[static_cast<size_t>(ranks.rank())] = own;
    return torch::cat(all, -1);
  }

  /// The identity. Each rank computes its part of the gradient.
  Tensor sum_gradient(const Tensor& x) const {
    auto same = x.view_as(x);
    if (same.requires_grad()) {
      same.register_hook([ranks = ranks](const Tensor& gradient) {
        auto sum = gradient.clone();
        ranks.all_reduce(sum, ReduceOp::kSum);
        return sum;
      });
    }
    return same;
  }

  ProcessGroup ranks;
  Tensor weight;
  Tensor bias;
};
TORCH_MODULE(ColumnLinear);

/// Cuts the rows of these parameters.
class ColumnLayer final : public PlacementLayer {
 public:
  explicit ColumnLayer(const EngineArguments& arguments) {
    const auto& model = arguments.model;
    const auto& mesh = arguments.mesh;
    for (size_t i = 0; i < model.names.size(); ++i) {
      if (!model.names[i].starts_with("columns.")) {
        continue;
      }
      auto parameter = model.parameters[i];
      auto whole = parameter.sizes().vec();
      const auto pieces = pieces_of(
          whole, {.placements = kRows}, mesh.shape(), mesh.group().rank());
      auto own = parameter.detach().narrow(
          0, pieces[0].box.begin[0], pieces[0].box.size[0]);
      parameter.set_data(own.clone());
      wholes_[parameter.unsafeGetTensorImpl()] = std::move(whole);
    }
  }

  LayerPlacement place(const Tensor& tensor) const override {
    const auto found = wholes_.find(tensor.unsafeGetTensorImpl());
    if (found == wholes_.end()) {
      return {tensor};
    }
    return {tensor, kRows, TensorMemory::kDevice, found->second};
  }

 private:
  inline static const std::vector<TensorPlacement> kRows = {
      {MeshDimension::kContext, DimShard{.dim = 0}}};
  std::unordered_map<const c10::TensorImpl*, std::vector<int64_t>> wholes_;
};

const bool kIsRegistered = [] {
  register_layer(
      {.name = "column parallelism",
       .applies =
           [](const EngineOptions& options) {
             return options.mesh.size(MeshDimension::kContext) > 1;
           },
       .make = [](const EngineArguments& arguments,
                  const EngineOptions&) -> std::unique_ptr<Layer> {
         return std::make_unique<ColumnLayer>(arguments);
       },
       .serves = MeshDimension::kContext});
  return true;
}();

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const ProcessGroup& ranks)
      : first(register_module("first", torch::nn::Linear(5, 8))),
        columns(register_module("columns", ColumnLinear(8, 6, ranks))),
        last(register_module("last", torch::nn::Linear(6, 1))) {
    const torch::NoGradGuard no_grad;
    double shift = 0;
    for (auto& p : parameters()) {
      p.copy_(
          torch::linspace(-1, 1, p.numel()).view_as(p).sin() + (shift += 0.1));
    }
  }
  Tensor forward(const Tensor& x) {
    return last(torch::tanh(columns(torch::tanh(first(x)))));
  }
  torch::nn::Linear first;
  ColumnLinear columns;
  torch::nn::Linear last;
};
TORCH_MODULE(Net);

/// The rows of one step of all ranks together.
Tensor batch_of(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
  return torch::randn({12, 5}, generator, torch::kDouble);
}

constexpr double kMaxNorm = 0.5;

struct Trained {
  std::vector<double> norms;
  std::vector<Tensor> weights;
};

/// `Optimizer` is torch's.
template <class Optimizer, class Options>
Trained train_with_torch(int num_steps, const Options& options) {
  Net net{ProcessGroup()};
  net->to(torch::kDouble);
  Optimizer optimizer(net->parameters(), options);
  Trained result;
  for (int step = 0; step < num_steps; ++step) {
    net(batch_of(step)).pow(2).mean().backward();
    result.norms.push_back(
        torch::nn::utils::clip_grad_norm_(net->parameters(), kMaxNorm));
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& p : net->parameters()) {
    result.weights.push_back(p.detach().clone());
  }
  return result;
}

struct Case {
  MeshSizes sizes = {};
  ShardStage stage = ShardStage::kNone;
  bool has_masters = false;
};

/// One rank of a run.
struct OneRank {
  OneRank(const ProcessGroup& group, const Case& what)
      : mesh(group, sizes_of(what)),
        net(mesh.group(MeshDimension::kContext)),
        accelerator(options_of(group, what)) {
    if (!what.has_masters) {
      net->to(torch::kDouble);
    }
  }
  static MeshSizes sizes_of(const Case& what) {
    auto sizes = what.sizes;
    if (what.stage != ShardStage::kNone && sizes.shard == 0) {
      sizes.replicate = 1;
    }
    return sizes;
  }
  static AcceleratorOptions options_of(
      const ProcessGroup& group,
      const Case& what) {
    AcceleratorOptions options = {
        .cpu = true, .master_weights = what.has_masters};
    if (what.has_masters) {
      options.mixed_precision = Precision::kBf16;
    }
    options.debug = what.stage == ShardStage::kNone;
    options.shard.stage = what.stage;
    options.parallelism = what.sizes;
    options.process_group = group;
    return options;
  }

  /// The steps from `begin` to `end`.
  template <class Model, class Optimizer>
  void train(Model& model, Optimizer& optimizer, int begin, int end) {
    const int num_data = mesh.size(MeshDimension::kData);
    for (int step = begin; step < end; ++step) {
      const auto rows = batch_of(step).chunk(
          num_data)[static_cast<size_t>(mesh.coordinate(MeshDimension::kData))];
      accelerator.backward(
          model(rows.to(net->last->weight.scalar_type())).pow(2).mean());
      result.norms.push_back(
          accelerator.clip_grad_norm_(net->parameters(), kMaxNorm)
              .template item<double>());
      optimizer.step();
      optimizer.zero_grad();
    }
    auto wholes = model.engine().whole_parameters(true);
    result.weights.clear();
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      result.weights.push_back(
          wholes.empty() ? net->parameters()[i].detach() : wholes[i]);
    }
  }

  Mesh mesh;
  Net net;
  Accelerator accelerator;
  Trained result;
};

void expect_near(
    const Trained& result,
    const Trained& expected,
    double tolerance) {
  ASSERT_EQ(result.norms.size(), expected.norms.size());
  for (size_t i = 0; i < result.norms.size(); ++i) {
    EXPECT_NEAR(
        result.norms[i], expected.norms[i], tolerance * expected.norms[i])
        << i;
  }
  ASSERT_EQ(result.weights.size(), expected.weights.size());
  for (size_t i = 0; i < result.weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(
        result.weights[i].to(torch::kDouble),
        expected.weights[i],
        /*rtol=*/0,
        /*atol=*/tolerance))
        << i << result.weights[i] - expected.weights[i];
  }
}

// Sums of float64 in another order: 1e-12, many times their rounding.
constexpr double kTolerance = 1e-12;

TEST(TensorLayer, TrainsAsOneProcess) {
  const auto expected = train_with_torch<torch::optim::AdamW>(
      3, torch::optim::AdamWOptions(0.05).weight_decay(0.01));
  for (const Case& what :
       {Case{{.replicate = 2, .context = 2}},
        Case{{.shard = 2, .context = 2}, ShardStage::kOptimizer},
        Case{
            {.replicate = 1, .shard = 2, .context = 2}, ShardStage::kGradients},
        Case{{.context = 3}}}) {
    const int num_ranks = what.sizes.context == 3 ? 3 : 4;
    run_ranks(num_ranks, [&](ProcessGroup group) {
      OneRank run(group, what);
      optim::AdamW adamw(
          run.net->parameters(), {.lr = 0.05, .weight_decay = 0.01});
      auto [model, opt] = run.accelerator.prepare(run.net, adamw);
      run.train(model, opt, 0, 3);
      EXPECT_EQ(run.net->columns->weight.size(0), 6 / what.sizes.context);
      expect_near(run.result, expected, kTolerance);
    });
  }
}

// The shards of the 4 ranks are flat ranges of rows. Other numbers of ranks
// need other ranges, rows, or everything.
TEST(TensorLayer, LoadsWithAnyNumberOfRanks) {
  const testing::TempDir folder;
  const auto expected = train_with_torch<torch::optim::AdamW>(
      5, torch::optim::AdamWOptions(0.05).weight_decay(0.01));
  const auto with = [&](int num_ranks, const Case& what, const auto& work) {
    run_ranks(num_ranks, [&](ProcessGroup group) {
      OneRank run(group, what);
      optim::AdamW adamw(
          run.net->parameters(), {.lr = 0.05, .weight_decay = 0.01});
      auto [model, opt] = run.accelerator.prepare(run.net, adamw);
      work(run, model, opt);
    });
  };
  const Case saved = {{.shard = 2, .context = 2}, ShardStage::kOptimizer};
  with(4, saved, [&](OneRank& run, auto& model, auto& opt) {
    run.train(model, opt, 0, 3);
    run.accelerator.save_state(folder.path() / "state");
  });
  const std::pair<int, Case> cases[] = {
      {1, {}},
      {2, {{.context = 2}}},
      {2, {{.shard = 2}, ShardStage::kOptimizer}},
      {3, {{.context = 3}}},
      {3, {{.shard = 3}, ShardStage::kParameters}},
      {4, saved}};
  for (const auto& [num_ranks, what] : cases) {
    with(num_ranks, what, [&](OneRank& run, auto& model, auto& opt) {
      run.accelerator.load_state(folder.path() / "state");
      run.train(model, opt, 3, 5);
      run.result.norms.insert(
          run.result.norms.begin(),
          expected.norms.begin(),
          expected.norms.begin() + 3);
      expect_near(run.result, expected, kTolerance);
    });
  }
}

// With bf16, gradients have 8 significant bits: 2 % of the norm, which clipping
// bounds, in each of 3 steps.
TEST(TensorLayer, TrainsMasterWeights) {
  const auto expected =
      train_with_torch<torch::optim::SGD>(3, torch::optim::SGDOptions(0.1));
  for (const auto stage : {ShardStage::kNone, ShardStage::kOptimizer}) {
    const Case what = {
        stage == ShardStage::kNone ? MeshSizes{.replicate = 2, .context = 2}
                                   : MeshSizes{.shard = 2, .context = 2},
        stage,
        /*has_masters=*/true};
    run_ranks(4, [&](ProcessGroup group) {
      OneRank run(group, what);
      optim::SGD sgd(run.net->parameters(), {.lr = 0.1});
      auto [model, opt] = run.accelerator.prepare(run.net, sgd);
      run.train(model, opt, 0, 3);
      EXPECT_EQ(run.net->columns->weight.scalar_type(), torch::kBFloat16);
      EXPECT_EQ(run.result.weights.front().scalar_type(), torch::kFloat);
      for (size_t i = 0; i < expected.weights.size(); ++i) {
        EXPECT_TRUE(torch::allclose(
            run.result.weights[i].to(torch::kDouble),
            expected.weights[i],
            /*rtol=*/0,
            /*atol=*/3 * 0.1 * kMaxNorm * 0.02))
            << i << run.result.weights[i] - expected.weights[i];
      }
    });
  }
}

TEST(LayerTable, RefusesLayersThatDoNotCombine) {
  AcceleratorOptions options = {
      .cpu = true,
      .mixed_precision = Precision::kBf16,
      .master_weights = true,
      .engine = {[](const EngineArguments&) -> std::unique_ptr<Layer> {
        return nullptr;
      }}};
  EXPECT_THAT(
      [&] { const Accelerator accelerator(options); },
      ThrowsMessage<ConfigError>(
          HasSubstr("master_weights does not work with a custom engine")));
}

// A process with a connected group of one takes the same steps as one of many.
TEST(LayerTable, SynchronisesInAConnectedGroupOfOneRank) {
  run_ranks(1, [](ProcessGroup group) {
    ASSERT_FALSE(group.is_solo());
    for (const auto stage : {ShardStage::kNone, ShardStage::kParameters}) {
      const Mesh mesh(group, {});
      const EnginePlan plan({.shard = {.stage = stage}, .mesh = mesh});
      const auto engine = plan.make(
          {.group = group,
           .model =
               {.names = {"w"},
                .parameters = {torch::ones({4}).requires_grad_()}},
           .mesh = mesh});
      EXPECT_TRUE(engine->exchanges());
    }
  });
}

} // namespace
} // namespace accelerate::tensor_layer
