// SPDX-License-Identifier: Apache-2.0
// Fine-tunes a pretrained encoder to classify texts.
//
//     accelerate launch text_classification train
//         --model minilm
//         --data reviews.csv --output classifier
//     text_classification predict --model classifier < lines.txt
//
// The data is a CSV or JSON Lines file with the columns `text` and `label`, or
// a folder with one file per class. The best model of all epochs is saved as a
// folder that transformers can also load.
#include <accelerate/accelerate.h>
#include <accelerate/models.h>
#include <accelerate/text.h>
#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <iomanip>
#include <iostream>

#include "labelled_texts.h"

namespace {

namespace fs = std::filesystem;
using accelerate::models::AutoModelForSequenceClassification;

struct Options {
  fs::path model = {};
  fs::path data = {};
  fs::path output = {};
  std::vector<std::string> classes = {};
  int num_epochs = 3;
  int64_t batch_size = 16;
  double learning_rate = 1e-4;
  int32_t max_seq_length = 64;
  double eval_fraction = 0.15;
  int patience = 2;
  uint64_t seed = 42;
  std::string mixed_precision = {};
};

struct Scores {
  double accuracy = 0;
  double f1 = 0;
};

/// The result is equal on all processes and for any number of processes.
template <class Net, class Loader>
Scores evaluate(
    accelerate::Accelerator& accelerator,
    Net& net,
    Loader& loader,
    int64_t num_classes) {
  const torch::NoGradGuard no_grad;
  accelerate::Accuracy accuracy(accelerator);
  accelerate::F1 f1(
      accelerator,
      {.num_classes = num_classes, .average = accelerate::F1Average::kMacro});
  net->eval();
  for (auto& batch : loader) {
    const auto logits = net(batch).logits;
    accuracy.update(logits, batch.at("labels"));
    f1.update(logits, batch.at("labels"));
  }
  net->train();
  return {accuracy.compute(), f1.compute()};
}

void save(
    accelerate::models::PretrainedModel& model,
    const fs::path& from,
    const fs::path& to) {
  model.save_pretrained(to);
  for (const char* name :
       {"tokenizer.json", "vocab.txt", "tokenizer_config.json"}) {
    if (fs::exists(from / name)) {
      fs::copy_file(
          from / name, to / name, fs::copy_options::overwrite_existing);
    }
  }
}

void train(const Options& options) {
  accelerate::AcceleratorOptions settings;
  if (!options.mixed_precision.empty()) {
    settings.mixed_precision =
        accelerate::parse_precision(options.mixed_precision);
  }
  accelerate::Accelerator accelerator(settings);
  accelerate::set_seed(options.seed);

  const auto all = texts::read(options.data, options.classes);
  const auto tokenizer = accelerate::Tokenizer::from_folder(options.model);
  const auto size = static_cast<int64_t>(all.text.size());
  const auto order = accelerate::RandomSampler(size).order(options.seed, 0);
  const auto split = order.begin() + static_cast<std::ptrdiff_t>(
                                         static_cast<double>(size) *
                                         (1 - options.eval_fraction));
  const auto tokenize = [&](auto begin, auto end) {
    return texts::tokenize(
        tokenizer, all, {begin, end}, options.max_seq_length);
  };
  const accelerate::PaddingCollator pad;
  accelerate::DataLoader train_dataloader(
      tokenize(order.begin(), split),
      {.batch_size = options.batch_size, .shuffle = true, .seed = options.seed},
      pad);
  accelerate::DataLoader eval_dataloader(
      tokenize(split, order.end()), {.batch_size = 32}, pad);

  auto model = AutoModelForSequenceClassification::from_pretrained(
      options.model,
      {.labels = all.classes, .warn = accelerator.is_main_process()});
  accelerate::optim::AdamW optimizer(
      accelerate::optim::no_decay_groups(*model),
      {.lr = options.learning_rate, .weight_decay = 0.01});

  auto [train_loader, eval_loader, net, opt] =
      accelerator.prepare(train_dataloader, eval_dataloader, model, optimizer);
  const int64_t num_training_steps = options.num_epochs * train_loader.size();
  auto lr_scheduler = accelerate::get_scheduler(
      "linear",
      opt,
      {.num_warmup_steps = num_training_steps / 10,
       .num_training_steps = num_training_steps});

  accelerator.print(
      split - order.begin(),
      " texts to train on, ",
      order.end() - split,
      " to evaluate, ",
      all.classes.size(),
      " classes, ",
      accelerator.num_processes(),
      " process(es)");
  accelerator.print("epoch  loss    accuracy  F1");
  Scores best;
  accelerate::EarlyStopping stopping(
      {.patience = options.patience, .larger_is_better = true});
  net->train();
  for (int epoch = 0; epoch < options.num_epochs; ++epoch) {
    accelerate::ProgressBar progress_bar(train_loader.size());
    accelerate::Mean loss(accelerator);
    for (auto& batch : train_loader) {
      const auto outputs = net(batch);
      accelerator.backward(outputs.loss);
      accelerator.clip_grad_norm_(model->parameters(), 1.0);
      opt.step();
      lr_scheduler.step();
      opt.zero_grad();
      loss.update(outputs.loss.detach());
      progress_bar.update(1);
    }
    const auto scores = evaluate(
        accelerator,
        net,
        eval_loader,
        static_cast<int64_t>(all.classes.size()));
    accelerator.print(
        std::fixed,
        std::setprecision(4),
        std::setw(5),
        epoch + 1,
        "  ",
        loss.compute(),
        "  ",
        scores.accuracy,
        "    ",
        scores.f1);
    // Scores are equal on all processes, so all make the same decision.
    const bool is_over = stopping.should_stop(scores.accuracy);
    if (stopping.is_best()) {
      best = scores;
      accelerator.on_main_process([&, &net = net] {
        if (!options.output.empty()) {
          save(*accelerator.unwrap_model(net), options.model, options.output);
        }
      });
    }
    if (is_over) {
      accelerator.print("no progress for ", options.patience, " epochs: stop");
      break;
    }
  }
  accelerator.wait_for_everyone();
  accelerator.print("best: accuracy ", best.accuracy, ", F1 ", best.f1);
}

void predict(const Options& options) {
  const auto tokenizer = accelerate::Tokenizer::from_folder(options.model);
  auto model =
      AutoModelForSequenceClassification::from_pretrained(options.model);
  const auto classes = model->config().labels();
  const torch::NoGradGuard no_grad;
  for (std::string line; std::getline(std::cin, line);) {
    const auto encoding = tokenizer.encode(
        line,
        {.truncation =
             accelerate::Truncation{.max_length = options.max_seq_length}});
    const auto ids = torch::tensor(encoding.ids).to(torch::kLong).unsqueeze(0);
    const auto chances = model->forward({.input_ids = ids}).logits.softmax(1);
    const auto [chance, number] = chances[0].max(0);
    std::cout << classes[static_cast<size_t>(number.item<int64_t>())] << '\t'
              << std::fixed << std::setprecision(3) << chance.item<double>()
              << '\t' << line << '\n';
  }
}

} // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Fine-tunes and uses a text classifier");
  app.require_subcommand(1);
  auto* training = app.add_subcommand("train", "Fine-tunes an encoder");
  training->add_option("--model", options.model, "Folder of the encoder")
      ->required();
  training->add_option("--data", options.data, "CSV, JSON Lines or folder")
      ->required();
  training->add_option("--output", options.output, "Folder for the best model");
  training->add_option("--classes", options.classes, "Files of the folder")
      ->delimiter(',');
  training->add_option("--num_epochs", options.num_epochs);
  training->add_option("--batch_size", options.batch_size, "Per process");
  training->add_option("--learning_rate", options.learning_rate);
  training->add_option("--max_seq_length", options.max_seq_length);
  training->add_option("--eval_fraction", options.eval_fraction);
  training->add_option("--patience", options.patience, "Patience in epochs");
  training->add_option("--seed", options.seed);
  training->add_option("--mixed_precision", options.mixed_precision);
  auto* prediction =
      app.add_subcommand("predict", "Classifies lines of standard input");
  prediction->add_option("--model", options.model, "Folder that train saved")
      ->required();
  prediction->add_option("--max_seq_length", options.max_seq_length);
  CLI11_PARSE(app, argc, argv);
  try {
    training->parsed() ? train(options) : predict(options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
