// SPDX-License-Identifier: Apache-2.0
// Trains a small model for `accelerate verify`. The first argument names a
// mistake, or a variant of a correct program.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <optional>
#include <string>

namespace {

struct Sample {
  torch::Tensor tokens;
  torch::Tensor labels;
};

/// Token sequences; some have more ignored labels than others.
class Sequences {
 public:
  int64_t size() const { return 256; }
  Sample get(int64_t index) const {
    auto generator = torch::make_generator<at::CPUGeneratorImpl>(
        static_cast<uint64_t>(index));
    Sample sample;
    sample.tokens = torch::randint(50, {16}, generator, torch::kLong);
    sample.labels = sample.tokens.clone();
    sample.labels.narrow(0, 0, index * 7 % 13).fill_(-100);
    return sample;
  }
};

/// Every rank keeps a part of the samples.
class OwnPart : public accelerate::Sampler {
 public:
  OwnPart(int rank, int num_ranks) : rank_(rank), num_ranks_(num_ranks) {}
  int64_t size() const override { return 256 / num_ranks_; }
  std::vector<int64_t> order(uint64_t, int64_t) const override {
    std::vector<int64_t> indices;
    for (int64_t i = rank_; i < 256; i += num_ranks_) {
      indices.push_back(i);
    }
    return indices;
  }

 private:
  int rank_;
  int num_ranks_;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::string mistake) : mistake(std::move(mistake)) {
    embed = register_module("embed", torch::nn::Embedding(50, 24));
    hidden = register_module("hidden", torch::nn::Linear(24, 24));
    frozen = register_module("frozen", torch::nn::Linear(24, 24));
    head = register_module("head", torch::nn::Linear(24, 50));
    mean = register_buffer("mean", torch::zeros(24));
    if (this->mistake == "sync_norm") {
      norm = register_module("norm", accelerate::SyncBatchNorm1d(24));
    }
    for (auto& parameter : frozen->parameters()) {
      parameter.requires_grad_(false);
    }
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = torch::gelu(hidden(embed(tokens)));
    x = frozen(torch::dropout(x, 0.1, is_training()));
    if (mistake == "buffer") {
      const torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(x.detach().mean(at::IntArrayRef({0, 1})), 0.1);
    }
    x = x - mean;
    if (norm) {
      x = norm(x.transpose(1, 2)).transpose(1, 2);
    }
    if (noise.defined()) {
      x = x + noise;
    }
    return head(adapter ? x + adapter(x) : x);
  }

  std::string mistake;
  torch::nn::Embedding embed = nullptr;
  torch::nn::Linear hidden = nullptr;
  torch::nn::Linear frozen = nullptr;
  torch::nn::Linear head = nullptr;
  torch::nn::Linear adapter = nullptr;
  accelerate::SyncBatchNorm1d norm = nullptr;
  torch::Tensor mean;
  torch::Tensor noise;
};
TORCH_MODULE(Net);

} // namespace

int main(int argc, char** argv) {
  const std::string mistake = argc > 1 ? argv[1] : "right";
  accelerate::AcceleratorOptions options;
  options.ddp.broadcast_buffers = mistake != "buffer";
  if (mistake == "raw_backward" || mistake == "extra_backward" ||
      mistake == "accumulate" || mistake == "clip") {
    options.accumulation.num_steps = 4;
  }
  if (mistake == "shard") {
    options.shard.stage = accelerate::ShardStage::kParameters;
  }
  if (mistake == "shard_state") {
    options.shard.stage = accelerate::ShardStage::kOptimizer;
  }
  accelerate::Accelerator accelerator(options);
  const int rank = accelerator.process_index();
  Net model(mistake);
  const double factor =
      mistake == "scaled_rate" ? accelerator.num_processes() : 1.0;
  accelerate::optim::AdamW adamw(model->parameters(), {.lr = 1e-3 * factor});
  accelerate::DataLoaderOptions loading{.batch_size = 4, .shuffle = true};
  if (mistake == "sampler") {
    loading.shuffle = false;
    loading.sampler =
        std::make_shared<OwnPart>(rank, accelerator.num_processes());
  }
  accelerate::DataLoader plain(
      Sequences(), loading, [](const std::vector<Sample>& samples) {
        std::vector<torch::Tensor> tokens;
        std::vector<torch::Tensor> labels;
        for (const auto& sample : samples) {
          tokens.push_back(sample.tokens);
          labels.push_back(sample.labels);
        }
        return std::vector<torch::Tensor>{
            torch::stack(tokens), torch::stack(labels)};
      });
  auto [net, optimizer] = accelerator.prepare(model, adamw);
  auto loader = mistake == "raw_loader" ? plain : accelerator.prepare(plain);
  std::optional<accelerate::Scheduler> schedule;
  if (mistake == "schedule") {
    schedule = accelerator.prepare(accelerate::Scheduler(
        adamw, accelerate::StepLR{.step_size = 1, .gamma = 0.5}));
  }
  if (mistake == "rank_seed") {
    model->noise =
        torch::randn({24}, torch::make_generator<at::CPUGeneratorImpl>(rank));
  }
  if (mistake == "frozen") {
    const torch::NoGradGuard no_grad;
    model->frozen->weight.add_(0.1 * rank);
  }
  std::unique_ptr<torch::optim::SGD> other;
  if (mistake == "adapter") {
    model->adapter =
        torch::nn::Linear(torch::nn::LinearOptions(24, 24).bias(false));
    other =
        std::make_unique<torch::optim::SGD>(model->adapter->parameters(), 0.1);
  }
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) {
      const auto guard = accelerator.accumulate(net);
      auto out =
          mistake == "raw_model" ? model->forward(batch[0]) : net(batch[0]);
      if (mistake == "extra_backward") {
        out.square().mean().backward({}, /*retain_graph=*/true);
      }
      out = out.flatten(0, 1);
      auto loss = torch::nn::functional::cross_entropy(
          out,
          batch[1].flatten(),
          torch::nn::functional::CrossEntropyFuncOptions().reduction(
              torch::kSum));
      if (mistake == "unequal") {
        loss = loss / batch[1].ne(-100).sum();
      } else if (mistake == "global_count") {
        const auto count = accelerator.reduce(batch[1].ne(-100).sum());
        loss = loss * accelerator.num_processes() / count;
      } else if (mistake == "weighted") {
        const auto count = batch[1].ne(-100).sum();
        accelerator.backward(loss / count, {.weight = count});
      } else {
        loss = loss / batch[1].numel();
      }
      if (mistake == "raw_backward") {
        loss.backward();
      } else if (mistake != "weighted") {
        accelerator.backward(loss);
      }
      if (mistake == "clip" && accelerator.sync_gradients()) {
        accelerator.clip_grad_norm_(net->parameters(), 0.5);
      }
      if (mistake == "changed" && rank == 1) {
        model->head->weight.mutable_grad().mul_(1.5);
      }
      if (mistake == "raw_optimizer") {
        adamw.step();
      } else {
        optimizer.step();
      }
      if (other) {
        other->step();
        other->zero_grad();
      }
      if (schedule) {
        schedule->step();
      }
      optimizer.zero_grad();
    }
  }
}
