// SPDX-License-Identifier: Apache-2.0
#include "accelerate/state/state_dict.h"

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

const char* type_name(const StateValue& value) {
  constexpr const char* kNames[] = {
      "a boolean",
      "an integer",
      "a number",
      "a string",
      "a tensor",
      "a slice of a tensor"};
  return kNames[value.index()];
}

} // namespace

void StateDict::throw_too_large(const std::string& name) {
  throw UsageError(str_cat(
      "[state_dict] '",
      name,
      "' is an unsigned integer above 2^63 - 1, which does not fit into int64. "
      "Store it as a string"));
}

void StateDict::put(const std::string& name, StateValue value) {
  values_.insert_or_assign(name, std::move(value));
}
void StateDict::set(const std::string& name, bool value) {
  put(name, value);
}
void StateDict::set(const std::string& name, double value) {
  put(name, value);
}
void StateDict::set(const std::string& name, const char* value) {
  put(name, std::string(value));
}
void StateDict::set(const std::string& name, std::string value) {
  put(name, std::move(value));
}
void StateDict::set(const std::string& name, at::Tensor value) {
  put(name, std::move(value));
}
void StateDict::set(const std::string& name, TensorSlice value) {
  try {
    check_pieces(value.whole, value.pieces);
  } catch (const UsageError& error) {
    throw UsageError(str_cat(
        "[state_dict] The slice of '", name, "' is invalid. ", error.what()));
  }
  const auto num_values = value.values.defined() ? value.values.numel() : -1;
  if (num_values != num_elements(value.pieces)) {
    throw UsageError(str_cat(
        "[state_dict] The slice of '",
        name,
        "' has ",
        num_values < 0 ? "no tensor" : str_cat(num_values, " values"),
        ", but its pieces have ",
        num_elements(value.pieces),
        " elements"));
  }
  put(name, std::move(value));
}
void StateDict::set(const std::string& name, StateValue value) {
  std::visit([&](auto& held) { set(name, std::move(held)); }, value);
}
void StateDict::set(const std::string& prefix, const StateDict& entries) {
  if (&entries == this) {
    set(prefix, StateDict(entries)); // copy, because it grows while it is read
    return;
  }
  for (const auto& [name, value] : entries) {
    put(str_cat(prefix, '.', name), value);
  }
}

template <class T>
const T& StateDict::get(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    throw UsageError(str_cat(
        "[load_state_dict] '",
        name,
        "' is missing. Was the state saved from a different type of object?"));
  }
  if (const T* value = std::get_if<T>(&found->second)) {
    return *value;
  }
  throw UsageError(str_cat(
      "[load_state_dict] '",
      name,
      "' is ",
      type_name(found->second),
      " instead of ",
      type_name(StateValue(T())),
      ". Was the state saved from a different type of object?"));
}
template const bool& StateDict::get(const std::string&) const;
template const int64_t& StateDict::get(const std::string&) const;
template const double& StateDict::get(const std::string&) const;
template const std::string& StateDict::get(const std::string&) const;
template const at::Tensor& StateDict::get(const std::string&) const;
template const TensorSlice& StateDict::get(const std::string&) const;

StateDict StateDict::section(const std::string& prefix) const {
  const std::string start = prefix + '.';
  StateDict part;
  for (auto it = values_.lower_bound(start);
       it != values_.end() && it->first.starts_with(start);
       ++it) {
    part.put(it->first.substr(start.size()), it->second);
  }
  return part;
}

bool StateDict::contains(const std::string& name) const {
  return values_.contains(name);
}

} // namespace accelerate
