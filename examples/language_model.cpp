// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT-2 on the bytes of a text file and prints its perplexity on
// a part of the file that was not used for training. Padding at the end of a
// line is ignored. All tokens of all ranks have equal weight.
//
//     accelerate launch --num_processes 2 language_model FILE
#include <accelerate/accelerate.h>
#include <accelerate/models.h>
#include <torch/torch.h>

#include <fstream>

namespace {

using accelerate::models::ModelInputs;
constexpr int64_t kLength = 48;

/// One line of the file per row, truncated or padded with ignored labels.
torch::Tensor read_lines(const char* file) {
  std::ifstream input(file);
  std::vector<torch::Tensor> rows;
  for (std::string line; std::getline(input, line);) {
    auto row = torch::full({kLength}, accelerate::kIgnoredLabel);
    for (size_t i = 0; i < std::min<size_t>(line.size(), kLength); ++i) {
      row[static_cast<int64_t>(i)] = static_cast<unsigned char>(line[i]);
    }
    rows.push_back(row);
  }
  return torch::stack(rows);
}

ModelInputs inputs_of(const torch::Tensor& labels) {
  return {.input_ids = labels.clamp_min(0), .labels = labels};
}

void train(const char* file) {
  accelerate::set_seed(1);
  accelerate::Accelerator accelerator;
  auto parts = accelerate::random_split(
      accelerate::TensorDataset({read_lines(file)}), {0.9, 0.1}, 1);
  auto model = accelerate::models::AutoModelForCausalLM::from_config(
      accelerate::models::ModelConfig::parse(
          R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 48,
              "n_embd": 64, "n_layer": 2, "n_head": 4})"));
  accelerate::optim::AdamW optimizer(model->parameters(), {.lr = 3e-3});
  auto [net, opt, loader, eval_loader] = accelerator.prepare(
      model,
      optimizer,
      accelerate::DataLoader(parts[0], {.batch_size = 16, .shuffle = true}),
      accelerate::DataLoader(parts[1], {.batch_size = 16}));
  accelerate::Perplexity perplexity(accelerator);
  for (int epoch = 0; epoch < 3; ++epoch) {
    net.train();
    for (auto& batch : loader) {
      const auto inputs = inputs_of(batch[0]);
      const auto weight = accelerate::num_loss_tokens(
          accelerate::models::causal_labels(inputs));
      const auto loss = net(inputs).loss;
      accelerator.backward(loss, {.weight = weight});
      accelerator.clip_grad_norm_(net.parameters(), 1.0);
      opt.step();
      opt.zero_grad();
    }
    net.eval();
    perplexity.reset();
    const torch::NoGradGuard no_grad;
    for (auto& batch : eval_loader) {
      const auto inputs = inputs_of(batch[0]);
      perplexity.update(
          net(inputs).logits, accelerate::models::causal_labels(inputs));
    }
    accelerator.print_once("perplexity ", perplexity.compute());
  }
}

} // namespace

int main(int argc, char** argv) {
  train(argc == 2 ? argv[1] : "text.txt");
}
