// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/stepped_process.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <stdexcept>

namespace accelerate::testing {
namespace {

// Also read-only calls, because what a process has read may be outdated. Other
// architectures lack the first ones.
constexpr unsigned long kFileCalls[] = {
#ifdef SYS_open
    SYS_open,       SYS_creat,  SYS_stat,      SYS_lstat,      SYS_rename,
    SYS_mkdir,      SYS_rmdir,  SYS_unlink,    SYS_link,       SYS_symlink,
    SYS_readlink,   SYS_access, SYS_chmod,     SYS_getdents,
#endif
#ifdef SYS_renameat
    SYS_renameat,
#endif
#ifdef SYS_newfstatat
    SYS_newfstatat,
#endif
    SYS_openat,     SYS_statx,  SYS_fstat,     SYS_renameat2,  SYS_mkdirat,
    SYS_unlinkat,   SYS_linkat, SYS_symlinkat, SYS_readlinkat, SYS_faccessat,
    SYS_getdents64, SYS_fchmod, SYS_fchmodat,  SYS_ftruncate,  SYS_fallocate,
    SYS_flock,      SYS_write,  SYS_pwrite64,  SYS_fsync,      SYS_fdatasync};

constexpr std::size_t kSharedBytes = 4096;

} // namespace

SteppedProcess::SteppedProcess(const std::function<void()>& body) {
  // Not a pipe: it would take file-system calls.
  void* shared = mmap(
      nullptr,
      kSharedBytes,
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS,
      -1,
      0);
  if (shared == MAP_FAILED) {
    throw std::runtime_error("no memory for a stepped process");
  }
  shared_ = static_cast<char*>(shared);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      std::strcpy(shared_, "ptrace is not permitted");
      _exit(1);
    }
    raise(SIGSTOP);
    try {
      body();
    } catch (const std::exception& error) {
      std::strncpy(shared_, error.what(), kSharedBytes - 1);
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  if (pid_ < 0 || waitpid(pid_, &status, 0) != pid_ || !WIFSTOPPED(status) ||
      ptrace(
          PTRACE_SETOPTIONS,
          pid_,
          nullptr,
          PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0) {
    error_ = shared_;
    if (pid_ > 0 && WIFSTOPPED(status)) {
      kill();
    }
    munmap(shared_, kSharedBytes);
    throw std::runtime_error("cannot trace a process: " + error_);
  }
  step();
}

SteppedProcess::~SteppedProcess() {
  kill();
  munmap(shared_, kSharedBytes);
}

bool SteppedProcess::step() {
  while (resume(PTRACE_SYSCALL)) {
    if (is_before_file_call()) {
      return true;
    }
  }
  return false;
}

int SteppedProcess::step(int count) {
  int num_steps = 0;
  while (num_steps < count && step()) {
    ++num_steps;
  }
  return num_steps;
}

void SteppedProcess::finish() {
  while (resume(PTRACE_CONT)) {
  }
}

void SteppedProcess::kill() {
  if (!has_ended()) {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
}

bool SteppedProcess::resume(int request) {
  if (has_ended()) {
    return false;
  }
  ptrace(static_cast<__ptrace_request>(request), pid_, nullptr, signal_);
  signal_ = 0;
  int status = 0;
  waitpid(pid_, &status, 0);
  if (WIFSTOPPED(status)) {
    const int signal = WSTOPSIG(status);
    signal_ = signal == (SIGTRAP | 0x80) ? 0 : signal;
    return true;
  }
  pid_ = -1;
  if (WIFSIGNALED(status)) {
    error_ = "ended by signal " + std::to_string(WTERMSIG(status));
  } else if (WEXITSTATUS(status) != 0) {
    error_ = *shared_ ? shared_ : "exit code without a message";
  }
  return false;
}

bool SteppedProcess::is_before_file_call() const {
  if (signal_ != 0) {
    return false;
  }
  struct __ptrace_syscall_info info = {};
  if (ptrace(PTRACE_GET_SYSCALL_INFO, pid_, sizeof(info), &info) < 0) {
    throw std::runtime_error("cannot ask for a process's system call");
  }
  return info.op == PTRACE_SYSCALL_INFO_ENTRY &&
         std::find(
             std::begin(kFileCalls), std::end(kFileCalls), info.entry.nr) !=
             std::end(kFileCalls);
}

bool can_step_processes() {
  try {
    SteppedProcess process([] { access("/", F_OK); });
    return !process.has_ended();
  } catch (const std::runtime_error&) {
    return false;
  }
}

} // namespace accelerate::testing
