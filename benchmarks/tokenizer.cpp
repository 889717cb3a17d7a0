// SPDX-License-Identifier: Apache-2.0
// Encodes a file of texts repeatedly. tokenizer.py runs this and the Python
// package.
//
// Usage: tokenizer TOKENIZER TEXTS THREADS, TEXTS separated by NUL bytes. For
// each line of input prints the seconds of one pass and the sum of all ids.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "accelerate/text.h"

namespace {

std::vector<std::string> read_texts(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> texts;
  for (std::string text; std::getline(file, text, '\0');) {
    texts.push_back(text);
  }
  return texts;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: tokenizer TOKENIZER TEXTS THREADS\n";
    return 2;
  }
  const auto tokenizer = accelerate::Tokenizer::from_file(argv[1]);
  const auto texts = read_texts(argv[2]);
  const accelerate::EncodeOptions options = {
      .truncation =
          accelerate::Truncation{
              .strategy = accelerate::Truncation::Strategy::kNone},
      .padding =
          accelerate::Padding{.strategy = accelerate::Padding::Strategy::kNone},
      .num_threads = std::atoi(argv[3])};
  for (std::string line; std::getline(std::cin, line);) {
    const auto start = std::chrono::steady_clock::now();
    const auto encodings = tokenizer.encode_batch(texts, options);
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - start;
    int64_t sum = 0;
    for (const auto& encoding : encodings) {
      for (const int32_t id : encoding.ids) {
        sum += id;
      }
    }
    std::cout << seconds.count() << " " << sum << std::endl;
  }
}
