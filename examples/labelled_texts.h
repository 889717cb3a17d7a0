// SPDX-License-Identifier: Apache-2.0
// Reads, splits and tokenises texts for the examples.
#pragma once

#include <accelerate/accelerate.h>
#include <accelerate/text.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace texts {

namespace fs = std::filesystem;

/// `label[i]` is the index of the class of `text[i]` in `classes`.
struct Labelled {
  std::vector<std::string> text;
  std::vector<int64_t> label;
  std::vector<std::string> classes;
};

/// The entries of a file. Lines of `%` separate them, as in the files of
/// `fortune`. Without such lines, each line is an entry.
inline std::vector<std::string> read_entries(const fs::path& file) {
  std::ifstream in(file);
  if (!in) {
    throw accelerate::SystemError(
        "[read_entries] cannot open " + file.string());
  }
  std::vector<std::string> lines;
  std::vector<std::string> entries(1);
  bool is_parted = false;
  for (std::string line; std::getline(in, line);) {
    if (line == "%") {
      is_parted = true;
      entries.emplace_back();
    } else {
      entries.back() += (entries.back().empty() ? "" : "\n") + line;
      lines.push_back(line);
    }
  }
  auto& answer = is_parted ? entries : lines;
  std::erase_if(answer, [](const std::string& text) {
    return text.find_first_not_of(" \t\n\r") == std::string::npos;
  });
  return answer;
}

/// Reads a folder with one file per class, or only the files in `classes`.
inline Labelled read_folder(
    const fs::path& folder,
    std::vector<std::string> classes) {
  if (classes.empty()) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.is_regular_file() && !entry.path().has_extension()) {
        classes.push_back(entry.path().filename());
      }
    }
    std::sort(classes.begin(), classes.end());
  }
  Labelled all;
  for (const auto& name : classes) {
    for (auto& text : read_entries(folder / name)) {
      all.text.push_back(std::move(text));
      all.label.push_back(static_cast<int64_t>(all.classes.size()));
    }
    all.classes.push_back(name);
  }
  return all;
}

/// Reads the columns `text` and `label` of a CSV or JSON Lines file.
inline Labelled read_table(const fs::path& file) {
  const auto table = file.extension() == ".csv"
                         ? accelerate::read_csv({file})
                         : accelerate::read_json_lines({file});
  Labelled all;
  all.text = table.texts("text");
  const auto names = table.texts("label");
  all.classes = names;
  std::sort(all.classes.begin(), all.classes.end());
  all.classes.erase(
      std::unique(all.classes.begin(), all.classes.end()), all.classes.end());
  for (const auto& name : names) {
    const auto place =
        std::lower_bound(all.classes.begin(), all.classes.end(), name);
    all.label.push_back(place - all.classes.begin());
  }
  return all;
}

inline Labelled read(
    const fs::path& path,
    const std::vector<std::string>& classes) {
  auto all =
      fs::is_directory(path) ? read_folder(path, classes) : read_table(path);
  if (all.classes.size() < 2) {
    throw accelerate::UsageError(
        "[read] " + path.string() + " has " +
        std::to_string(all.classes.size()) +
        " classes, but at least two are needed. Use a folder with two files or "
        "a column 'label' with two values");
  }
  return all;
}

/// One text as the input of the model. Collation pads it and adds the mask.
using Sample = std::map<std::string, torch::Tensor>;

inline std::vector<Sample> tokenize(
    const accelerate::Tokenizer& tokenizer,
    const Labelled& texts,
    const std::vector<int64_t>& indices,
    int32_t max_length) {
  std::vector<std::string> chosen;
  for (const int64_t i : indices) {
    chosen.push_back(texts.text[static_cast<size_t>(i)]);
  }
  const auto encodings = tokenizer.encode_batch(
      chosen,
      {.truncation = accelerate::Truncation{.max_length = max_length},
       .padding = accelerate::Padding{
           .strategy = accelerate::Padding::Strategy::kNone}});
  std::vector<Sample> samples;
  for (size_t i = 0; i < encodings.size(); ++i) {
    const int64_t label = texts.label[static_cast<size_t>(indices[i])];
    samples.push_back(
        {{"input_ids", torch::tensor(encodings[i].ids).to(torch::kLong)},
         {"labels", torch::tensor(label)}});
  }
  return samples;
}

} // namespace texts
