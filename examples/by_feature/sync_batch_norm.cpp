// SPDX-License-Identifier: Apache-2.0
// Normalises small batches with statistics over the batches of all ranks.
//
//     accelerate launch --num_processes 2 example_sync_batch_norm
#include <accelerate/accelerate.h>
#include <torch/torch.h>

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::relu(norm(conv(x))).mean({2, 3}));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 8, 3)};
  accelerate::SyncBatchNorm2d norm{8};
  torch::nn::Linear out{8, 2};
};
TORCH_MODULE(Net);

int main() {
  accelerate::Accelerator accelerator;
  accelerate::set_seed(0);
  const auto labels = torch::arange(64) % 2;
  const auto images =
      torch::randn({64, 1, 8, 8}) * (labels + 1).view({-1, 1, 1, 1});
  accelerate::DataLoader dataloader(
      accelerate::TensorDataset({images, labels}),
      {.batch_size = 4, .shuffle = true});
  Net model;
  torch::optim::AdamW optimizer(model->parameters(), 0.02);
  auto [loader, net, opt] = accelerator.prepare(dataloader, model, optimizer);

  torch::Tensor loss;
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (auto& batch : loader) {
      loss = torch::cross_entropy_loss(net(batch[0]), batch[1]);
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
    }
  }
  accelerator.print("loss ", loss.item<double>());
  const auto means = accelerator.gather(net->norm->running_mean.unsqueeze(0));
  accelerator.print(
      "ranks agree: ", means.equal(means[0].expand_as(means)) ? "yes" : "no");
}
