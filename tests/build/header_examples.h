// SPDX-License-Identifier: Apache-2.0
// The names that examples in the comments of public headers assume.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"
#include "accelerate/data/packed_batches.h"
#include "accelerate/device/accelerator_kind.h"
#include "accelerate/distributed/c10d.h"
#include "accelerate/distributed/mesh.h"
#include "accelerate/models.h"
#include "accelerate/models/packing.h"
#include "accelerate/safetensors.h"
#include "accelerate/text.h"
#include "accelerate/training/empty_weights.h"

struct Review;

struct Sample {
  torch::Tensor x, y;
};
inline auto tensor_fields(Sample& s) {
  return std::tie(s.x, s.y);
}

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x);
  torch::Tensor forward(const Sample& batch);
};

struct Counter : accelerate::Stateful {
  accelerate::StateDict state_dict() const override;
  void load_state_dict(const accelerate::StateDict& state) override;
};

struct Numbers {
  void reset(int64_t epoch);
  std::optional<int64_t> next();
};

extern accelerate::Accelerator accelerator;
extern accelerate::DataLoader<accelerate::TensorDataset> dataloader;
extern accelerate::DataLoader<accelerate::VectorDataset<Sample>> loader;
extern accelerate::DataLoader<accelerate::VectorDataset<Sample>> eval_loader;
extern torch::nn::Linear model, block1, block2;
extern torch::optim::SGD optimizer;
extern accelerate::PreparedModel<NetImpl> net;
extern accelerate::PreparedOptimizer opt;
extern accelerate::Scheduler scheduler;
extern accelerate::GradScaler scaler;

extern accelerate::ProcessGroup group;

extern torch::Tensor values, loss, x, gradient, mine;
extern torch::Tensor logits, labels, v, y, w, b, gain, shift;
extern accelerate::models::ModelInputs batch;
extern std::vector<std::map<std::string, torch::Tensor>> texts;
extern std::vector<std::string> prompts;
extern std::vector<torch::Tensor> train_set;
extern Numbers source;
extern std::string folder;
extern int64_t num_right, num_tokens, num_training_steps, epoch, step;
extern uint64_t seed;
extern double pad_id;
extern accelerate::BatchOptions options;
extern accelerate::ShardOptions ranks;

torch::Tensor loss_of(const torch::Tensor& output);
void prepare_the_next_one();
c10::intrusive_ptr<c10d::Backend> make_fast_backend(
    const accelerate::BackendArguments& arguments);
void train(int64_t batch_size);
void use(const std::vector<int64_t>& indices);
