// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/distributed/c10d.h"
#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/backends/backends.h"
#include "training/comm/failures.h"
#include "training/comm/process_group_impl.h"
#include "training/comm/quiet_log.h"

namespace accelerate {
namespace {

std::string to_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return '[' + text + ']';
}

bool is_valid(const std::vector<int>& ranks, int rank, int world_size) {
  const std::set<int> unique(ranks.begin(), ranks.end());
  return unique.count(rank) == 1 && unique.size() == ranks.size() &&
         *unique.begin() >= 0 && *unique.rbegin() < world_size;
}

// Rank 0 counts in the store, because several handles may share a group.
int64_t next_number(const ProcessGroup& group) {
  const auto whole = to_c10d(group);
  return group.rank() == 0 && whole && whole->getStore()
             ? whole->getStore()->add("num_subgroups", 1)
             : 0;
}

void check_lists(const std::vector<std::vector<int>>& lists) {
  const auto size = static_cast<int>(lists.size());
  for (int rank = 0; rank < size; ++rank) {
    const auto& ranks = lists[static_cast<size_t>(rank)];
    if (!is_valid(ranks, rank, size)) {
      throw UsageError(str_cat(
          "[subgroup] rank ",
          rank,
          " passed the ranks ",
          to_text(ranks),
          ". Pass distinct ranks from 0 to ",
          size - 1,
          " that include rank ",
          rank));
    }
  }
  for (int rank = 0; rank < size; ++rank) {
    const auto& ranks = lists[static_cast<size_t>(rank)];
    for (const int other : ranks) {
      const auto& others = lists[static_cast<size_t>(other)];
      if (others != ranks) {
        throw MismatchError(str_cat(
            "[subgroup] rank ",
            rank,
            " passed the ranks ",
            to_text(ranks),
            ", but rank ",
            other,
            " passed ",
            to_text(others),
            ". Pass the same list on all ranks of a subgroup"));
      }
    }
  }
}

// Returns a number for the new groups that is unique in this group. Every rank
// sees the lists of all ranks, so that either all continue or none.
int64_t agree_on_subgroups(
    const ProcessGroup& group,
    const std::vector<int>& ranks) {
  const int64_t number = next_number(group);
  std::string own(sizeof(number) + ranks.size() * sizeof(int), '\0');
  std::memcpy(own.data(), &number, sizeof(number));
  std::copy_n(
      reinterpret_cast<const char*>(ranks.data()),
      ranks.size() * sizeof(int),
      own.data() + sizeof(number));
  const auto all = group.all_gather_bytes(own);
  std::vector<std::vector<int>> lists;
  for (const auto& bytes : all) {
    const size_t length = bytes.size() - sizeof(number);
    lists.emplace_back(length / sizeof(int));
    std::copy_n(
        bytes.data() + sizeof(number),
        length,
        reinterpret_cast<char*>(lists.back().data()));
  }
  check_lists(lists);
  int64_t agreed = 0;
  std::memcpy(&agreed, all[0].data(), sizeof(agreed));
  return agreed;
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
        "[subgroup] The group's backend '",
        name,
        "' is not registered. Register it with register_backend()"));
  }
  return make_backend(
      *entry,
      {.store = c10::make_intrusive<c10d::PrefixStore>(name, store),
       .rank = rank,
       .world_size = world_size,
       .timeout = timeout_of(*parent),
       .parent = parent});
}

c10::intrusive_ptr<c10d::ProcessGroup> make_backend_group(
    c10d::ProcessGroup& whole,
    const std::vector<int>& ranks,
    int64_t number) {
  if (!whole.getStore()) {
    throw ConfigError(
        "[subgroup] The c10d group has no store, which subgroups need to "
        "connect. Create the group with a store");
  }
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      str_cat("subgroup/", number, "/", ranks.front()), whole.getStore());
  const auto own = std::find(ranks.begin(), ranks.end(), whole.getRank());
  const auto rank = static_cast<int>(own - ranks.begin());
  const auto size = static_cast<int>(ranks.size());
  auto backend_group =
      c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  std::map<c10d::Backend*, c10::intrusive_ptr<c10d::Backend>> made;
  // Use the same order on all ranks, because creating a backend waits for the
  // others.
  std::map<c10::DeviceType, c10::intrusive_ptr<c10d::Backend>> parents;
  for (const auto& device : whole.getDeviceTypes()) {
    parents[device.type()] = whole.getBackend(device.type());
  }
  for (const auto& [device, parent] : parents) {
    auto& backend = made[parent.get()];
    if (!backend) {
      backend = make_like(parent, store, rank, size);
    }
    backend_group->setBackend(
        device,
        c10d::ProcessGroup::strToBackendType(parent->getBackendName()),
        backend);
  }
  backend_group->setDefaultBackend(whole.getBackendType());
  return backend_group;
}

c10::intrusive_ptr<c10d::Work> start_barrier(c10d::ProcessGroup& group) {
  const auto devices = group.getDeviceTypes();
  const bool speaks_cpu = std::any_of(
      devices.begin(), devices.end(), [](const c10::Device& device) {
        return device.is_cpu();
      });
  return speaks_cpu ? group.getBackend(c10::kCPU)->barrier() : group.barrier();
}

// c10d's flight recorder adds a group at its first collective, without a lock.
// Ranks may be threads, so they start their first collectives one after the
// other. No rank continues before all have done so, which keeps rank 0's store
// alive until all are connected.
void enlist(c10d::ProcessGroup& whole, c10d::ProcessGroup* backend_group) {
  static std::mutex mutex;
  std::vector<c10::intrusive_ptr<c10d::Work>> barriers;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (backend_group != nullptr) {
      barriers.push_back(start_barrier(*backend_group));
    }
    barriers.push_back(start_barrier(whole));
  }
  for (const auto& barrier : barriers) {
    barrier->wait();
  }
}

std::vector<int> all_ranks(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<size_t>(group.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

} // namespace

ProcessGroup ProcessGroup::subgroup(const std::vector<int>& ranks) const {
  const int64_t number = agree_on_subgroups(*this, ranks);
  return ranks == all_ranks(*this) ? *this : make_subgroup(ranks, number);
}

ProcessGroup ProcessGroup::duplicate() const {
  if (is_solo()) {
    return *this;
  }
  const auto ranks = all_ranks(*this);
  return make_subgroup(ranks, agree_on_subgroups(*this, ranks));
}

ProcessGroup ProcessGroup::make_subgroup(
    const std::vector<int>& ranks,
    int64_t number) const {
  auto& whole = *impl_->group();
  const QuietLog quiet;
  ProcessGroup result;
  impl_->guard("subgroup", [&] {
    c10::intrusive_ptr<c10d::ProcessGroup> backend_group;
    if (ranks.size() > 1) {
      backend_group = make_backend_group(whole, ranks, number);
      result = ProcessGroup(std::make_shared<Impl>(
          backend_group, backend(), /*owns=*/true, ranks_are_threads()));
      impl_->adopt(result.impl());
      result.impl()->watch_with(*impl_);
      result.impl()->set_checks_collectives(impl_->checks_collectives());
    }
    enlist(whole, backend_group.get());
    if (backend_group) {
      forget_gloo_address(backend_group->getStore(), backend_group->getRank());
    }
  });
  return result;
}

} // namespace accelerate
