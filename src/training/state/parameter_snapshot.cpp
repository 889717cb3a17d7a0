// SPDX-License-Identifier: Apache-2.0
#include "training/state/parameter_snapshot.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

std::string describe(const at::Tensor& tensor) {
  return str_cat(
      c10::toString(tensor.scalar_type()),
      tensor.sizes(),
      " on ",
      tensor.device());
}

template <class Entries>
auto find(const Entries& entries, const std::string& name) {
  return std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
    return entry.name == name;
  });
}

[[noreturn]] void refuse(
    const std::string& where,
    const std::string& name,
    const std::string& change) {
  throw UsageError(str_cat(
      '[',
      where,
      "] '",
      name,
      "' ",
      change,
      " after the module was prepared. Change modules before the first "
      "prepare(), or use a new Accelerator"));
}

} // namespace

std::vector<ParameterSnapshot::Entry> ParameterSnapshot::entries_of(
    const ParameterSet& model) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < model.names.size(); ++i) {
    const auto& parameter = model.parameters[i];
    entries.push_back(
        {model.names[i], describe(parameter), parameter.unsafeGetTensorImpl()});
  }
  return entries;
}

ParameterSnapshot::ParameterSnapshot(const ParameterSet& model)
    : entries_(entries_of(model)) {}

void ParameterSnapshot::check_unchanged(
    const std::string& where,
    const ParameterSet& now) const {
  const auto current = entries_of(now);
  for (const auto& before : entries_) {
    const auto found = find(current, before.name);
    if (found == current.end()) {
      refuse(where, before.name, "was removed");
    }
    if (found->description != before.description) {
      refuse(
          where,
          before.name,
          str_cat(
              "changed from (",
              before.description,
              ") to (",
              found->description,
              ")"));
    }
    if (found->identity != before.identity) {
      refuse(where, before.name, "was replaced by another tensor");
    }
  }
  for (const auto& entry : current) {
    if (find(entries_, entry.name) == entries_.end()) {
      refuse(where, entry.name, "was added");
    }
  }
}

} // namespace accelerate
