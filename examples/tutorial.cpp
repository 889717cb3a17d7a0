// SPDX-License-Identifier: Apache-2.0
// The program of docs/tutorial.md, word for word.
#include <accelerate/accelerate.h>
#include <accelerate/models.h>
#include <accelerate/text.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

using accelerate::models::AutoModelForSequenceClassification;
using Remark = std::map<std::string, torch::Tensor>;

const std::string checkpoint = "bert-base-uncased";

std::vector<Remark> remarks(const std::vector<std::string>& things) {
  const auto tokenizer = accelerate::Tokenizer::from_folder(checkpoint);
  const std::vector<std::string> opinions = {
      "dull", "clumsy", "too long", "moving", "clever", "a joy"};
  std::vector<Remark> samples;
  for (const auto& thing : things) {
    for (size_t i = 0; i < opinions.size(); ++i) {
      const auto text = "the " + thing + " was " + opinions[i];
      const auto ids = torch::tensor(tokenizer.encode(text).ids);
      samples.push_back(
          {{"input_ids", ids.to(torch::kLong)},
           {"labels", torch::tensor(static_cast<int64_t>(i >= 3))}});
    }
  }
  return samples;
}

int main() {
  const accelerate::PaddingCollator pad;
  accelerate::DataLoader train_dataloader(
      remarks(
          {"plot",
           "cast",
           "music",
           "ending",
           "film",
           "story",
           "scene",
           "play",
           "show"}),
      {.batch_size = 8, .shuffle = true},
      pad);
  accelerate::DataLoader eval_dataloader(
      remarks({"script", "camera"}), {.batch_size = 8}, pad);

  accelerate::Accelerator accelerator;

  auto model = AutoModelForSequenceClassification::from_pretrained(
      checkpoint, {.num_labels = 2});
  torch::optim::AdamW optimizer(model->parameters(), 3e-5);

  auto [train_loader, eval_loader, net, opt] =
      accelerator.prepare(train_dataloader, eval_dataloader, model, optimizer);

  const int num_epochs = 3;
  const int64_t num_training_steps = num_epochs * train_loader.size();
  auto lr_scheduler = accelerate::get_scheduler(
      "linear",
      opt,
      {.num_warmup_steps = 0, .num_training_steps = num_training_steps});
  accelerate::ProgressBar progress_bar(num_training_steps);

  net->train();
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    for (auto& batch : train_loader) {
      auto outputs = net(batch);
      accelerator.backward(outputs.loss);

      opt.step();
      lr_scheduler.step();
      opt.zero_grad();
      progress_bar.update(1);
    }
  }
}
