// SPDX-License-Identifier: Apache-2.0
// Mismatches between a state and a model.
#pragma once

#include <map>
#include <string>

#include "core/base/str.h"

namespace accelerate {

/// Collects mismatches, so that one message lists all of them.
class MismatchList {
 public:
  void
  add(const char* what, const std::string& name, const std::string& more = {}) {
    auto& list = lists_[what];
    constexpr int kMostNamed = 8;
    if (++list.num <= kMostNamed) {
      list.names += str_cat(list.num == 1 ? "'" : ", '", name, "'", more);
    } else if (list.num == kMostNamed + 1) {
      list.names += " and more";
    }
  }
  bool empty() const { return lists_.empty(); }
  std::string text() const {
    std::string text;
    for (const auto& [what, list] : lists_) {
      text += str_cat(
          text.empty() ? "" : "; ", what, " (", list.num, "): ", list.names);
    }
    return text;
  }

 private:
  struct List {
    int num = 0;
    std::string names;
  };
  std::map<std::string, List> lists_;
};

} // namespace accelerate
