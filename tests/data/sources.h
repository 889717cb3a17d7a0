// SPDX-License-Identifier: Apache-2.0
// Datasets and loops for tests of loaders.
#pragma once

#include <torch/torch.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "accelerate/data_loader.h"
#include "training/state/step_state.h"

namespace accelerate::testing {

inline TensorDataset numbers(int64_t size) {
  return TensorDataset({torch::arange(size), torch::arange(size) * 10});
}

/// 0, 1, 2, ... Parts are uneven: of `count` parts, part 0 gets two of every
/// `count + 1` elements.
struct Counter {
  int64_t size = 0;
  int64_t fails_at = -1;
  int64_t part = 0;
  int64_t num_shards = 1;
  int64_t at = 0;

  void reset(int64_t /*epoch*/) { at = 0; }
  void shard(int64_t index, int64_t count) {
    part = index;
    num_shards = count;
  }
  std::optional<torch::Tensor> next() {
    while (at < size && at % (num_shards + 1) % num_shards != part) {
      ++at;
    }
    if (at == fails_at) {
      throw std::runtime_error("the disk is gone");
    }
    return at < size ? std::optional(torch::tensor(at++)) : std::nullopt;
  }
};

/// Throws on one sample, counts what is read.
struct Faulty {
  int64_t num_samples = 0;
  int64_t fails_at = -1;
  std::shared_ptr<std::atomic<int>> num_read =
      std::make_shared<std::atomic<int>>(0);

  size_t size() const { return static_cast<size_t>(num_samples); }
  torch::Tensor get(int64_t index) const {
    ++*num_read;
    if (index == fails_at) {
      throw std::runtime_error("the disk is gone");
    }
    return torch::tensor(index);
  }
};

inline std::vector<int64_t> to_vector(const torch::Tensor& tensor) {
  const auto flat = tensor.contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}
inline torch::Tensor ids(const torch::Tensor& batch) {
  return batch;
}
inline torch::Tensor ids(const std::vector<torch::Tensor>& batch) {
  return batch[0];
}

/// What one loop over a loader returned.
struct Seen {
  std::vector<std::vector<int64_t>> batches;
  /// Samples that count.
  std::vector<int64_t> real;
  std::vector<bool> is_last;
};

/// Runs a loop of `max_batches` at most.
template <class Loader>
Seen run_loop(Loader& loader, StepState& state, int64_t max_batches = 1000) {
  Seen seen;
  if (max_batches == 0) {
    return seen;
  }
  for (auto& batch : loader) {
    const auto facts = state.batch().value();
    const auto samples = to_vector(ids(batch));
    EXPECT_EQ(static_cast<int64_t>(samples.size()), facts.num_samples);
    seen.batches.push_back(samples);
    seen.real.insert(
        seen.real.end(), samples.begin(), samples.begin() + facts.num_real);
    seen.is_last.push_back(facts.is_last);
    if (static_cast<int64_t>(seen.batches.size()) == max_batches) {
      break;
    }
  }
  EXPECT_FALSE(state.batch().has_value()) << "a loop left a trace";
  return seen;
}

/// A loader as prepared for rank `shard.rank`, without the other ranks.
template <class Loader>
std::pair<Loader, std::shared_ptr<StepState>> place(
    const Loader& loader,
    ShardOptions shard = {}) {
  auto state = std::make_shared<StepState>();
  return {
      loader.prepared(
          {.shard = shard,
           .device = c10::Device(c10::kCPU),
           .step_state = state}),
      state};
}

} // namespace accelerate::testing
