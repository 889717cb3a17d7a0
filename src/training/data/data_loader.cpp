// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data_loader.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/rank_record.h"
#include "training/data/batch_stream.h"

namespace accelerate {
namespace {

uint64_t draw_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

void require(bool condition, const std::string& message) {
  if (!condition) {
    throw UsageError("[DataLoader] " + message);
  }
}

/// Multiplied by any number of ranks and workers, this still fits into int64.
constexpr int64_t kMostBatchSize = int64_t{1} << 40;

void check(const DataLoaderOptions& options, bool is_stream) {
  require(
      options.batch_size >= 1 && options.batch_size <= kMostBatchSize,
      str_cat("batch_size is ", options.batch_size, ", expected 1 to 2^40"));
  require(
      options.num_workers >= 0,
      str_cat("num_workers is ", options.num_workers, ", expected 0 or more"));
  require(
      options.prefetch_factor >= 1,
      str_cat(
          "prefetch_factor is ",
          options.prefetch_factor,
          ", expected at least 1"));
  require(
      !(options.sampler && options.batch_sampler),
      "sampler and batch_sampler are both set. Set only one");
  const bool has_sampler = options.sampler || options.batch_sampler;
  require(
      !(has_sampler && options.shuffle),
      "sampler and shuffle are both set. Use a RandomSampler to shuffle");
  require(
      !(options.batch_sampler && options.split_batches),
      "split_batches does not work with a batch_sampler, because its batches "
      "may vary in size. Leave split_batches off");
  require(
      !(is_stream && (has_sampler || options.shuffle)),
      "An iterable source does not support shuffle or a sampler. Shuffle "
      "inside the source");
}

} // namespace

/// The state that copies of a loader share.
struct AnyDataLoader::State final : Stateful {
  /// The state for checkpoints: the position of a running loop, after the last
  /// batch that was trained on.
  StateDict state_dict() const override;
  /// The position after the last batch that was returned.
  StateDict handed_out() const;
  StateDict state_at(int64_t epoch, int64_t num_done) const;
  void check_state_dict(const StateDict& state) const override;
  void load_state_dict(const StateDict& state) override;

  std::shared_ptr<const detail::BatchSource> source;
  DataLoaderOptions options;
  detail::LoaderContext context;
  uint64_t seed = 0;
  /// The size of the dataset; that of rank 0's if rank 0 reads.
  int64_t num_samples = 0;
  bool is_prepared = false;
  std::shared_ptr<detail::WorkerPool> pool =
      std::make_shared<detail::WorkerPool>();

  /// The epoch of the next loop.
  int64_t next_epoch = 0;
  int64_t next_num_done = 0;
  /// The latest loop, until its end.
  const void* running = nullptr;
  int64_t epoch = 0;
  int64_t num_done = 0;
  /// False after the loop was left early.
  bool is_open = false;
  /// The current batch, if there is one: `num_done` before this batch, and the
  /// number of backwards when it was returned.
  struct CurrentBatch {
    int64_t num_done_before = 0;
    int64_t total_backwards = 0;
  };
  std::optional<CurrentBatch> current_batch;

  detail::EpochPlan plan(int64_t epoch, int64_t num_done) const {
    return {
        .source = source,
        .options = options,
        .context = context,
        .seed = seed,
        .epoch = epoch,
        .num_done = num_done};
  }
  bool is_stream() const {
    return source->size() == detail::BatchSource::kUnknown;
  }
  /// The number of units (see `EpochPlan::num_done`) in an epoch; empty if
  /// unknown.
  std::optional<int64_t> num_units(int64_t epoch) const {
    if (is_stream()) {
      return std::nullopt;
    }
    if (options.batch_sampler) {
      return static_cast<int64_t>(
          options.batch_sampler->batches(seed, epoch).size());
    }
    return options.sampler ? options.sampler->size() : num_samples;
  }
  int64_t units_per_round() const {
    const auto plan = this->plan(0, 0);
    if (plan.shards_itself()) {
      return 1;
    }
    return context.shard.world_size *
           (options.batch_sampler ? 1 : plan.per_rank());
  }
  const char* unit() const {
    return plan(0, 0).shards_itself() ? "batches of each rank"
           : options.batch_sampler    ? "batches"
                                      : "samples";
  }
};

namespace {

/// `num_done` after `num_rounds` further rounds.
int64_t
advanced(int64_t num_done, int64_t by, const std::optional<int64_t>& most) {
  return most ? std::min(num_done + by, *most) : num_done + by;
}

} // namespace

namespace detail {

BatchCursor::~BatchCursor() = default;

namespace {

std::unique_ptr<BatchStream> make_stream(
    const EpochPlan& plan,
    WorkerPool& pool) {
  return make_placing_stream(
      plan,
      plan.is_dispatched() ? make_dispatch_stream(plan, pool)
                           : make_local_stream(plan, pool));
}

class Cursor final : public BatchCursor {
 public:
  enum class Event { kHandedOut, kFailed, kEnd, kLeft };
  using Listener = std::function<void(Event event)>;

