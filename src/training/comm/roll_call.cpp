// SPDX-License-Identifier: Apache-2.0
#include "training/comm/roll_call.h"

#include <cstring>
#include <vector>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/failures.h"

namespace accelerate {
namespace {

// A single key lists the ranks that have signed in, so that one operation reads
// it if ranks are missing.
constexpr const char* kRoll = "roll";
constexpr const char* kCount = "count";
constexpr const char* kComplete = "complete";

std::vector<uint8_t> bytes_of(int32_t rank) {
  std::vector<uint8_t> bytes(sizeof(rank));
  std::memcpy(bytes.data(), &rank, sizeof(rank));
  return bytes;
}

std::string missing_ranks(c10d::Store& store, int world_size) {
  const auto roll = store.get(kRoll);
  std::vector<bool> has_come(static_cast<size_t>(world_size));
  for (size_t at = 0; at + sizeof(int32_t) <= roll.size();
       at += sizeof(int32_t)) {
    int32_t rank = 0;
    std::memcpy(&rank, &roll[at], sizeof(rank));
    has_come.at(static_cast<size_t>(rank)) = true;
  }
  std::string missing;
  for (size_t rank = 0; rank < has_come.size(); ++rank) {
    if (!has_come[rank]) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  return missing;
}

/// Whether all ranks have signed in in time.
bool sign_in_and_wait(
    c10d::Store& store,
    int rank,
    int world_size,
    std::chrono::milliseconds timeout) {
  if (store.add(str_cat("arrived/", rank), 1) > 1) {
    throw ConfigError(str_cat(
        "[connect] rank ",
        rank,
        " connected twice; give every process its own RANK"));
  }
  store.append(kRoll, bytes_of(rank));
  if (store.add(kCount, 1) == world_size) {
    store.set(kComplete, std::vector<uint8_t>{1});
  }
  try {
    store.wait({kComplete}, timeout);
  } catch (const std::exception& error) {
    if (is_timeout(error.what())) {
      return false;
    }
    throw;
  }
  return true;
}

} // namespace

void roll_call(
    c10d::Store& store,
    int rank,
    int world_size,
    std::chrono::milliseconds timeout) {
  std::string missing;
  try {
    if (sign_in_and_wait(store, rank, world_size, timeout)) {
      return;
    }
    missing = missing_ranks(store, world_size);
    if (missing.empty()) { // the last rank signed in at the last moment
      return;
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    wait_for_first_failure();
    throw CommError(str_cat(
        "[connect] rank ",
        rank,
        " of ",
        world_size,
        " lost its connection to rank 0, which probably exited; the original "
        "error is above (",
        first_line(error.what()),
        ')'));
  }
  throw TimeoutError(str_cat(
      "[connect] rank ",
      rank,
      " waited ",
      std::chrono::duration<double>(timeout).count(),
      " s, but rank(s) ",
      missing,
      " of ",
      world_size,
      " did not connect. Check that they were started"));
}

} // namespace accelerate
