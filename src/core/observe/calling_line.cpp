// SPDX-License-Identifier: Apache-2.0
#include "core/observe/calling_line.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "core/observe/native_stack.h"
#include "core/observe/script_stack.h"

namespace accelerate {

std::string calling_line() {
  Stack stack;
  if (auto script = script_stack()) {
    stack = std::move(script->stack);
  } else {
    const auto caller = static_cast<pid_t>(syscall(SYS_gettid));
    std::thread([&] { stack = native_stack(caller); }).join();
  }
  const auto frame = std::find_if(
      stack.frames.begin(), stack.frames.end(), [](const auto& one) {
        return one.is_users;
      });
  if (frame == stack.frames.end()) {
    return {};
  }
  // "folder/train.py:12 in main: total = sum(losses)"
  const std::string line = frame->text.substr(0, frame->text.find(" in "));
  const size_t number = line.rfind(':');
  if (number == std::string::npos ||
      line.find_first_not_of("0123456789", number + 1) != std::string::npos) {
    return frame->text;
  }
  return line.substr(line.rfind('/', number) + 1);
}

} // namespace accelerate