  Cursor(
      std::unique_ptr<BatchStream> stream,
      std::shared_ptr<StepState::Feed> feed,
      std::shared_ptr<const BatchSource> source)
      : stream_(std::move(stream)),
        feed_(std::move(feed)),
        source_(std::move(source)) {}
  ~Cursor() override {
    if (listener_) {
      listener_(Event::kLeft);
    }
  }

  void set_listener(Listener listener) { listener_ = std::move(listener); }
  void advance() override {
    // Release the batch before the next one is made, so that memory holds one
    // batch less.
    batch_.reset();
    std::optional<Item> item;
    try {
      const PhaseScope scope(StepPhase::kData);
      item = stream_->next();
    } catch (...) {
      // The loop may continue after the error, so the batch counts as done.
      listener_(Event::kFailed);
      throw;
    }
    listener_(item ? Event::kHandedOut : Event::kEnd);
    if (!item) {
      feed_.reset();
      return;
    }
    if (feed_) {
      feed_->hand_out(item->facts);
      if (auto* recorder = StepRecorder::get()) {
        std::vector<at::Tensor> leaves;
        for_each_tensor(*source_, item->batch, [&](at::Tensor& leaf) {
          leaves.push_back(leaf);
        });
        recorder->note_batch(leaves, item->facts.num_samples);
      }
    } else if (auto* recorder = StepRecorder::get()) {
      recorder->note_raw_batch();
    }
    batch_ = std::move(item->batch);
  }
  void* batch() const override { return batch_.get(); }

