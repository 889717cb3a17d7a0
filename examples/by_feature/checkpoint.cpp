// SPDX-License-Identifier: Apache-2.0
// You can stop this run at any time. It resumes from the last checkpoint:
//
//     accelerate launch example_checkpoint run 13    # stops after 13 steps
//     accelerate launch example_checkpoint run       # resumes to the end
//
// The second command prints exactly what an uninterrupted run prints.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <cstdlib>

namespace {

/// The program's own state.
struct Steps : accelerate::Stateful {
  int64_t num_done = 0;
  accelerate::StateDict state_dict() const override {
    accelerate::StateDict state;
    state.set("num_done", num_done);
    return state;
  }
  void load_state_dict(const accelerate::StateDict& state) override {
    num_done = state.get<int64_t>("num_done");
  }
};

} // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: example_checkpoint FOLDER [STEPS]\n";
    return 2;
  }
  const int64_t num_allowed = argc > 2 ? std::atoll(argv[2]) : 1'000'000;
  constexpr int64_t kNumSteps = 40;

  torch::manual_seed(3);
  accelerate::Accelerator accelerator(
      {.checkpoints = {.folder = argv[1], .total_limit = 2}});
  const auto x = torch::linspace(-1, 1, 96).unsqueeze(1);
  accelerate::DataLoader dataloader(
      accelerate::TensorDataset({x, x.square()}),
      {.batch_size = 8, .shuffle = true, .num_workers = 2});
  torch::nn::Sequential model(
      torch::nn::Linear(1, 16),
      torch::nn::Tanh(),
      torch::nn::Dropout(0.1),
      torch::nn::Linear(16, 1));
  accelerate::optim::AdamW optimizer(model->parameters(), {.lr = 0.01});
  auto [loader, net, opt] = accelerator.prepare(dataloader, model, optimizer);
  // It uses the prepared optimizer, so checkpoints contain it too.
  auto scheduler = accelerate::get_scheduler(
      "linear", opt, {.num_warmup_steps = 10, .num_training_steps = kNumSteps});
  const auto steps = std::make_shared<Steps>();
  accelerator.state().add("steps", steps);

  if (accelerator.latest_checkpoint()) {
    accelerator.load_state("latest");
    accelerator.print("resuming after ", steps->num_done, " steps");
  }
  float last = 0;
  for (int64_t here = 0; steps->num_done < kNumSteps && here < num_allowed;) {
    for (auto& batch : loader) {
      auto loss = torch::mse_loss(net(batch[0]), batch[1]);
      accelerator.backward(loss);
      opt.step();
      scheduler.step();
      opt.zero_grad();
      last = accelerator.reduce(loss.detach(), accelerate::ReduceOp::kMean)
                 .item<float>();
      ++here;
      if (++steps->num_done % 5 == 0) {
        accelerator.save_state();
      }
      if (accelerator.should_stop()) {
        accelerator.save_and_leave(); // e.g. the machine shuts down
      }
      if (steps->num_done == kNumSteps || here == num_allowed) {
        break;
      }
    }
  }
  char text[64];
  std::snprintf(text, sizeof(text), "%a", static_cast<double>(last));
  accelerator.print("after ", steps->num_done, " steps the loss is ", text);
}
