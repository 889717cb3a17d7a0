// SPDX-License-Identifier: Apache-2.0
// Worker threads make rounds ahead of time.
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "training/data/batch_stream.h"
#include "training/device/side_stream.h"

// Sets the number of OpenMP threads of the calling thread. torch's
// `set_num_threads` would also affect later threads and MKL. Weak, because a
// torch built without OpenMP has no such function.
extern "C" __attribute__((weak)) void omp_set_num_threads(int num_threads);

namespace accelerate::detail {
namespace {

// Workers already run in parallel. If each of them started threads for its
// operators, these would compete for cores.
void keep_operators_in_this_thread() {
  at::get_num_threads();
  if (omp_set_num_threads != nullptr) {
    omp_set_num_threads(1);
  }
}

} // namespace

std::shared_ptr<OrderedWorkers> WorkerPool::take(int num_threads) {
  std::unique_ptr<OrderedWorkers> workers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      workers = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!workers) {
    workers = std::make_unique<OrderedWorkers>(
        num_threads, keep_operators_in_this_thread);
  }
  return {workers.release(), [pool = weak_from_this()](OrderedWorkers* used) {
            std::unique_ptr<OrderedWorkers> owned(used);
            if (const auto home = pool.lock()) {
              const std::lock_guard<std::mutex> lock(home->mutex_);
              home->idle_.push_back(std::move(owned));
            }
          }};
}

RoundQueue::RoundQueue(
    std::shared_ptr<RoundMaker> maker,
    Finish finish,
    std::shared_ptr<OrderedWorkers> workers,
    int64_t capacity)
    : maker_(std::move(maker)),
      finish_(std::move(finish)),
      workers_(std::move(workers)) {
  if (workers_) {
    const auto make = [maker = maker_, finish = finish_](int64_t index) {
      auto round = std::make_shared<Round>(maker->make(index));
      for (size_t slot = 0; slot < round->size(); ++slot) {
        finish((*round)[slot], slot);
      }
      return round;
    };
    workers_->start(
        {.num_tasks = knows_last() ? maker_->num_rounds()
                                   : std::numeric_limits<int64_t>::max(),
         .capacity = capacity},
        make);
  }
}

RoundQueue::~RoundQueue() {
  if (workers_) {
    workers_->stop();
  }
}

Round RoundQueue::next() {
  if (knows_last() && index_ >= maker_->num_rounds()) {
    return {};
  }
  // A round that throws is also counted, because the loop may continue after
  // it.
  const int64_t index = index_++;
  if (workers_) {
    return std::move(*std::static_pointer_cast<Round>(workers_->next()));
  }
  Round round = maker_->make(index);
  for (size_t slot = 0; slot < round.size(); ++slot) {
    finish_(round[slot], slot);
  }
  return round;
}

std::unique_ptr<RoundQueue> make_queue(
    const EpochPlan& plan,
    WorkerPool& pool,
    std::shared_ptr<RoundMaker> maker,
    RoundQueue::Finish finish) {
  const bool is_sequential = maker->num_rounds() == RoundMaker::kUnknown;
  const int num_threads = is_sequential ? std::min(plan.options.num_workers, 1)
                                        : plan.options.num_workers;
  return std::make_unique<RoundQueue>(
      std::move(maker),
      std::move(finish),
      num_threads > 0 ? pool.take(num_threads) : nullptr,
      num_threads * plan.options.prefetch_factor);
}

void pin_for_device(const EpochPlan& plan, Item& item) {
  if (!item.batch || !plan.options.pin_memory || !plan.context.device ||
      plan.context.device->is_cpu()) {
    return;
  }
  struct Pinner final : tree::Visitor {
    void tensor(at::Tensor& tensor) override { tensor = pinned(tensor); }
  } pinner;
  plan.source->visit(item.batch, pinner);
}

} // namespace accelerate::detail
