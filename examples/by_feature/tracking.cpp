// SPDX-License-Identifier: Apache-2.0
// Logs metrics as JSON Lines and for TensorBoard, and shows a progress bar:
//
//     accelerate launch example_tracking runs 12     # stops after 12 steps
//     accelerate launch example_tracking runs        # resumes to the end
//     tensorboard --logdir runs
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: example_tracking FOLDER [STEPS]\n";
    return 2;
  }
  const int64_t num_allowed = argc > 2 ? std::atoll(argv[2]) : 1'000'000;
  constexpr int64_t kNumEpochs = 4;
  constexpr double kLearningRate = 0.01;
  const std::filesystem::path folder = argv[1];

  torch::manual_seed(3);
  accelerate::Accelerator accelerator({.checkpoints = {.folder = folder}});
  const accelerate::Logger logger("example");
  accelerator.init_trackers(
      "parabola",
      {.log_with = {"jsonl", "csv", "tensorboard"},
       .logging_dir = folder,
       .configuration = {{"lr", kLearningRate}, {"hidden", 16}}});

  const auto x = torch::linspace(-1, 1, 96).unsqueeze(1);
  accelerate::DataLoader dataloader(
      accelerate::TensorDataset({x, x.square()}),
      {.batch_size = 8, .shuffle = true});
  torch::nn::Sequential model(
      torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  accelerate::optim::AdamW optimizer(
      model->parameters(), {.lr = kLearningRate});
  auto [loader, net, opt] = accelerator.prepare(dataloader, model, optimizer);
  if (accelerator.latest_checkpoint()) {
    accelerator.load_state("latest");
    logger.info("going on");
  }

  int64_t here = 0;
  accelerate::ProgressBar progress_bar(
      kNumEpochs * loader.size(), {.description = "parabola"});
  for (int64_t epoch = 0; epoch < kNumEpochs && here < num_allowed; ++epoch) {
    for (auto& batch : loader) {
      auto loss = torch::mse_loss(net(batch[0]), batch[1]);
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
      const auto mean =
          accelerator.reduce(loss.detach(), accelerate::ReduceOp::kMean);
      // By default, the step after the last logged one, even after a restart.
      accelerator.log({{"loss", mean}, {"lr", kLearningRate}});
      progress_bar.update();
      progress_bar.set_postfix({{"loss", mean}});
      if (++here == num_allowed) {
        break;
      }
    }
    accelerator.log_histogram("weights", model[0]->parameters()[0]);
    logger.info("epoch ", epoch, " is over");
    accelerator.save_state();
  }
  logger.in_order(accelerator, "trained ", here, " steps");
  accelerator.end_training();
}
