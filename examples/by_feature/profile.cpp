// SPDX-License-Identifier: Apache-2.0
// Shows where the time of a step goes:
//
//     accelerate launch example_profile traces
//
// Open traces/profile_0.json in Perfetto (ui.perfetto.dev) or chrome://tracing.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: example_profile FOLDER\n";
    return 2;
  }
  accelerate::Accelerator accelerator;
  accelerate::DataLoader dataloader(
      accelerate::TensorDataset({torch::randn({512, 64})}),
      {.batch_size = 16, .shuffle = true});
  torch::nn::Sequential model(
      torch::nn::Linear(64, 256), torch::nn::ReLU(), torch::nn::Linear(256, 1));
  accelerate::optim::AdamW optimizer(model->parameters());
  auto [loader, net, opt] = accelerator.prepare(dataloader, model, optimizer);

  auto profile = accelerator.profile(
      {.schedule = accelerate::ProfileSchedule{.wait = 2, .active = 3},
       .output_trace_dir = argv[1]});
  for (auto& batch : loader) {
    auto loss = net(batch[0]).square().mean();
    accelerator.backward(loss);
    opt.step();
    opt.zero_grad();
    profile.step();
  }
  profile.stop();
  accelerator.print_once(profile.table());
}
