// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/c10d.h"
#include "accelerate/error.h"
#include "base/stable_hash.h"
#include "base/str.h"
#include "comm/backends/backends.h"
#include "comm/failures.h"
#include "comm/process_group_impl.h"

namespace accelerate {
namespace {

std::string to_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

bool is_valid(const ProcessGroup& group, const std::vector<int>& ranks) {
  const std::set<int> unique(ranks.begin(), ranks.end());
  return unique.count(group.rank()) == 1 && unique.size() == ranks.size() &&
         *unique.begin() >= 0 && *unique.rbegin() < group.world_size();
}

// Rank 0 counts in the store, as several handles may share a group.
int64_t next_number(const ProcessGroup& group) {
  const auto whole = to_c10d(group);
  return group.rank() == 0 && whole && whole->getStore()
             ? whole->getStore()->add("num_subgroups", 1)
             : 0;
}

// Returns a number for the new groups that no others of this one have. A list
// that is wrong is told to the other ranks too, so that they do not wait.
int64_t agree_on_parts(
    const ProcessGroup& group,
    const std::vector<int>& ranks) {
  const bool valid = is_valid(group, ranks);
  const auto hash =
      valid ? static_cast<int64_t>(stable_hash(to_text(ranks)) | 1) : 0;
  const auto all =
      group.all_gather(at::tensor({hash, next_number(group)}, at::kLong));
  if (!valid) {
    throw UsageError(str_cat(
        "[subgroup] got the ranks ",
        to_text(ranks),
        " on rank ",
        group.rank(),
        ", expected different ranks from 0 to ",
        group.world_size() - 1,
        " with this one among them"));
  }
  for (const int rank : ranks) {
    if (all[rank][0].item<int64_t>() != hash) {
      throw MismatchError(str_cat(
          "[subgroup] rank ",
          group.rank(),
          " gave the ranks ",
          to_text(ranks),
          ", but rank ",
          rank,
          " gave others; call it with the same list on all ranks of a part"));
    }
  }
  return all[0][1].item<int64_t>();
}

std::chrono::milliseconds timeout_of(c10d::Backend& backend) {
  try {
    return backend.getBackendOptions()->timeout;
  } catch (const c10::Error&) {
    // c10d leaves it to backends whether they tell.
    return ProcessGroupOptions().timeout;
  }
}

c10::intrusive_ptr<c10d::Backend> make_like(
    const c10::intrusive_ptr<c10d::Backend>& parent,
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int world_size) {
  const auto name = parent->getBackendName();
  const auto entry = find_backend(name);
  if (!entry) {
    throw ConfigError(str_cat(
        "[subgroup] the group speaks through '",
        name,
        "', which is not in the table of backends; add it by "
        "register_backend"));
  }
  return entry->make(
      {.store = c10::make_intrusive<c10d::PrefixStore>(name, store),
       .rank = rank,
       .world_size = world_size,
       .timeout = timeout_of(*parent),
       .parent = parent});
}

c10::intrusive_ptr<c10d::ProcessGroup> make_part(
    c10d::ProcessGroup& whole,
    const std::vector<int>& ranks,
    int64_t number) {
  if (!whole.getStore()) {
    throw ConfigError(
        "[subgroup] the group was given without a store, through which the "
        "ranks of a part could meet; make it with one");
  }
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      str_cat("subgroup/", number, "/", ranks.front()), whole.getStore());
  const auto own = std::find(ranks.begin(), ranks.end(), whole.getRank());
  const auto rank = static_cast<int>(own - ranks.begin());
  const auto size = static_cast<int>(ranks.size());
  auto part = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  std::map<c10d::Backend*, c10::intrusive_ptr<c10d::Backend>> made;
  // In one order on all ranks: making a backend waits for the others.
  std::map<c10::DeviceType, c10::intrusive_ptr<c10d::Backend>> parents;
  for (const auto& device : whole.getDeviceTypes()) {
    parents[device.type()] = whole.getBackend(device.type());
  }
  for (const auto& [device, parent] : parents) {
    auto& backend = made[parent.get()];
    if (!backend) {
      backend = make_like(parent, store, rank, size);
    }
    part->setBackend(
        device,
        c10d::ProcessGroup::strToBackendType(parent->getBackendName()),
        backend);
  }
  part->setDefaultBackend(whole.getBackendType());
  return part;
}

c10::intrusive_ptr<c10d::Work> start_barrier(c10d::ProcessGroup& group) {
  const auto devices = group.getDeviceTypes();
  const bool speaks_cpu = std::any_of(
      devices.begin(), devices.end(), [](const c10::Device& device) {
        return device.is_cpu();
      });
  return speaks_cpu ? group.getBackend(c10::kCPU)->barrier() : group.barrier();
}

// c10d's flight recorder lists a group at its first collective without a lock.
// Ranks may be threads: one after the other starts its first, and none goes on
// to others before all have. It also keeps rank 0's store until all have met.
void enlist(c10d::ProcessGroup& whole, c10d::ProcessGroup* part) {
  static std::mutex mutex;
  std::vector<c10::intrusive_ptr<c10d::Work>> barriers;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (part != nullptr) {
      barriers.push_back(start_barrier(*part));
    }
    barriers.push_back(start_barrier(whole));
  }
  for (const auto& barrier : barriers) {
    barrier->wait();
  }
}

} // namespace

ProcessGroup ProcessGroup::subgroup(const std::vector<int>& ranks) const {
  const int64_t number = agree_on_parts(*this, ranks);
  std::vector<int> everybody(static_cast<size_t>(world_size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  if (ranks == everybody) {
    return *this;
  }
  auto& whole = *impl_->group();
  ProcessGroup result;
  impl_->guard("subgroup", [&] {
    c10::intrusive_ptr<c10d::ProcessGroup> part;
    if (ranks.size() > 1) {
      part = make_part(whole, ranks, number);
      result = ProcessGroup(std::make_shared<Impl>(
          part, backend(), /*owns=*/true, ranks_are_threads()));
      impl_->adopt(result.impl());
      result.impl()->set_checks_collectives(impl_->checks_collectives());
    }
    enlist(whole, part.get());
  });
  return result;
}

} // namespace accelerate
