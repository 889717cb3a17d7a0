// SPDX-License-Identifier: Apache-2.0
// The training of elastic_training_test.cpp:
//
//     elastic_trainer FOLDER [CHECKPOINT]
//
// Trains one epoch from the latest checkpoint in FOLDER, with a checkpoint
// after every second step, and a line in FOLDER/log per step and rank: the
// checkpoint that this process started from, samples, loss. After
// kNumUntilPause steps it waits for the file FOLDER/go. With CHECKPOINT it is
// the reference: starts from that one, saves nothing, makes as many steps.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

namespace {

namespace fs = std::filesystem;

constexpr int64_t kNumSamples = 70;
constexpr int kNumUntilPause = 5;

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return second(torch::tanh(first(x)));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 8));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 1));
};
TORCH_MODULE(Net);

auto make_loader() {
  const auto ids = torch::arange(kNumSamples);
  const auto x = (ids.unsqueeze(1) * torch::arange(1, 5)).sin();
  return accelerate::DataLoader(
      accelerate::TensorDataset({x, x.sum(1, true), ids}),
      {.batch_size = 2, .shuffle = true, .seed = 3});
}

std::string line_of(const at::Tensor& ids, double loss) {
  std::string line;
  for (int64_t i = 0; i < ids.numel(); ++i) {
    line += std::to_string(ids[i].item<int64_t>()) + ' ';
  }
  char text[64];
  std::snprintf(text, sizeof(text), "loss %a\n", loss);
  return line + text;
}

void train(const fs::path& folder, const char* reference) {
  accelerate::AcceleratorOptions options;
  options.cpu = true;
  options.checkpoints = {.folder = folder, .total_limit = 5};
  accelerate::Accelerator accelerator(options);
  torch::manual_seed(1);
  Net model;
  accelerate::optim::AdamW adamw(model->parameters(), {.lr = 0.05});
  auto [net, opt, loader] = accelerator.prepare(model, adamw, make_loader());

  std::string from = "none";
  if (reference != nullptr) {
    from = reference;
    accelerator.load_state(folder / "checkpoints" / reference);
  } else if (const auto latest = accelerator.latest_checkpoint()) {
    from = latest->filename().string();
    accelerator.load_state("latest");
  }
  const auto name = from + (reference != nullptr ? ".reference." : ".") +
                    std::to_string(accelerator.num_processes()) + '.' +
                    std::to_string(accelerator.process_index());
  std::ofstream log(folder / "log" / name);
  int num_steps = 0;
  for (auto& batch : loader) {
    const auto loss = torch::mse_loss(net(batch[0]), batch[1]);
    accelerator.backward(loss);
    opt.step();
    opt.zero_grad();
    log << line_of(batch[2], loss.item<double>()) << std::flush;
    ++num_steps;
    if (reference == nullptr && num_steps % 2 == 0) {
      const auto saved = accelerator.save_state();
      log << "saved " << saved.filename().string() << std::endl;
    }
    if (num_steps == kNumUntilPause) {
      if (reference != nullptr) {
        return;
      }
      log << "pause" << std::endl;
      while (!fs::exists(folder / "go")) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }
}

} // namespace

int main(int count, char** arguments) {
  try {
    train(arguments[1], count > 2 ? arguments[2] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
