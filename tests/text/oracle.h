// SPDX-License-Identifier: Apache-2.0
// The Python package `tokenizers`, called through tests/text/oracle.py.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accelerate/text.h"
#include "support/temp_dir.h"

namespace accelerate::testing {

/// Whether ACCELERATE_ORACLE_PYTHON names an interpreter.
bool has_oracle();

/// Runs `oracle.py` with these arguments; throws on failure. Returns its
/// output.
std::string run_oracle(std::vector<std::string> arguments);

/// Texts of one kind: "fortunes", "random", "hard". Cached.
const std::vector<std::string>& oracle_corpus(const std::string& kind);

/// The file of a tokenizer: "minilm" is the real one, the others ("wordpiece",
/// "gpt2", "roberta", "llama3") are trained once, on the fortunes.
std::filesystem::path oracle_tokenizer(const std::string& kind);

/// One answer of the package.
struct OracleAnswer {
  Encoding encoding;
  std::string decoded;
  std::string decoded_with_special;
};
/// The answers to a list of jobs, in order.
std::vector<OracleAnswer> oracle_encode(
    const std::filesystem::path& tokenizer,
    const nlohmann::json& jobs);

/// A range of Unicode after the first two steps of a tokenizer.
struct OracleUnicode {
  std::string text;
  std::string normalized;
  std::vector<TextWord> words;
};
/// For every `step`-th range.
std::vector<OracleUnicode> oracle_unicode(
    const std::filesystem::path& tokenizer,
    size_t step);

/// The inputs and options of a job, for our tokenizer.
std::vector<TextInput> job_inputs(const nlohmann::json& job);
EncodeOptions job_options(const nlohmann::json& job);

} // namespace accelerate::testing
