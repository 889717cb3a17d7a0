// SPDX-License-Identifier: Apache-2.0
// Our side of safetensors.py: does what a line on stdin says and answers
// with the seconds it took.
//
//   open FILE          opens a file and looks one tensor up
//   read FILE          opens a file and adds up all its bytes, as 64-bit words
//   save FILE OUT      writes the tensors of FILE to OUT, without fsync
//   save_sync FILE OUT the same, with fsync of file and folder
#include <chrono>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <sstream>

#include "accelerate/safetensors.h"

namespace {

namespace st = accelerate::safetensors;

// Compiled for this machine, as torch's sum is: what is to be measured is how
// fast the bytes come, not this loop.
std::uint64_t sum_words(std::span<const std::byte> bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(bytes.data());
  return std::accumulate(
      words, words + bytes.size() / sizeof(*words), std::uint64_t{0});
}

std::uint64_t open_file(const std::string& path) {
  const st::File file(path);
  return file.tensor(file.tensors().back().name).data.size();
}

std::uint64_t read_file(const std::string& path) {
  const st::File file(path);
  std::uint64_t sum = 0;
  for (const auto& tensor : file.tensors()) {
    sum += sum_words(tensor.data);
  }
  return sum;
}

template <class Work>
void answer(Work work) {
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t result = work();
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  std::cout << took.count() << ' ' << result << std::endl;
}

void save(const std::string& source, const std::string& target, bool sync) {
  const st::File file(source);
  answer([&] {
    st::write_file(
        target, file.tensors(), {.metadata = file.metadata(), .sync = sync});
    return std::uint64_t{0};
  });
}

} // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    std::string path;
    std::string target;
    words >> command >> path >> target;
    if (command == "open") {
      answer([&] { return open_file(path); });
    } else if (command == "read") {
      answer([&] { return read_file(path); });
    } else {
      save(path, target, command == "save_sync");
    }
  }
}
