// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT-2 from scratch on the bytes of text files, then generates
// a few sentences with it.
//
//     accelerate launch --num_processes 2 language_modeling
//         /usr/share/games/fortunes/{computers,science}
#include <accelerate/accelerate.h>
#include <accelerate/models.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "labelled_texts.h"

namespace {

constexpr int64_t kEnd = 256; // after the 256 bytes
constexpr int64_t kSequence = 64;
constexpr int kEpochs = 6;

accelerate::models::ModelConfig small_gpt2() {
  auto config =
      accelerate::models::ModelConfig::parse(R"({"model_type": "gpt2"})");
  config.set("vocab_size", kEnd + 1);
  config.set("n_positions", 128);
  config.set("n_embd", 128);
  config.set("n_layer", 3);
  config.set("n_head", 4);
  config.set("bos_token_id", kEnd);
  config.set("eos_token_id", kEnd);
  return config;
}

/// Every entry of the files, byte by byte, followed by an end token.
std::vector<int64_t> bytes_of(int num_files, char** files) {
  std::vector<int64_t> ids;
  for (int i = 0; i < num_files; ++i) {
    for (const auto& entry : texts::read_entries(files[i])) {
      for (const char c : entry) {
        ids.push_back(static_cast<unsigned char>(c));
      }
      ids.push_back(kEnd);
    }
  }
  return ids;
}

std::string text_of(const torch::Tensor& ids) {
  std::string text;
  for (int64_t i = 0; i < ids.numel() && ids[i].item<int64_t>() < kEnd; ++i) {
    text += static_cast<char>(ids[i].item<int64_t>());
  }
  return text;
}

void train(int num_files, char** files) {
  accelerate::Accelerator accelerator;
  accelerate::set_seed(1);
  // One process writes the tokens to a file, and all processes map it.
  const auto file =
      std::filesystem::temp_directory_path() /
      ("language_modeling." + accelerator.process_group().broadcast_bytes(
                                  std::to_string(getpid()), 0));
  accelerator.on_main_process(
      [&] { accelerate::write_token_file(file, bytes_of(num_files, files)); });
  accelerator.wait_for_everyone();
  accelerate::DataLoader dataloader(
      accelerate::TokenFileDataset({file}, {.sequence_length = kSequence}),
      {.batch_size = 16, .shuffle = true, .drop_last = true, .seed = 1});
  auto model =
      accelerate::models::AutoModelForCausalLM::from_config(small_gpt2());
  accelerate::optim::AdamW optimizer(model->parameters(), {.lr = 2e-3});
  auto [loader, net, opt] = accelerator.prepare(dataloader, model, optimizer);
  const int64_t num_training_steps = kEpochs * loader.size();
  auto scheduler = accelerate::get_scheduler(
      "cosine",
      opt,
      {.num_warmup_steps = 20, .num_training_steps = num_training_steps});
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    torch::Tensor loss;
    for (auto& batch : loader) {
      loss = net(batch).loss;
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model->parameters(), 1.0);
      opt.step();
      scheduler.step();
      opt.zero_grad();
    }
    accelerator.print(
        "epoch ", epoch + 1, " of ", kEpochs, ": loss ", loss.item<float>());
  }
  accelerator.on_main_process([&, &net = net] {
    std::filesystem::remove(file);
    net->eval();
    const auto start =
        torch::full({3, 1}, kEnd, torch::kLong).to(accelerator.device());
    const auto written = net->generate(
        start, {.max_new_tokens = 100, .do_sample = true, .temperature = 0.7});
    for (int64_t i = 0; i < written.size(0); ++i) {
      std::cout << "--- " << text_of(written[i].slice(0, 1)) << '\n';
    }
  });
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: language_modeling FILE...\n";
    return 2;
  }
  try {
    train(argc - 1, argv + 1);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
