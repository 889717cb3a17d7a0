// SPDX-License-Identifier: Apache-2.0
#include "core/observe/native_stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include "core/base/str.h"
#include "core/base/unique_file.h"

extern char** environ;

namespace accelerate {
namespace {

constexpr int kMostAddresses = 64;
// A starved thread may take long to be scheduled. The sum of the two limits
// still lets ranks answer in time; see `HangExchange`.
constexpr std::chrono::milliseconds kStackPatience{800};
constexpr std::chrono::milliseconds kSymbolPatience{1100};

// Written by the handler, which may run late. These variables must therefore
// not be on a stack.
std::array<void*, kMostAddresses> addresses;
void* interrupted = nullptr;
std::atomic<int> num_addresses = -1;

/// The instruction that the signal interrupted.
void* instruction_of(const ucontext_t& context) {
#if defined(__aarch64__)
  return reinterpret_cast<void*>(context.uc_mcontext.pc);
#elif defined(__x86_64__)
  return reinterpret_cast<void*>(context.uc_mcontext.gregs[REG_RIP]);
#else
#error "reading the interrupted instruction is not supported on this processor"
#endif
}

void take_stack(int /*signal*/, siginfo_t* /*info*/, void* context) {
  const int saved = errno;
  interrupted = instruction_of(*static_cast<const ucontext_t*>(context));
  num_addresses.store(
      backtrace(addresses.data(), kMostAddresses), std::memory_order_release);
  errno = saved;
}

/// Installs the handler during its lifetime, unless the program has its own.
class HandlerScope {
 public:
  HandlerScope() {
    struct sigaction action {};
    action.sa_sigaction = take_stack;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    is_ours_ =
        sigaction(SIGURG, nullptr, &before_) == 0 &&
        (before_.sa_flags & SA_SIGINFO) == 0 &&
        (before_.sa_handler == SIG_DFL || before_.sa_handler == SIG_IGN) &&
        sigaction(SIGURG, &action, nullptr) == 0;
  }
  ~HandlerScope() {
    if (is_ours_) {
      sigaction(SIGURG, &before_, nullptr);
    }
  }
  HandlerScope(const HandlerScope&) = delete;
  HandlerScope& operator=(const HandlerScope&) = delete;
  bool is_ours() const { return is_ours_; }

