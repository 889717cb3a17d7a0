// SPDX-License-Identifier: Apache-2.0
// REINFORCE: a policy learns to walk along a line to its end at +5. Episodes
// have different lengths on every rank. The loss of an episode is the mean over
// its steps. It is weighted by the number of steps, so all steps of all ranks
// have equal weight.
//
//     accelerate launch --num_processes 2 reinforce
#include <accelerate/accelerate.h>
#include <torch/torch.h>

namespace {

constexpr int64_t kGoal = 5;
constexpr int64_t kMostSteps = 40;

/// States and moves (0: left, 1: right) from 0 to an end of the line, at most
/// kMostSteps.
struct Episode {
  std::vector<float> states;
  std::vector<int64_t> moves;
  double reward = 0;
};

template <class Policy>
Episode walk(const Policy& policy) {
  const torch::NoGradGuard no_grad;
  Episode episode;
  int64_t place = 0;
  while (std::abs(place) < kGoal &&
         static_cast<int64_t>(episode.moves.size()) < kMostSteps) {
    const auto state = static_cast<float>(place) / kGoal;
    const auto scores = policy(torch::full({1, 1}, state));
    const auto move = scores.softmax(1).multinomial(1).template item<int64_t>();
    episode.states.push_back(state);
    episode.moves.push_back(move);
    place += 2 * move - 1;
  }
  episode.reward = place == kGoal ? 1 : -1;
  return episode;
}

} // namespace

int main() {
  accelerate::Accelerator accelerator({.cpu = true});
  accelerate::set_seed(1);
  torch::nn::Sequential model(
      torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Linear(16, 2));
  accelerate::optim::Adam optimizer(model->parameters(), {.lr = 1e-2});
  auto [policy, opt] = accelerator.prepare(model, optimizer);
  // Each rank has its own random numbers.
  const auto rank = static_cast<uint64_t>(accelerator.process_index());
  accelerate::set_seed(1, {.offset = 1 + rank});

  double baseline = 0;
  for (int update = 0; update < 150; ++update) {
    const Episode episode = walk(policy);
    const auto num_steps = static_cast<int64_t>(episode.moves.size());
    const auto states = torch::tensor(episode.states).unsqueeze(1);
    const auto moves = torch::tensor(episode.moves).unsqueeze(1);
    const auto chosen = policy(states).log_softmax(1).gather(1, moves);
    const auto loss = -(episode.reward - baseline) * chosen.mean();
    accelerator.backward(loss, {.weight = num_steps});
    opt.step();
    opt.zero_grad();
    const double reward =
        accelerator.reduce(episode.reward, accelerate::ReduceOp::kMean);
    baseline += 0.1 * (reward - baseline);
  }
  accelerate::Mean reward(accelerator);
  for (int i = 0; i < 20; ++i) {
    reward.update(walk(policy).reward);
  }
  accelerator.print_once("reward ", reward.compute());
}
