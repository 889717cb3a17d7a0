// SPDX-License-Identifier: Apache-2.0
#include "text/oracle.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

// Reads the binary files of oracle.py.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : data_(read_file(file)) {}

  bool at_end() const { return at_ == data_.size(); }

  int32_t number() {
    int32_t value = 0;
    std::memcpy(&value, take(4), 4);
    return value;
  }

  std::vector<int32_t> numbers(size_t count) {
    std::vector<int32_t> values(count);
    std::memcpy(values.data(), take(4 * count), 4 * count);
    return values;
  }

  std::string text() {
    const auto size = static_cast<size_t>(number());
    return std::string(take(size), size);
  }

  Encoding encoding() {
    Encoding result;
    const auto size = static_cast<size_t>(number());
    result.ids = numbers(size);
    result.type_ids = numbers(size);
    result.attention_mask = numbers(size);
    result.special_tokens_mask = numbers(size);
    result.word_ids = numbers(size);
    const auto offsets = numbers(2 * size);
    for (size_t i = 0; i < size; ++i) {
      result.offsets.push_back({offsets[2 * i], offsets[2 * i + 1]});
    }
    for (int32_t left = number(); left > 0; --left) {
      result.overflowing.push_back(encoding());
    }
    return result;
  }

 private:
  const char* take(size_t count) {
    if (count > data_.size() - at_) {
      throw std::runtime_error("the oracle's answer ends early");
    }
    at_ += count;
    return data_.data() + at_ - count;
  }

  std::string data_;
  size_t at_ = 0;
};

} // namespace

bool has_oracle() {
  const char* python = std::getenv("ACCELERATE_ORACLE_PYTHON");
  return python != nullptr && *python != '\0';
}

std::string run_oracle(std::vector<std::string> arguments) {
  std::vector<std::string> command = {
      std::getenv("ACCELERATE_ORACLE_PYTHON"), TEST_TEXT_ORACLE};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const auto result = run_process(
      command, {{"TOKENIZERS_PARALLELISM", "true"}}, std::chrono::seconds(240));
  if (result.exit_code != 0) {
    throw std::runtime_error("oracle.py failed: " + result.err);
  }
  return result.out;
}

const std::vector<std::string>& oracle_corpus(const std::string& kind) {
  static std::map<std::string, std::vector<std::string>> known;
  const auto [at, is_new] = known.try_emplace(kind);
  if (is_new) {
    const TempDir folder;
    const auto file = folder.path() / "corpus.json";
    run_oracle({"corpus", kind, file.string()});
    at->second = nlohmann::json::parse(read_file(file));
  }
  return at->second;
}

std::filesystem::path oracle_tokenizer(const std::string& kind) {
  static const TempDir folder;
  if (kind == "minilm") {
    std::string model = run_oracle({"minilm"});
    model.erase(model.find_last_not_of('\n') + 1);
    return std::filesystem::path(model) / "tokenizer.json";
  }
  const auto file = folder.path() / (kind + ".json");
  if (!std::filesystem::exists(file)) {
    run_oracle({"train", kind, file.string(), "6000"});
  }
  return file;
}

std::vector<OracleAnswer> oracle_encode(
    const std::filesystem::path& tokenizer,
    const nlohmann::json& jobs) {
  const TempDir folder;
  const auto job_file = folder.path() / "jobs.json";
  const auto answer_file = folder.path() / "answer";
  std::ofstream(job_file) << jobs;
  run_oracle(
      {"encode", tokenizer.string(), job_file.string(), answer_file.string()});
  Reader reader(answer_file);
  std::vector<OracleAnswer> answers;
  while (!reader.at_end()) {
    OracleAnswer& answer = answers.emplace_back();
    answer.encoding = reader.encoding();
    answer.decoded = reader.text();
    answer.decoded_with_special = reader.text();
  }
  return answers;
}

std::vector<OracleUnicode> oracle_unicode(
    const std::filesystem::path& tokenizer,
    size_t step) {
  const TempDir folder;
  const auto file = folder.path() / "answer";
  run_oracle(
      {"unicode", tokenizer.string(), file.string(), std::to_string(step)});
  Reader reader(file);
  std::vector<OracleUnicode> answers;
  while (!reader.at_end()) {
    OracleUnicode& answer = answers.emplace_back();
    answer.text = reader.text();
    answer.normalized = reader.text();
    std::istringstream words(reader.text());
    const auto count = static_cast<size_t>(reader.number());
    const auto offsets = reader.numbers(2 * count);
    for (size_t i = 0; i < count; ++i) {
      TextWord& word = answer.words.emplace_back();
      std::getline(words, word.text);
      word.offsets = {offsets[2 * i], offsets[2 * i + 1]};
    }
  }
  return answers;
}

std::vector<TextInput> job_inputs(const nlohmann::json& job) {
  std::vector<TextInput> inputs;
  for (const auto& input : job.at("inputs")) {
    const auto text = [](const nlohmann::json& value) -> std::string_view {
      return value.get_ref<const std::string&>();
    };
    if (input.is_array()) {
      inputs.emplace_back(text(input[0]), text(input[1]));
    } else {
      inputs.emplace_back(text(input));
    }
  }
  return inputs;
}

EncodeOptions job_options(const nlohmann::json& job) {
  EncodeOptions options;
  const auto side = [](const nlohmann::json& part) {
    return part.value("direction", "right") == "left" ? TextSide::kLeft
                                                      : TextSide::kRight;
  };
  options.add_special_tokens = job.value("add_special_tokens", true);
  if (job.contains("truncation")) {
    using Strategy = Truncation::Strategy;
    Truncation truncation = {.strategy = Strategy::kNone};
    if (const auto& part = job["truncation"]; !part.is_null()) {
      const std::string strategy = part.value("strategy", "longest_first");
      truncation.strategy = strategy == "only_first" ? Strategy::kOnlyFirst
                            : strategy == "only_second"
                                ? Strategy::kOnlySecond
                                : Strategy::kLongestFirst;
      truncation.max_length = part["max_length"];
      truncation.stride = part.value("stride", 0);
      truncation.direction = side(part);
    }
    options.truncation = truncation;
  }
  if (job.contains("padding")) {
    Padding padding = {.strategy = Padding::Strategy::kNone};
    if (const auto& part = job["padding"]; !part.is_null()) {
      padding.length = part.value("length", 0);
      padding.strategy = padding.length > 0 ? Padding::Strategy::kFixed
                                            : Padding::Strategy::kLongest;
      padding.multiple_of = part.value("pad_to_multiple_of", 0);
      padding.pad_id = part.value("pad_id", 0);
      padding.pad_type_id = part.value("pad_type_id", 0);
      padding.direction = side(part);
    }
    options.padding = padding;
  }
  return options;
}

} // namespace accelerate::testing
