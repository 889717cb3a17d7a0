// SPDX-License-Identifier: Apache-2.0
// Classifies image files in class folders (FOLDER/CLASS/*.png) with a small
// convolutional network, random crops and flips, and early stopping.
//
//     accelerate launch --num_processes 2 image_classifier FOLDER
#include <accelerate/accelerate.h>
#include <torch/torch.h>

namespace {

constexpr int64_t kSize = 24;

torch::nn::Sequential make_model(int64_t num_classes) {
  using Conv = torch::nn::Conv2dOptions;
  return torch::nn::Sequential(
      torch::nn::Conv2d(Conv(3, 16, 3).stride(2)),
      torch::nn::ReLU(),
      torch::nn::Conv2d(Conv(16, 32, 3).stride(2)),
      torch::nn::ReLU(),
      torch::nn::AdaptiveAvgPool2d(2),
      torch::nn::Flatten(),
      torch::nn::Linear(128, num_classes));
}

void train(const char* folder) {
  accelerate::Accelerator accelerator;
  const auto normalized = accelerate::normalize({0.5}, {0.5});
  const accelerate::ImageFolder augmented(
      folder,
      {accelerate::random_resized_crop(kSize, /*min_scale=*/0.6),
       accelerate::random_horizontal_flip(),
       normalized});
  const accelerate::ImageFolder plain(
      folder, {accelerate::resize(kSize, kSize), normalized});
  // Both folders have the same files and the same split. Only training images
  // are augmented.
  auto train_set = accelerate::random_split(augmented, {0.8, 0.2}, 1)[0];
  auto eval_set = accelerate::random_split(plain, {0.8, 0.2}, 1)[1];

  accelerate::set_seed(1);
  auto model = make_model(static_cast<int64_t>(plain.classes().size()));
  accelerate::optim::AdamW optimizer(model->parameters(), {.lr = 5e-3});
  auto [net, opt, loader, eval_loader] = accelerator.prepare(
      model,
      optimizer,
      accelerate::DataLoader(
          train_set, {.batch_size = 8, .shuffle = true, .num_workers = 2}),
      accelerate::DataLoader(eval_set, {.batch_size = 8}));

  accelerate::EarlyStopping stopping(
      {.patience = 15, .larger_is_better = true});
  accelerate::Accuracy accuracy(accelerator);
  bool is_over = false;
  for (int epoch = 0; epoch < 40 && !is_over; ++epoch) {
    net.train();
    for (auto& [images, labels] : loader) {
      accelerator.backward(torch::cross_entropy_loss(net(images), labels));
      opt.step();
      opt.zero_grad();
    }
    net.eval();
    accuracy.reset();
    const torch::NoGradGuard no_grad;
    for (auto& [images, labels] : eval_loader) {
      accuracy.update(net(images), labels);
    }
    is_over = stopping.should_stop(accuracy.compute());
  }
  accelerator.print_once("accuracy ", *stopping.best());
}

} // namespace

int main(int argc, char** argv) {
  train(argc == 2 ? argv[1] : "pictures");
}
