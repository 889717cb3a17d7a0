// SPDX-License-Identifier: Apache-2.0
#include "accelerate/state/state_registry.h"

#include <algorithm>
#include <set>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

// Marks objects with an empty state, to distinguish them from missing objects.
constexpr const char* kMark = "is_here";

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const auto& name : names) {
    text += str_cat(text.empty() ? "'" : ", '", name, "'");
  }
  return text;
}

using Named = std::vector<std::pair<std::string, std::shared_ptr<Stateful>>>;

/// The name of the object; null if it is not registered.
const std::string* find(const Named& living, const Stateful& object) {
  for (const auto& [name, known] : living) {
    if (known.get() == &object) {
      return &name;
    }
  }
  return nullptr;
}

/// `kind`, or `kind_1`, `kind_2` and so on if living objects already have these
/// names.
std::string free_name(const Named& living, const std::string& kind) {
  const auto is_taken = [&](const std::string& name) {
    return std::any_of(living.begin(), living.end(), [&](const auto& entry) {
      return entry.first == name;
    });
  };
  std::string name = kind;
  for (int i = 1; is_taken(name); ++i) {
    name = str_cat(kind, '_', i);
  }
  return name;
}

/// Adds the object's name to the error.
void check_state(
    const std::string& name,
    const Stateful& object,
    const StateDict& own_state) {
  try {
    object.check_state_dict(own_state);
  } catch (const UsageError& error) {
    const std::string text = error.what();
    const auto end = text.starts_with('[') ? text.find("] ") : text.npos;
    throw UsageError(str_cat(
        "[load_state_dict] '",
        name,
        "': ",
        end == text.npos ? text : text.substr(end + 2)));
  }
}

} // namespace

Stateful::~Stateful() = default;
void Stateful::check_state_dict(const StateDict& /*state*/) const {}
StateRegistry::StateRegistry() = default;
StateRegistry::~StateRegistry() = default;

std::string StateRegistry::add(
    const std::string& kind,
    const std::shared_ptr<Stateful>& object,
    StateScope scope) {
  if (!object) {
    throw UsageError(
        str_cat("[state] The object for '", kind, "' is null. Pass an object"));
  }
  if (kind.empty() || kind.find('.') != std::string::npos) {
    throw UsageError(str_cat(
        "[state] '", kind, "' is not a valid name. Use a name without dots"));
  }
  const auto known = added();
  if (const auto* found = find(known, *object)) {
    return *found;
  }
  std::erase_if(entries_, [](const Entry& e) { return e.object.expired(); });
  std::erase_if(
      optional_, [&](const Optional& o) { return o.object.lock() == object; });
  auto name = free_name(known, kind);
  entries_.push_back({name, object, scope});
  return name;
}

std::string StateRegistry::add_optional(
    const std::string& kind,
    const std::shared_ptr<Stateful>& object) {
  std::erase_if(
      optional_, [](const Optional& o) { return o.object.expired(); });
  if (name_of(*object).empty()) {
    optional_.push_back({kind, object});
  }
  return name_of(*object);
}

bool StateRegistry::is_optional(const std::string& name) const {
  const auto living = objects();
  return std::any_of(
      living.begin() + static_cast<std::ptrdiff_t>(added().size()),
      living.end(),
      [&](const auto& entry) { return entry.first == name; });
}

StateRegistry::Named StateRegistry::added() const {
  Named living;
  for (const auto& entry : entries_) {
    if (auto object = entry.object.lock()) {
      living.emplace_back(entry.name, std::move(object));
    }
  }
  return living;
}

std::vector<std::pair<std::string, std::shared_ptr<Stateful>>>
StateRegistry::objects() const {
  Named living = added();
  for (const auto& entry : optional_) {
    if (auto object = entry.object.lock()) {
      auto name = free_name(living, entry.kind);
      living.emplace_back(std::move(name), std::move(object));
    }
  }
  return living;
}

std::string StateRegistry::name_of(const Stateful& object) const {
  const auto living = objects();
  const auto* found = find(living, object);
  return found != nullptr ? *found : std::string();
}

StateScope StateRegistry::scope_of(const std::string& name) const {
  for (const auto& entry : entries_) {
    if (entry.name == name && !entry.object.expired()) {
      return entry.scope;
    }
  }
  return StateScope::kCommon;
}

StateDict StateRegistry::state_dict() const {
  StateDict state;
  for (const auto& [name, object] : objects()) {
    state.set(str_cat(name, '.', kMark), true);
    state.set(name, object->state_dict());
  }
  return state;
}

void StateRegistry::load_state_dict(const StateDict& state) {
  std::map<std::string, StateDict> states;
  for (const auto& [key, value] : state) {
    const auto dot = key.find('.');
    StateDict& own_state = states[key.substr(0, dot)];
    const auto name = dot == std::string::npos ? "" : key.substr(dot + 1);
    if (name != kMark) {
      own_state.set(name, value);
    }
  }
  load_states(states);
}

void StateRegistry::load_states(
    const std::map<std::string, StateDict>& states,
    const std::set<std::string>& kept) {
  check_states(states, kept);
  put_states(states, kept);
}

void StateRegistry::check_states(
    const std::map<std::string, StateDict>& states,
    const std::set<std::string>& kept) const {
  const auto living = objects();
  std::set<std::string> missing;
  std::set<std::string> unexpected;
  for (const auto& [name, own_state] : states) {
    unexpected.insert(name);
  }
  for (const auto& [name, object] : living) {
    if (unexpected.erase(name) == 0 && !kept.contains(name)) {
      missing.insert(name);
    }
  }
  std::erase_if(
      unexpected, [&](const auto& name) { return kept.contains(name); });
  if (!missing.empty() || !unexpected.empty()) {
    throw UsageError(str_cat(
        "[load_state_dict] ",
        missing.empty()
            ? ""
            : str_cat(
                  "The saved state does not contain ", listed(missing), ". "),
        unexpected.empty() ? ""
                           : str_cat(
                                 "The saved state contains ",
                                 listed(unexpected),
                                 ", which this run does not have. "),
        "Prepare and register the same objects in the same order before "
        "loading"));
  }
  for (const auto& [name, object] : living) {
    if (!kept.contains(name)) {
      check_state(name, *object, states.at(name));
    }
  }
}

void StateRegistry::put_states(
    const std::map<std::string, StateDict>& states,
    const std::set<std::string>& kept) {
  for (const auto& [name, object] : objects()) {
    if (!kept.contains(name)) {
      object->load_state_dict(states.at(name));
    }
  }
}

} // namespace accelerate
