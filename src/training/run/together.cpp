// SPDX-License-Identifier: Apache-2.0
#include "training/run/together.h"

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

/// An error is sent as a letter for its type, followed by its text.
enum Kind : char {
  kUsage = 'U',
  kConfig = 'C',
  kData = 'D',
  kSystem = 'S',
  kForeign = 'F',
};

std::string describe(const std::exception_ptr& problem) {
  if (!problem) {
    return {};
  }
  const auto make = [](char kind, const std::exception& error) {
    return str_cat(kind, error.what());
  };
  try {
    std::rethrow_exception(problem);
  } catch (const UsageError& error) {
    return make(kUsage, error);
  } catch (const ConfigError& error) {
    return make(kConfig, error);
  } catch (const DataError& error) {
    return make(kData, error);
  } catch (const SystemError& error) {
    return make(kSystem, error);
  } catch (const std::exception& error) {
    return make(kForeign, error);
  }
}

[[noreturn]] void raise(char kind, const std::string& text) {
  switch (kind) {
    case kUsage:
      throw UsageError(text);
    case kConfig:
      throw ConfigError(text);
    case kData:
      throw DataError(text);
    default:
      throw SystemError(text);
  }
}

} // namespace

void fail_together(
    const ProcessGroup& group,
    const std::string& operation,
    const std::exception_ptr& own) {
  const auto own_text = describe(own);
  const auto problems = group.all_gather_bytes(own_text);
  const auto first =
      std::find_if(problems.begin(), problems.end(), [](const auto& problem) {
        return !problem.empty();
      });
  if (first == problems.end()) {
    return;
  }
  const bool is_everywhere =
      std::all_of(problems.begin(), problems.end(), [&](const auto& problem) {
        return problem == *first;
      });
  if (own && (is_everywhere || own_text.front() == kForeign)) {
    std::rethrow_exception(own);
  }
  raise(
      first->front(),
      str_cat(
          '[',
          operation,
          "] rank ",
          first - problems.begin(),
          " failed: ",
          first->substr(1)));
}

void do_together(
    const ProcessGroup& group,
    const std::string& operation,
    const std::function<void()>& work) {
  std::exception_ptr own;
  try {
    work();
  } catch (const std::exception&) {
    own = std::current_exception();
  }
  fail_together(group, operation, own);
}

} // namespace accelerate
