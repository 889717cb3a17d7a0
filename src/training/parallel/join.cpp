// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/join.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <set>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/parallel/engine.h"
#include "training/parallel/joinable.h"

namespace accelerate {
namespace {

constexpr size_t kNumFacts = 5;
constexpr int64_t kNothing = std::numeric_limits<int64_t>::min();
/// The status of a rank that is training. A finished rank sends the negative
/// number of its micro-batches in incomplete accumulations.
constexpr int64_t kTrains = 1;

} // namespace

JoinChannel::JoinChannel(ProcessGroup group, JoinOptions options)
    : group_(std::move(group)), options_(options) {}

JoinAnnouncement JoinChannel::announce(
    JoinEvent event,
    int64_t model,
    bool records,
    bool syncs) {
  return *exchange(
      {static_cast<int64_t>(event),
       model,
       records,
       syncs,
       num_updates_ ? num_updates_() : 0},
      kTrains);
}

std::optional<JoinAnnouncement> JoinChannel::listen(int64_t num_unfinished) {
  return exchange({}, -num_unfinished);
}

int64_t JoinChannel::divisor(const JoinAnnouncement& announced) const {
  return divides_by_active() ? announced.num_active : group_.world_size();
}

// Every value is sent together with its negative. The maxima of both agree only
// if all ranks have sent the same value. The status of each rank follows.
std::optional<JoinAnnouncement> JoinChannel::exchange(
    const std::vector<int64_t>& facts,
    int64_t status) {
  const auto world_size = static_cast<size_t>(group_.world_size());
  std::vector<int64_t> message(2 * kNumFacts + world_size, kNothing);
  for (size_t i = 0; i < facts.size(); ++i) {
    message[2 * i] = facts[i];
    message[2 * i + 1] = -facts[i];
  }
  message[2 * kNumFacts + static_cast<size_t>(group_.rank())] = status;
  auto shared = at::tensor(message, at::kLong);
  group_.all_reduce(shared, ReduceOp::kMax);
  const auto* seen = shared.const_data_ptr<int64_t>();

  JoinAnnouncement announced;
  for (size_t rank = 0; rank < world_size; ++rank) {
    if (seen[2 * kNumFacts + rank] == kTrains) {
      ++announced.num_active;
      announced.last_active = static_cast<int>(rank);
    }
  }
  if (announced.num_active == 0) {
    unfinished_of_ranks_.clear();
    for (size_t rank = 0; rank < world_size; ++rank) {
      unfinished_of_ranks_.push_back(-seen[2 * kNumFacts + rank]);
    }
    return std::nullopt;
  }
  for (size_t i = 0; i < kNumFacts; ++i) {
    if (seen[2 * i] != -seen[2 * i + 1]) {
      const char* what[] = {
          "they are at different points in a step, for example because only "
          "some of them pass a loss weight",
          "they call different models",
          "only some record gradients",
          "some accumulate gradients and some synchronise them, for example "
          "because one rank's loader ends in the middle of gradient "
          "accumulation",
          "they have called optimizer.step() a different number of times"};
      throw MismatchError(str_cat(
          "[join_uneven_inputs] Ranks that still have batches do different "
          "things: ",
          what[i],
          ". Use the models in the same way on all ranks"));
    }
  }
  announced.event = static_cast<JoinEvent>(seen[0]);
  announced.model = seen[2];
  announced.records = seen[4] != 0;
  announced.syncs = seen[6] != 0;
  last_trained_ = announced.last_active;
  return announced;
}

StepReductions::StepReductions(ProcessGroup group, c10::Device device)
    : group_(std::move(group)), device_(device) {}

int64_t StepReductions::reduce(at::Tensor& numbers, ReduceOp op) {
  if (!join_) {
    group_.all_reduce(numbers, op);
    return group_.world_size();
  }
  const auto announced = join_->announce(
      JoinEvent::kReduction,
      numbers.numel(),
      numbers.scalar_type() == at::kDouble,
      op == ReduceOp::kSum);
  auto shared = numbers.reshape({-1}).to(device_);
  group_.all_reduce(shared, op);
  numbers = shared.view(numbers.sizes()).to(numbers.device());
  return join_->divisor(announced);
}

void StepReductions::begin_join(
    std::shared_ptr<JoinChannel> channel,
    const Engines& engines) {
  if (join_) {
    throw UsageError(
        "[join_uneven_inputs] join_uneven_inputs cannot be nested. Use one "
        "block for all models that the loop trains");
  }
  join_ = std::move(channel);
  join_->set_num_updates(num_updates_);
  joined_ = engines;
}

void StepReductions::end_join() {
  join_.reset();
  joined_.clear();
}

bool StepReductions::leaves_out(const ParallelEngine& engine) const {
  return join_ && !engine.is_local() &&
         std::none_of(joined_.begin(), joined_.end(), [&](const auto& joined) {
           return joined.get() == &engine;
         });
}

int64_t StepReductions::num_unfinished() const {
  return unfinished_ ? unfinished_(joined_) : 0;
}

void StepReductions::match(const JoinAnnouncement& announced) const {
  auto numbers = at::zeros(
      {announced.model},
      at::TensorOptions(device_).dtype(
          announced.records ? at::kDouble : at::kFloat));
  group_.all_reduce(numbers, announced.syncs ? ReduceOp::kSum : ReduceOp::kMax);
}

void StepReductions::share(int root) const {
  if (share_) {
    share_(root);
  }
  if (forget_updates_) {
    forget_updates_();
  }
}

JoinGuard::JoinGuard(
    std::shared_ptr<StepReductions> reductions,
    std::vector<ParallelEngine*> engines,
    JoinOptions options,
    bool even)
    : reductions_(std::move(reductions)),
      channel_(std::make_shared<JoinChannel>(reductions_->group(), options)),
      num_exceptions_(std::uncaught_exceptions()) {
  const std::set<ParallelEngine*> distinct(engines.begin(), engines.end());
  if (engines.empty() || distinct.size() != engines.size()) {
    throw UsageError(str_cat(
        "[join_uneven_inputs] ",
        engines.empty() ? "No model was passed" : "A model was passed twice",
        ". Pass each prepared model that the loop trains, and pass it only "
        "once"));
  }
  for (auto* engine : engines) {
    if (engine->mesh().size(MeshDimension::kTensor) > 1) {
      throw UsageError(
          "[join_uneven_inputs] Tensor parallelism does not support a "
          "different "
          "number of batches on each rank. Turn on even_batches in the loader, "
          "and remove join_uneven_inputs");
    }
    engines_.push_back(engine->shared_from_this());
  }
  reductions_->begin_join(channel_, engines_);
  try {
    for (size_t i = 0; i < engines_.size(); ++i) {
      if (auto* joinable = engines_[i]->joinable()) {
        joinable->begin_join(channel_, static_cast<int64_t>(i));
      } else if (!even && !engines_[i]->is_local()) {
        throw UsageError(str_cat(
            "[join_uneven_inputs] The strategy of model ",
            i,
            " does not support a different number of batches on each rank. "
            "Turn on even_batches in the loader, or train the model with DDP "
            "without static_graph"));
      }
    }
  } catch (...) {
    leave();
    throw;
  }
}

void JoinGuard::leave() {
  reductions_->end_join();
  for (const auto& engine : engines_) {
    if (auto* joinable = engine->joinable()) {
      joinable->end_join();
    }
  }
}

JoinGuard::~JoinGuard() noexcept(false) {
  if (is_abandoned_ || std::uncaught_exceptions() != num_exceptions_) {
    leave();
    return;
  }
  try {
    match_collectives();
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

void JoinGuard::match_collectives() {
  const auto num_unfinished = reductions_->num_unfinished();
  while (const auto announced = channel_->listen(num_unfinished)) {
    if (announced->event == JoinEvent::kReduction) {
      reductions_->match(*announced);
    } else {
      // Only a joinable model can be announced.
      engines_[static_cast<size_t>(announced->model)]->joinable()->match(
          *announced);
    }
  }
  if (const auto root = channel_->last_trained()) {
    for (const auto& engine : engines_) {
      if (auto* joinable = engine->joinable()) {
        joinable->share_all(*root);
      }
    }
    reductions_->share(*root);
  }
  check_accumulation();
}

void JoinGuard::check_accumulation() const {
  const auto& unfinished = channel_->unfinished_of_ranks();
  const auto [least, most] =
      std::minmax_element(unfinished.begin(), unfinished.end());
  if (*least == *most) {
    return;
  }
  const auto rank_of = [&](const auto& it) { return it - unfinished.begin(); };
  throw UsageError(str_cat(
      "[join_uneven_inputs] Rank ",
      rank_of(most),
      " ran out of batches in the middle of gradient accumulation: it has ",
      *most,
      *most == 1 ? " micro-batch" : " micro-batches",
      " left over, but rank ",
      rank_of(least),
      " has ",
      *least,
      ". The gradients of these micro-batches would be lost. Give every rank a "
      "number of batches that is a multiple of gradient_accumulation_steps. "
      "If the loaders are prepared, only the ranks that finish last may have "
      "remaining micro-batches"));
}

} // namespace accelerate
