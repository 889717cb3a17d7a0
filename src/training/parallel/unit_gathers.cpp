// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/unit_gathers.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/agreement.h"
#include "training/parallel/lazy_storage.h"

namespace accelerate {

/// The memory of one unit, while it is gathered.
struct UnitGathers::Gathered final : MemoryOwner {
  Gathered(UnitGathers& gathers, size_t index)
      : gathers(gathers), index(index) {}

  void begin_use() override { gathers.begin_use(*this); }
  void end_use() noexcept override { --num_uses; }
  std::optional<MemorySharers> sharers() override {
    return MemorySharers{
        .engine = gathers.engine_.shared_from_this(),
        .group = gathers.model_.group(),
        .everyone = gathers.model_.everyone(),
        .may_read = gathers.pass_ != ShardPass::kNone};
  }
  const ShardUnit& unit() const { return gathers.model_.units()[index]; }

  UnitGathers& gathers;
  size_t index;
  std::optional<LazyStorage> storage;
  enum class Memory { kReleased, kGathering, kGathered };
  Memory memory = Memory::kReleased;
  at::Tensor destination;
  ProcessGroup::Work gathering;
  /// Streams that have waited for the gather and may be reading the memory.
  std::vector<c10::Stream> readers;
  int num_uses = 0;
};

UnitGathers::UnitGathers(
    ParallelEngine& engine,
    ShardedModel& model,
    std::function<void()> before_use)
    : engine_(engine),
      model_(model),
      stream_(model.device()),
      before_use_(std::move(before_use)) {}

UnitGathers::~UnitGathers() = default;

void UnitGathers::add_unit() {
  const auto& unit = model_.units().back();
  const auto gathered = std::make_shared<Gathered>(*this, unit.index);
  const auto num_bytes = static_cast<int64_t>(
      unit.used_options.dtype().itemsize() *
      static_cast<size_t>(unit.num_elements));
  gathered->storage.emplace(
      num_bytes, unit.used_options.device(), gathered, unit.name);
  for (size_t i = 0; i < unit.members.size(); ++i) {
    at::Tensor parameter = model_.model().parameters[unit.members[i]];
    if (parameter.dtype() != unit.used_options.dtype()) {
      parameter.mutable_grad().reset();
    }
    gathered->storage->move_in(
        parameter,
        unit.offsets[i],
        c10::typeMetaToScalarType(unit.used_options.dtype()));
  }
  gathered_.push_back(gathered);
}

// --- weights that stay whole ------------------------------------------------
void UnitGathers::gather_weights() {
  const at::NoGradGuard no_grad;
  const auto& group = model_.group();
  announce(group, "gather of weights");
  std::vector<ProcessGroup::Work> works;
  for (const auto& unit : model_.units()) {
    if (!unit.is_trained && !is_stale_) {
      continue;
    }
    const auto own =
        unit.whole.narrow(0, unit.shard_size * group.rank(), unit.shard_size);
    if (!unit.shard_is_view_of_whole()) {
      own.copy_(unit.shard);
    }
    works.push_back(group.start_all_gather_into(unit.whole, own));
  }
  for (auto& work : works) {
    work.wait();
  }
  is_stale_ = false;
}

// --- weights that are gathered on use ---------------------------------------
size_t UnitGathers::num_kept() const {
  return static_cast<size_t>(model_.options().prefetch) + 1;
}

// Disables autocast's cache. It holds a process-wide lock while it casts a
// weight, so ranks that are threads would wait for the lock in the middle of a
// gather. It also keeps the casts of all weights until the end of the forward.
void UnitGathers::begin_pass(ShardPass pass) {
  pass_ = pass;
  plan().begin();
  // Wait until the last step has written the shards.
  stream_.follow(stream_.current());
  casts_are_cached_ = at::autocast::is_autocast_cache_enabled();
  at::autocast::set_autocast_cache_enabled(
      casts_are_cached_ && !model_.is_gathered());
}

void UnitGathers::end_pass() {
  at::autocast::set_autocast_cache_enabled(casts_are_cached_);
  std::vector<size_t> kept;
  if (pass_ == ShardPass::kTraining) {
    // Backward starts with the units that forward used last, so keep some.
    kept = plan(ShardPass::kBackward).coming(num_kept());
    if (kept.empty()) {
      kept = plan().recent(num_kept());
    }
  }
  gather_announced();
  plan().end();
  release_all_but(kept);
  pass_ = ShardPass::kNone;
}

void UnitGathers::abandon_pass() {
  at::autocast::set_autocast_cache_enabled(casts_are_cached_);
  // Ranks may have stopped at different points, so their plans may differ.
  plans_ = {};
  try {
    gather_announced();
  } catch (const std::exception&) {
    announced_.clear(); // the error that ended the pass is reported
  }
  for (const auto& unit : gathered_) {
    {
      const auto guard = stream_.enter();
      unit->gathering = {}; // waits without throwing
      unit->destination.reset();
    }
    release(*unit);
  }
  pass_ = ShardPass::kNone;
}

void UnitGathers::begin_use(Gathered& unit) {
  if (pass_ == ShardPass::kNone) {
    throw UsageError(str_cat(
        "[shard] The weights of ",
        unit.unit().name,
        " were read outside of the prepared model's forward() and "
        "accelerator.backward(), where a single rank cannot gather them. Read "
        "them inside of these calls, or save them with save_model() or "
        "save_state()"));
  }
  before_use_();
  if (plan().use(unit.index)) {
    auto kept = plan().coming(static_cast<size_t>(model_.options().prefetch));
    const auto coming = kept;
    if (kept.empty()) {
      kept = plan().recent(num_kept());
    }
    kept.push_back(unit.index);
    release_all_but(kept);
    start_gather(unit);
    for (const size_t next : coming) {
      start_gather(*gathered_[next]);
    }
    const auto beyond = plan().coming(num_kept());
    if (beyond.size() == num_kept()) {
      announce_ahead(*gathered_[beyond.back()]);
    }
  } else {
    start_gather(unit);
  }
  finish_gather(unit);
  if (const auto reader = stream_.current();
      reader && std::find(unit.readers.begin(), unit.readers.end(), *reader) ==
                    unit.readers.end()) {
    stream_.lead(reader);
    unit.readers.push_back(*reader);
  }
  ++unit.num_uses;
}

std::string UnitGathers::gather_name(const ShardUnit& unit) const {
  return str_cat(
      "gather of ",
      unit.name,
      pass_ == ShardPass::kBackward ? " in backward" : " in forward");
}

// Ranks compare the next gather while they use the previous unit. So a branch
// that only one rank takes raises an error instead of a hang.
void UnitGathers::announce_ahead(const Gathered& unit) {
  if (unit.memory == Gathered::Memory::kReleased &&
      !announced_.contains(unit.index)) {
    announced_[unit.index] = announce(model_.group(), gather_name(unit.unit()));
  }
}

// Completes the gathers that all ranks have agreed on. Other ranks perform
// these gathers even if this rank ends its pass. Without them, the next
// operation of this rank would collide with theirs, and Gloo aborts the process
// if sizes differ.
void UnitGathers::gather_announced() {
  if (announced_.empty()) {
    return;
  }
  finish_comparison(model_.group());
  std::vector<size_t> agreed;
  for (const auto& [index, is_agreed] : announced_) {
    if (*is_agreed) {
      agreed.push_back(index);
    }
  }
  for (const size_t index : agreed) {
    start_gather(*gathered_[index]);
  }
  announced_.clear();
}

void UnitGathers::start_gather(Gathered& gathered) {
  if (gathered.memory != Gathered::Memory::kReleased) {
    return;
  }
  const auto& unit = gathered.unit();
  if (announced_.erase(unit.index) == 0) {
    announce(model_.group(), gather_name(unit));
  }
  const at::NoGradGuard no_grad;
  const auto guard = stream_.enter();
  gathered.destination = model_.layout().reserve(
      MemoryUse::kParameters, unit.num_elements, unit.used_options);
  gathered.gathering = model_.group().start_all_gather_into(
      gathered.destination,
      unit.shard.to(
          unit.used_options.device(),
          c10::typeMetaToScalarType(unit.used_options.dtype()),
          /*non_blocking=*/true));
  gathered.memory = Gathered::Memory::kGathering;
}

void UnitGathers::finish_gather(Gathered& unit) {
  if (unit.memory == Gathered::Memory::kGathering) {
    const auto guard = stream_.enter();
    std::exchange(unit.gathering, {}).wait();
    unit.storage->fill(std::exchange(unit.destination, {}));
    unit.memory = Gathered::Memory::kGathered;
  }
}

// The memory returns to the stream of collectives. The next gather may write to
// it.
void UnitGathers::release(Gathered& unit) {
  for (const auto& reader : unit.readers) {
    stream_.follow(reader);
  }
  unit.readers.clear();
  if (unit.memory == Gathered::Memory::kGathered) {
    unit.storage->empty();
  }
  unit.memory = Gathered::Memory::kReleased;
}

void UnitGathers::release_all() {
  release_all_but({});
  if (model_.is_offloaded()) {
    stream_.synchronize(); // the host may write to the shards now
  }
}

void UnitGathers::release_all_but(const std::vector<size_t>& kept) {
  for (const auto& unit : gathered_) {
    if (unit->memory == Gathered::Memory::kReleased || unit->num_uses > 0 ||
        std::find(kept.begin(), kept.end(), unit->index) != kept.end()) {
      continue;
    }
    finish_gather(*unit);
    release(*unit);
  }
}

} // namespace accelerate