 private:
  struct sigaction before_ {};
  bool is_ours_ = false;
};

/// The current instruction of the thread, followed by the return addresses.
std::vector<void*> interrupt(pid_t thread) {
  num_addresses = -1;
  if (syscall(SYS_tgkill, getpid(), thread, SIGURG) != 0) {
    return {};
  }
  const auto end = std::chrono::steady_clock::now() + kStackPatience;
  while (num_addresses.load(std::memory_order_acquire) < 0) {
    if (std::chrono::steady_clock::now() > end) {
      return {};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Skip the handler itself and the signal frame.
  const auto end_of_stack = addresses.begin() + num_addresses;
  const auto first = std::find(addresses.begin(), end_of_stack, interrupted);
  return first == end_of_stack ? std::vector<void*>{interrupted}
                               : std::vector<void*>(first, end_of_stack);
}

std::vector<void*> addresses_of(pid_t thread) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const HandlerScope handler;
  if (!handler.is_ours()) {
    return {};
  }
  // Code without unwind tables, such as the vDSO clock, hides its callers. A
  // moment later, the thread is somewhere else, so try again.
  constexpr int kMostTries = 32;
  std::vector<void*> found = interrupt(thread);
  for (int i = 1; i < kMostTries && found.size() == 1; ++i) {
    found = interrupt(thread);
  }
  return found;
}

struct Symbol {
  std::string module;
  uintptr_t offset = 0;
  /// One frame, or several if functions were inlined.
  std::vector<Stack::Frame> frames;
  bool is_users() const { return !frames.empty() && frames[0].is_users; }
};

/// Shortens the type names of strings.
std::string readable(std::string function) {
  constexpr std::string_view kString =
      "std::__cxx11::basic_string<char, std::char_traits<char>, "
      "std::allocator<char> >";
  for (size_t at = 0; (at = function.find(kString, at)) != std::string::npos;) {
    function.replace(at, kString.size(), "std::string");
  }
  return function;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? readable(text.get()) : name;
}

bool is_library(const std::string& module) {
  const std::string file = module.substr(module.rfind('/') + 1);
  for (const char* name :
       {"libtorch",
        "libc10",
        "libaccelerate",
        "libc.so",
        "libc-",
        "libpthread",
        "libstdc++",
        "libgcc",
        "libm.so",
        "ld-linux",
        "linux-vdso",
        "libgomp",
        "libpython",
        "python3",
        "libcuda",
        "libnccl"}) {
    if (file.starts_with(name)) {
      return true;
    }
  }
  return file.empty();
}

/// The symbol of an instruction, given the address of any of its bytes.
Symbol symbol_of(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    return {"", 0, {{str_cat(address), false}}};
  }
  const auto base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  const auto at = reinterpret_cast<uintptr_t>(address);
  // Non-relocatable programs use absolute addresses.
  uint16_t kind = 0;
  std::memcpy(
      &kind,
      static_cast<const char*>(info.dli_fbase) + offsetof(Elf64_Ehdr, e_type),
      sizeof(kind));
  Symbol symbol;
  symbol.module = info.dli_fname;
  symbol.offset = kind == ET_DYN ? at - base : at;
  const std::string file = symbol.module.substr(symbol.module.rfind('/') + 1);
  symbol.frames.push_back(
      {info.dli_sname != nullptr
           ? str_cat(demangled(info.dli_sname), " in ", file)
           : str_cat(file, " +0x", std::hex, symbol.offset),
       !is_library(symbol.module)});
  return symbol;
}

/// The output of a program; empty if it is missing or takes too long.
std::optional<std::string> output_of(std::vector<std::string> command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return std::nullopt;
  }
  const UniqueFile reader(ends[0]);
  UniqueFile writer(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, writer.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(
      &actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (auto& argument : command) {
    arguments.push_back(argument.data());
  }
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed = posix_spawnp(
      &child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  writer.reset();
  if (failed != 0) {
    return std::nullopt;
  }
  std::string text;
  const auto end = std::chrono::steady_clock::now() + kSymbolPatience;
  bool is_whole = false;
  while (!is_whole) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd event{reader.get(), POLLIN, 0};
    char buffer[4096];
    if (left.count() <= 0 ||
        poll(&event, 1, static_cast<int>(left.count())) <= 0) {
      break;
    }
    const auto size = read(reader.get(), buffer, sizeof(buffer));
    is_whole = size <= 0;
    text.append(buffer, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }
  if (!is_whole) {
    kill(child, SIGKILL);
  }
  int status = 0;
  const bool is_reaped = waitpid(child, &status, 0) == child;
  return is_whole && (!is_reaped || status == 0) ? std::optional(text)
                                                 : std::nullopt;
}

/// Whether a function of the user's program comes from a library's header;
/// `name` may start with its return type.
bool is_of_header(const std::string& name) {
  const auto qualified = name.substr(name.rfind(' ') + 1);
  for (const char* space :
       {"accelerate::", "torch::", "at::", "c10::", "c10d::"}) {
    if (qualified.starts_with(space)) {
      return true;
    }
  }
  return false;
}

/// The information of addr2line on one function; empty if it is useless.
std::optional<Stack::Frame> frame_of(
    const std::string& function,
    const std::string& location) {
  const auto name = function.substr(0, function.find_first_of("(<"));
  // Names of the standard library are long, and inlined ones lack its prefix.
  if (function.starts_with("??") || name.find("std::") != std::string::npos ||
      location.find("/include/c++/") != std::string::npos) {
    return std::nullopt;
  }
  std::string line = location.substr(location.rfind('/') + 1);
  line = line.substr(0, line.find(" (discriminator"));
  const bool has_line = !line.starts_with("??") && !line.ends_with(":?");
  return Stack::Frame{
      has_line ? str_cat(line, " in ", readable(function)) : readable(function),
      name != "_start" && !is_of_header(name)};
}

/// Adds files and lines to the frames of a module of user code.
void name_lines(const std::string& module, std::vector<Symbol*>& symbols) {
  // Includes inlined functions, because a library may inline user code.
  std::vector<std::string> command = {"addr2line", "-aiCfe", module};
  for (const auto* symbol : symbols) {
    command.push_back(str_cat("0x", std::hex, symbol->offset));
  }
  std::istringstream lines(output_of(std::move(command)).value_or(""));
  std::string line;
  std::getline(lines, line);
  for (auto* symbol : symbols) {
    if (!line.starts_with("0x")) {
      return;
    }
    std::vector<Stack::Frame> frames;
    bool is_known = false;
    std::string location;
    while (std::getline(lines, line) && !line.starts_with("0x") &&
           std::getline(lines, location)) {
      is_known |= !line.starts_with("??");
      if (auto frame = frame_of(line, location)) {
        frames.push_back(std::move(*frame));
      }
    }
    if (is_known) {
      symbol->frames = std::move(frames);
    }
  }
}

} // namespace

void prepare_native_stacks() {
  void* address = nullptr;
  backtrace(&address, 1);
}

Stack native_stack(pid_t thread) {
  std::vector<Symbol> symbols;
  for (const void* address : addresses_of(thread)) {
    // Use an address inside the call, because the address after it may belong
    // to another function.
    const bool is_behind_call = !symbols.empty();
    symbols.push_back(
        symbol_of(static_cast<const char*>(address) - is_behind_call));
  }
  std::map<std::string, std::vector<Symbol*>> by_module;
  for (auto& symbol : symbols) {
    if (symbol.is_users()) {
      by_module[symbol.module].push_back(&symbol);
    }
  }
  for (auto& [module, own] : by_module) {
    name_lines(module, own);
  }
  Stack stack;
  for (auto& symbol : symbols) {
    for (auto& frame : symbol.frames) {
      stack.frames.push_back(std::move(frame));
    }
  }
  // Omit how a library gets from one user function to the next.
  const auto is_users = [](const Stack::Frame& frame) {
    return frame.is_users;
  };
  stack.frames.erase(
      std::remove_if(
          std::find_if(stack.frames.begin(), stack.frames.end(), is_users),
          stack.frames.end(),
          std::not_fn(is_users)),
      stack.frames.end());
  return stack;
}

} // namespace accelerate
