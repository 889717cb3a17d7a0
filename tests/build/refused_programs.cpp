// SPDX-License-Identifier: Apache-2.0
// Programs that must not compile, one for each number of CASE; compiled by
// refused_programs_test.py, which compares the first error.
#include <torch/torch.h>

#include <sstream>

#include "accelerate/accelerate.h"

struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x; }
};
struct NoDataset {
  size_t size() const { return 1; }
};

void refused(accelerate::Accelerator& accelerator) {
#if CASE == 0
  accelerator.reduce(std::string("loss"));
#elif CASE == 1
  accelerator.prepare(Net());
#elif CASE == 2
  accelerate::DataLoader loader(NoDataset{});
#elif CASE == 3
  torch::nn::Linear model(1, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto opt = accelerator.prepare(optimizer);
  std::stringstream file;
  torch::save(opt, file);
#elif CASE == 4
  accelerator.prepare(std::make_unique<Net>());
#elif CASE == 5
  const accelerate::TensorDataset data({torch::ones({2}), torch::ones({2})});
  for (auto& batch : accelerate::DataLoader(data)) {
    const auto& [input, target] = batch;
  }
#endif
}
