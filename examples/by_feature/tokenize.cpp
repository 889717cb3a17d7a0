// SPDX-License-Identifier: Apache-2.0
// Converts text to ids and back with the tokenizer of a Hugging Face folder.
#include <accelerate/text.h>

#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  const auto tokenizer =
      accelerate::Tokenizer::from_folder(argc > 1 ? argv[1] : ".");
  const std::vector<std::string> texts = {
      "Hello world!", "A sentence of another length."};
  const auto batch =
      tokenizer.encode_batch(texts, {.padding = accelerate::Padding{}});
  for (const auto& encoding : batch) {
    for (const int32_t id : encoding.ids) {
      std::cout << id << ' ';
    }
    std::cout << "-> " << tokenizer.decode(encoding.ids) << '\n';
  }
}
