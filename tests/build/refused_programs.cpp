// SPDX-License-Identifier: Apache-2.0
// Functions that must not compile. refused_programs_test.py compiles them and
// compares the first error of each; the hundreds of a line number identify its
// function.
#include <torch/torch.h>

#include <sstream>

#include "accelerate/accelerate.h"

struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x; }
};
struct NoDataset {
  size_t size() const { return 1; }
};

#line 100
void no_tensor(accelerate::Accelerator& accelerator) {
  accelerator.reduce(std::string("loss"));
}
#line 200
void module_by_value(accelerate::Accelerator& accelerator) {
  accelerator.prepare(Net());
}
#line 300
void no_dataset() {
  accelerate::DataLoader loader(NoDataset{});
}
#line 400
void saved_optimizer(accelerate::Accelerator& accelerator) {
  torch::nn::Linear model(1, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto opt = accelerator.prepare(optimizer);
  std::stringstream file;
  torch::save(opt, file);
}
#line 500
void module_not_shared(accelerate::Accelerator& accelerator) {
  accelerator.prepare(std::make_unique<Net>());
}
#line 600
void unknown_columns() {
  const accelerate::TensorDataset data({torch::ones({2}), torch::ones({2})});
  for (auto& batch : accelerate::DataLoader(data)) {
    const auto& [input, target] = batch;
  }
}
