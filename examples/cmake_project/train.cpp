// SPDX-License-Identifier: Apache-2.0
// Trains a small classifier. Run it again to resume from the last checkpoint.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>

namespace {

/// Points in a square. The label says whether a point is inside a circle.
accelerate::TensorDataset make_data(int64_t num_points) {
  const auto points = torch::rand({num_points, 2}) * 2 - 1;
  return accelerate::TensorDataset(
      {points, (points.norm(2, 1) < 0.8).to(torch::kLong)});
}

/// The program's own state, saved in checkpoints.
struct Progress : accelerate::Stateful {
  int64_t epoch = 0;
  accelerate::StateDict state_dict() const override {
    accelerate::StateDict state;
    state.set("epoch", epoch);
    return state;
  }
  void load_state_dict(const accelerate::StateDict& state) override {
    epoch = state.get<int64_t>("epoch");
  }
};

} // namespace

// Usage: train [EPOCHS [FOLDER]]. Writes metrics to FOLDER/circle and
// checkpoints to FOLDER/checkpoints, and keeps the last two checkpoints.
int main(int argc, char** argv) {
  const int64_t num_epochs = argc > 1 ? std::atoll(argv[1]) : 10;
  const std::filesystem::path folder = argc > 2 ? argv[2] : "runs";
  accelerate::Accelerator accelerator(
      {.checkpoints = {.folder = folder, .total_limit = 2}});
  accelerator.init_trackers(
      "circle", {.log_with = {"jsonl"}, .logging_dir = folder});

  torch::manual_seed(0);
  torch::nn::Sequential model(
      torch::nn::Linear(2, 32), torch::nn::ReLU(), torch::nn::Linear(32, 2));
  accelerate::optim::AdamW adamw(model->parameters(), {.lr = 0.01});
  accelerate::DataLoader train_data(
      make_data(2048), {.batch_size = 32, .shuffle = true});
  accelerate::DataLoader test_data(make_data(512), {.batch_size = 256});
  auto [net, optimizer, train_loader, test_loader] =
      accelerator.prepare(model, adamw, train_data, test_data);
  const auto progress = std::make_shared<Progress>();
  accelerator.state().add("progress", progress);

  if (accelerator.latest_checkpoint()) {
    accelerator.load_state("latest");
  }
  while (progress->epoch < num_epochs) {
    accelerate::ProgressBar bar(train_loader.size());
    double loss_of_batch = 0;
    for (auto& batch : train_loader) {
      auto loss = torch::cross_entropy_loss(net(batch[0]), batch[1]);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      loss_of_batch = loss.item<double>();
      bar.update();
    }
    const torch::NoGradGuard no_grad; // evaluate on all processes
    std::vector<torch::Tensor> right;
    for (auto& batch : test_loader) {
      right.push_back(
          accelerator.gather_for_metrics(net(batch[0]).argmax(1) == batch[1]));
    }
    const double accuracy =
        torch::cat(right).to(torch::kDouble).mean().item<double>();
    accelerator.log(
        {{"loss", loss_of_batch}, {"accuracy", accuracy}}, progress->epoch);
    accelerator.print("epoch ", progress->epoch++, ": accuracy ", accuracy);
    accelerator.save_state();
  }
  accelerator.end_training();
}
