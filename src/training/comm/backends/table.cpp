// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <mutex>
#include <set>
#include <sstream>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/backends/backends.h"
#include "training/device/accelerator_kinds.h"

namespace accelerate {
namespace {

class Table {
 public:
  static Table& instance() {
    static Table table;
    return table;
  }

  void add(BackendEntry entry) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& row : rows_) {
      if (row.name == entry.name) {
        throw UsageError(str_cat(
            "[register_backend] '",
            entry.name,
            "' is already registered. Choose another name"));
      }
    }
    rows_.push_back(std::move(entry));
  }

  std::vector<BackendEntry> rows() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return rows_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<BackendEntry> rows_ = {gloo_backend()};
};

bool is_at_home(const BackendEntry& entry, c10::DeviceType device) {
  return entry.devices.front() == device;
}

bool is_usable(const BackendEntry& entry, bool cpu) {
  return entry.available() &&
         (carries(entry, c10::kCPU) || (!cpu && accelerator_in_use()));
}

std::set<std::string> entries_of(const std::string& list) {
  std::set<std::string> entries;
  std::istringstream in(list);
  for (std::string entry; std::getline(in, entry, ',');) {
    entries.insert(entry);
  }
  return entries;
}

std::string device_name(c10::DeviceType device) {
  return c10::DeviceTypeName(device, /*lower_case=*/true);
}

} // namespace

bool carries(const BackendEntry& entry, c10::DeviceType device) {
  return std::count(entry.devices.begin(), entry.devices.end(), device) > 0;
}

void register_backend(BackendEntry entry) {
  if (entry.name.empty() || entry.devices.empty() || !entry.available ||
      !entry.make) {
    throw UsageError(str_cat(
        "[register_backend] The entry '",
        entry.name,
        "' is incomplete. Set name, available and make, and at least one entry "
        "of devices"));
  }
  Table::instance().add(std::move(entry));
}

std::optional<BackendEntry> find_backend(const std::string& name) {
  for (auto& row : Table::instance().rows()) {
    if (row.name == name) {
      return std::move(row);
    }
  }
  return std::nullopt;
}

c10::intrusive_ptr<c10d::Backend> make_backend(
    const BackendEntry& entry,
    const BackendArguments& arguments) {
  auto made = entry.make(arguments);
  if (!made) {
    throw ConfigError(str_cat(
        "[connect] The `make` function of backend '",
        entry.name,
        "' returned null. Return a c10d::Backend from the function that was "
        "passed to register_backend"));
  }
  return made;
}

std::chrono::milliseconds timeout_of(c10d::Backend& backend) {
  try {
    return backend.getBackendOptions()->timeout;
  } catch (const c10::Error&) {
    // In c10d, backends need not report their timeout.
    return ProcessGroupOptions().timeout;
  }
}

std::string default_backend_for(c10::DeviceType device) {
  std::string guest;
  for (const auto& row : Table::instance().rows()) {
    if (!carries(row, device) || !row.available()) {
      continue;
    }
    if (is_at_home(row, device)) {
      return row.name;
    }
    guest = guest.empty() ? row.name : guest;
  }
  return guest;
}

std::string choose_backend(
    const std::string& wanted,
    const ProcessTopology& topology,
    bool cpu) {
  if (wanted == Backend::kAuto) {
    const auto* kind = cpu ? nullptr : accelerator_in_use();
    const bool has_own =
        kind != nullptr &&
        kind->count() >= std::max(1, topology.local_world_size);
    const auto row =
        has_own ? find_backend(kind->collective_backend) : std::nullopt;
    return row && row->available() ? row->name : default_backend_for(c10::kCPU);
  }
  std::string usable;
  for (const auto& row : Table::instance().rows()) {
    if (!is_usable(row, cpu)) {
      continue;
    }
    if (wanted == row.name ||
        entries_of(wanted) == entries_of(backends_by_device(row.name))) {
      return row.name;
    }
    usable += (usable.empty() ? "" : " or ") + row.name;
  }
  throw ConfigError(str_cat(
      "[connect] The backend '",
      wanted,
      "' is not available. Use ",
      usable,
      ", or do not set a backend"));
}

std::string backends_by_device(const std::string& name) {
  const auto entry = find_backend(name);
  if (!entry || carries(*entry, c10::kCPU)) {
    return name;
  }
  std::string list = "cpu:" + default_backend_for(c10::kCPU);
  for (const auto device : entry->devices) {
    list += str_cat(",", device_name(device), ":", name);
  }
  return list;
}

} // namespace accelerate
