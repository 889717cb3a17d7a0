// SPDX-License-Identifier: Apache-2.0
// Writes a tensor to a file and reads it back, without torch.
#include <accelerate/safetensors.h>

#include <iostream>

namespace st = accelerate::safetensors;

int main() {
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  const st::TensorView tensor{
      .name = "weight",
      .dtype = st::Dtype::kF32,
      .shape = {2, 3},
      .data = std::as_bytes(std::span(weight))};
  st::write_file("weight.safetensors", {{tensor}});

  const st::File file("weight.safetensors");
  for (const auto& view : file.tensors()) {
    std::cout << view.name << ": " << st::dtype_name(view.dtype) << ", "
              << view.num_elements() << " elements, " << view.data.size()
              << " bytes\n";
  }
}
