// SPDX-License-Identifier: Apache-2.0
#include "training/device/accelerator_kinds.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <list>
#include <mutex>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

/// Rows in order of preference. It is a list, because callers keep pointers to
/// rows.
struct Table {
  std::mutex mutex;
  std::list<AcceleratorKind> rows = {
      {.type = c10::kCUDA,
       .distributed_type = "MULTI_GPU",
       .collective_backend = "nccl",
       .has_fp16 = true},
  };
};

Table& table() {
  static Table kinds;
  return kinds;
}

} // namespace

std::string AcceleratorKind::name() const {
  return c10::DeviceTypeName(type, /*lower_case=*/true);
}

int AcceleratorKind::count() const {
  // Kinds of devices that torch was built without have no guard.
  return c10::impl::hasDeviceGuardImpl(type)
             ? c10::impl::VirtualGuardImpl(type).deviceCount()
             : 0;
}

void register_accelerator(AcceleratorKind kind) {
  if (!c10::isValidDeviceType(kind.type) || kind.type == c10::kCPU ||
      kind.type == c10::kMeta) {
    throw UsageError(str_cat(
        "[register_accelerator] Device type ",
        static_cast<int>(kind.type),
        " is not an accelerator. Pass one such as c10::kPrivateUse1"));
  }
  if (kind.distributed_type.empty()) {
    throw UsageError(str_cat(
        "[register_accelerator] '",
        kind.name(),
        "' has no distributed_type. Set it to Hugging Face's name for several "
        "processes on such devices, for example MULTI_GPU"));
  }
  auto& [mutex, rows] = table();
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& row : rows) {
    if (row.type == kind.type) {
      throw UsageError(str_cat(
          "[register_accelerator] '",
          kind.name(),
          "' is already registered. Register each kind once"));
    }
  }
  rows.push_front(std::move(kind));
}

std::vector<const AcceleratorKind*> accelerator_kinds() {
  auto& [mutex, rows] = table();
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<const AcceleratorKind*> all;
  for (const auto& row : rows) {
    all.push_back(&row);
  }
  return all;
}

const AcceleratorKind* accelerator_in_use() {
  for (const auto* kind : accelerator_kinds()) {
    if (kind->count() > 0) {
      return kind;
    }
  }
  return nullptr;
}

const AcceleratorKind* kind_of(c10::Device device) {
  for (const auto* kind : accelerator_kinds()) {
    if (kind->type == device.type()) {
      return kind;
    }
  }
  return nullptr;
}

} // namespace accelerate
