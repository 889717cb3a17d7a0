// SPDX-License-Identifier: Apache-2.0
// Splits the weights of a model into files of a maximum size, in the layout
// that Hugging Face libraries read: sharded_weights FROM TO 5GB
#include <accelerate/files/safetensors_index.h>

#include <iostream>

namespace st = accelerate::safetensors;

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: sharded_weights FROM TO SIZE\n";
    return 2;
  }
  const st::Checkpoint model(argv[1]); // a file, an index or a folder
  const auto names = st::save_sharded(
      argv[2], model.tensors(), {.max_shard_bytes = st::parse_size(argv[3])});
  for (const auto& name : names) {
    std::cout << name << '\n';
  }
}
