// SPDX-License-Identifier: Apache-2.0
// Resumes a training that Python began: test_checkpoint_languages.py.
//
//     checkpoint_resume CHECKPOINT OPTIMIZER NUM_BATCHES OUTPUT
//
// Loads CHECKPOINT, saves what it got to OUTPUT, and prints the samples and the
// loss of each batch that comes next.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <cstdio>

namespace {

using accelerate::optim::ParameterGroup;

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return second(torch::tanh(first(x)));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 8));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 1));
};
TORCH_MODULE(Net);

auto make_loader() {
  const auto ids = torch::arange(30);
  const auto x =
      (ids.unsqueeze(1) * 7 + torch::arange(4) * 3).remainder(11) / 8.0;
  return accelerate::DataLoader(
      accelerate::TensorDataset(
          {x.to(torch::kFloat), x.sum(1, true).to(torch::kFloat), ids}),
      {.batch_size = 3, .shuffle = true});
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name,
    NetImpl& net) {
  const std::vector<at::Tensor> weights = {
      net.first->weight, net.second->weight};
  const std::vector<at::Tensor> biases = {net.first->bias, net.second->bias};
  if (name == "torch::optim::AdamW") {
    const auto group = [](const auto& parameters, double decay) {
      return torch::optim::OptimizerParamGroup(
          parameters,
          std::make_unique<torch::optim::AdamWOptions>(
              torch::optim::AdamWOptions().weight_decay(decay)));
    };
    return std::make_unique<torch::optim::AdamW>(
        std::vector{group(weights, 0.1), group(biases, 0.0)});
  }
  const std::vector<ParameterGroup> groups = {
      {.parameters = weights}, {.parameters = biases}};
  if (name == "SGD") {
    return std::make_unique<accelerate::optim::SGD>(groups);
  }
  return std::make_unique<accelerate::optim::AdamW>(groups);
}

void resume(char** arguments) {
  accelerate::AcceleratorOptions options;
  options.cpu = true;
  options.accumulation.num_steps = 2;
  options.scheduler_stepping = accelerate::SchedulerStepping::kPerProcess;
  accelerate::Accelerator accelerator(options);
  Net model;
  auto made = make_optimizer(arguments[2], *model);
  // The numbers of the schedule are code; its place is in the checkpoint.
  accelerate::Scheduler scheduler = accelerate::get_scheduler(
      "linear", *made, {.num_warmup_steps = 4, .num_training_steps = 40});
  auto [net, opt, schedule, loader] =
      accelerator.prepare(model, *made, scheduler, make_loader());
  const auto scaler = std::make_shared<accelerate::GradScaler>();
  accelerator.state().add("scaler", scaler);

  accelerator.load_state(arguments[1]);
  accelerator.save_state(arguments[4]);
  int num_left = std::stoi(arguments[3]);
  while (num_left > 0) {
    for (auto& batch : loader) {
      const auto window = accelerator.accumulate(net);
      const auto loss = torch::mse_loss(net(batch[0]), batch[1]);
      accelerator.backward(loss);
      opt.step();
      schedule.step();
      opt.zero_grad();
      std::string line =
          "rank " + std::to_string(accelerator.process_index()) + " samples";
      for (int64_t i = 0; i < batch[2].numel(); ++i) {
        line += ' ' + std::to_string(batch[2][i].item<int64_t>());
      }
      std::printf("%s loss %a\n", line.c_str(), loss.item<double>());
      if (--num_left == 0) {
        break;
      }
    }
  }
}

} // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fputs("resume CHECKPOINT OPTIMIZER NUM_BATCHES OUTPUT\n", stderr);
    return 2;
  }
  try {
    resume(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