 private:
  std::unique_ptr<BatchStream> stream_;
  std::shared_ptr<StepState::Feed> feed_;
  std::shared_ptr<const BatchSource> source_;
  Listener listener_;
  Any batch_;
};

} // namespace
} // namespace detail

AnyDataLoader::AnyDataLoader(
    std::shared_ptr<const detail::BatchSource> source,
    DataLoaderOptions options)
    : state_(std::make_shared<State>()) {
  state_->source = std::move(source);
  state_->num_samples = state_->source->size();
  check(options, state_->is_stream());
  state_->seed = options.seed ? *options.seed : draw_seed();
  state_->options = std::move(options);
}

AnyDataLoader AnyDataLoader::placed(detail::LoaderContext context) const {
  AnyDataLoader loader = *this;
  loader.state_ = std::make_shared<State>();
  State& state = *loader.state_;
  state.source = state_->source;
  state.options = state_->options;
  const auto& asked = context.configuration;
  state.options.split_batches =
      asked.split_batches.value_or(state.options.split_batches);
  state.options.dispatch_batches =
      asked.dispatch_batches.value_or(state.options.dispatch_batches);
  state.options.even_batches =
      asked.even_batches.value_or(state.options.even_batches);
  check(state.options, state.is_stream());
  const int world_size = context.shard.world_size;
  require(
      !state.options.split_batches ||
          state.options.batch_size % world_size == 0,
      str_cat(
          "With split_batches, batch_size ",
          state.options.batch_size,
          " must be a multiple of ",
          world_size,
          ", the number of ranks. Change the batch size, or set split_batches "
          "to false"));
  const auto all =
      context.group
          .all_gather(at::tensor(
              {static_cast<int64_t>(state_->seed), state_->num_samples},
              at::kLong))
          .contiguous();
  const auto* words = all.data_ptr<int64_t>();
  state.seed = static_cast<uint64_t>(words[0]);
  state.num_samples = words[1];
  for (int rank = 0; rank < context.group.world_size(); ++rank) {
    if (!state.options.dispatch_batches && words[2 * rank + 1] != words[1]) {
      throw MismatchError(str_cat(
          "[DataLoader] The dataset has ",
          words[2 * rank + 1],
          " samples on rank ",
          rank,
          " but ",
          words[1],
          " on rank 0. Use the same data on all ranks, or let rank 0 read for "
          "all (dispatch_batches = true)"));
    }
  }
  state.context = std::move(context);
  state.next_epoch = state_->next_epoch;
  state.next_num_done = state_->next_num_done;
  state.is_prepared = true;
  return loader;
}

AnyDataLoader AnyDataLoader::skipping(int64_t num_batches) const {
  require(
      num_batches >= 0,
      str_cat(
          "The number of batches to skip is ",
          num_batches,
          ", expected 0 or more"));
  AnyDataLoader loader = *this;
  loader.num_skipped_ += num_batches;
  return loader;
}

std::unique_ptr<detail::BatchCursor> AnyDataLoader::open() {
  State& state = *state_;
  const int64_t epoch = state.next_epoch;
  std::optional<int64_t> num_units;
  try {
    num_units = state.num_units(epoch);
  } catch (...) {
    // If rank 0 reads, it gets the same error again and sends it to the other
    // ranks, which wait for it.
    if (!state.plan(epoch, 0).is_dispatched()) {
      throw;
    }
  }
  const int64_t per_round = state.units_per_round();
  // A state taken after a skipped start already includes the skipped batches.
  const int64_t first = advanced(
      0, std::max(state.next_num_done, num_skipped_ * per_round), num_units);
  const auto plan = state.plan(epoch, first);
  const int64_t num_merged =
      state.context.is_merged ? state.context.shard.world_size : 1;
  const int64_t full_size =
      state.options.batch_sampler ? 0 : plan.per_rank() * num_merged;
  auto cursor = std::make_unique<detail::Cursor>(
      detail::make_stream(plan, *state.pool),
      state.context.step_state ? state.context.step_state->open_feed(full_size)
                               : nullptr,
      state.source);
  // Set only now, so that the next loop tries the same epoch again if opening
  // fails.
  state.next_epoch = epoch + 1;
  state.next_num_done = 0;
  state.running = cursor.get();
  state.epoch = epoch;
  state.num_done = first;
  state.is_open = true;
  state.current_batch.reset();
  // A weak pointer, because threads on the pool live as long as the loader,
  // not as its last loop.
  using Event = detail::Cursor::Event;
  cursor->set_listener([weak = std::weak_ptr<State>(state_),
                        self = cursor.get(),
                        num_units,
                        per_round](Event event) {
    const auto state = weak.lock();
    if (!state || state->running != self) {
      return;
    }
    state->current_batch.reset();
    switch (event) {
      case Event::kHandedOut:
        if (const auto& step = state->context.step_state) {
          state->current_batch = {state->num_done, step->total_backwards()};
        }
        [[fallthrough]];
      case Event::kFailed:
        state->num_done = advanced(state->num_done, per_round, num_units);
        break;
      case Event::kEnd:
        state->running = nullptr;
        break;
      case Event::kLeft:
        state->is_open = false;
        break;
    }
  });
  cursor->advance();
  return cursor;
}

int64_t AnyDataLoader::size() const {
  const State& state = *state_;
  const auto num_units = state.num_units(state.next_epoch);
  require(
      num_units.has_value(),
      "The number of batches of an iterable source is not known in advance. "
      "Count them in the loop");
  const auto options = state.plan(0, 0).batch_options();
  const detail::Rounds rounds{
      .per_rank = state.units_per_round() / state.context.shard.world_size,
      .drop_last = options.drop_last,
      .even = options.even_batches,
      .shard = state.context.shard};
  return std::max<int64_t>(0, rounds.num_batches(*num_units) - num_skipped_);
}

int64_t AnyDataLoader::num_samples() const {
  require(
      !state_->is_stream(),
      "The number of samples of an iterable source is not known in advance. "
      "Count them in the loop");
  return state_->num_samples;
}

int64_t AnyDataLoader::total_batch_size() const {
  require(
      !state_->options.batch_sampler,
      "total_batch_size is not defined with a batch_sampler, because its "
      "batches may vary in size");
  return state_->plan(0, 0).per_rank() * state_->context.shard.world_size;
}

void AnyDataLoader::set_epoch(int64_t epoch) {
  state_->next_epoch = epoch;
  state_->next_num_done = 0;
}

const DataLoaderOptions& AnyDataLoader::options() const {
  return state_->options;
}
uint64_t AnyDataLoader::seed() const {
  return state_->seed;
}
bool AnyDataLoader::is_prepared() const {
  return state_->is_prepared;
}

StateDict AnyDataLoader::State::state_dict() const {
  if (running == nullptr || !is_open) {
    return state_at(next_epoch, next_num_done);
  }
  const bool is_unused =
      current_batch &&
      context.step_state->total_backwards() == current_batch->total_backwards;
  return state_at(epoch, is_unused ? current_batch->num_done_before : num_done);
}

StateDict AnyDataLoader::State::handed_out() const {
  return running != nullptr ? state_at(epoch, num_done)
                            : state_at(next_epoch, next_num_done);
}

StateDict AnyDataLoader::State::state_at(int64_t epoch, int64_t num_done)
    const {
  StateDict dict;
  dict.set("epoch", epoch);
  dict.set("num_done", num_done);
  dict.set("unit", unit());
  dict.set("seed", static_cast<int64_t>(seed));
  dict.set("shuffle", options.shuffle);
  dict.set("num_samples", num_samples);
  dict.set("world_size", context.shard.world_size);
  dict.set("num_workers", options.num_workers);
  dict.set("batch_size", options.batch_size);
  return dict;
}

void AnyDataLoader::State::check_state_dict(const StateDict& dict) const {
  const StateDict own = state_dict();
  std::vector<const char*> must_agree = {"unit", "shuffle", "num_samples"};
  if (plan(0, 0).shards_itself()) {
    must_agree.push_back("world_size");
    must_agree.push_back("num_workers");
    must_agree.push_back("batch_size");
  }
  const auto shown = [](const StateDict& from, const char* name) {
    for (const auto& [key, value] : from) {
      if (key == name) {
        return std::visit(
            [](const auto& v) {
              if constexpr (std::is_same_v<decltype(v), const TensorSlice&>) {
                return std::string("a slice of a tensor");
              } else {
                return str_cat(std::boolalpha, v);
              }
            },
            value);
      }
    }
    return std::string("none");
  };
  for (const char* name : must_agree) {
    const std::string got = shown(dict, name);
    const std::string expected = shown(own, name);
    require(
        got == expected,
        str_cat(
            "The saved state has ",
            name,
            " = ",
            got,
            ", but this loader has ",
            expected,
            ". Load it into a loader with the same data and settings"));
  }
  const bool has_seed = dict.contains("seed");
  require(
      has_seed || !options.shuffle || dict.get<int64_t>("num_done") == 0,
      "The saved position is inside an epoch that was shuffled by a Python "
      "generator, so C++ cannot repeat its order. Save between epochs, or "
      "shuffle in Python with use_seedable_sampler=True");
}

void AnyDataLoader::State::load_state_dict(const StateDict& dict) {
  check_state_dict(dict);
  const bool has_seed = dict.contains("seed");
  next_epoch = dict.get<int64_t>("epoch");
  next_num_done = dict.get<int64_t>("num_done");
  if (has_seed) {
    seed = static_cast<uint64_t>(dict.get<int64_t>("seed"));
  }
  running = nullptr;
}

StateDict AnyDataLoader::state_dict() const {
  return state_->handed_out();
}
void AnyDataLoader::load_state_dict(const StateDict& state) {
  state_->load_state_dict(state);
}
std::shared_ptr<Stateful> AnyDataLoader::stateful() const {
  return state_;
}

} // namespace accelerate
