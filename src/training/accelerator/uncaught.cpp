// SPDX-License-Identifier: Apache-2.0
#include "training/accelerator/uncaught.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/verification/step_recorder.h"

namespace accelerate {
namespace {

std::atomic<int> reported_rank = 0;
std::terminate_handler handler_before = nullptr;

/// Reports a mistake in the program to `accelerate verify`.
std::string note_problem(const std::string& what) {
  if (auto* recorder = StepRecorder::get()) {
    recorder->note_problem(what);
  }
  return what;
}

void report_and_leave() {
  if (!std::current_exception()) {
    handler_before(); // terminated without an exception
    std::abort();
  }
  std::string what = "an exception that is not a std::exception";
  try {
    throw;
  } catch (const UsageError& error) {
    what = note_problem(error.what());
  } catch (const MismatchError& error) {
    what = note_problem(error.what());
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  std::cout << std::flush;
  const std::string line =
      str_cat("[rank ", reported_rank.load(), "] uncaught: ", what, '\n');
  std::fwrite(line.data(), 1, line.size(), stderr);
  _exit(EXIT_FAILURE);
}

/// The default handler, read at program start, is libstdc++'s.
const std::terminate_handler default_handler = std::get_terminate();

} // namespace

void report_uncaught_exceptions(const ProcessTopology& topology) {
  reported_rank = topology.rank;
  static std::atomic<bool> is_done = false;
  if (std::get_terminate() == default_handler && !is_done.exchange(true)) {
    handler_before = std::set_terminate(report_and_leave);
  }
}

} // namespace accelerate
