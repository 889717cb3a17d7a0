// SPDX-License-Identifier: Apache-2.0
// Control flow that depends on the rank of this process.
#pragma once

#include <sstream>
#include <string>
#include <utility>

#include "accelerate/data/samplers.h"
#include "accelerate/distributed/process_group.h"
#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

/// The rank of this process, and control flow that depends on it. `Accelerator`
/// has the same functions under the same names, but this class does not need a
/// model.
class ACCELERATE_API ProcessControl {
 public:
  ProcessControl(ProcessTopology topology, ProcessGroup group);

  int num_processes() const { return topology_.world_size; }
  int process_index() const { return topology_.rank; }
  int local_process_index() const { return topology_.local_rank; }
  bool is_main_process() const { return topology_.is_main(); }
  bool is_local_main_process() const { return topology_.is_local_main(); }
  bool is_last_process() const { return topology_.is_last(); }
  /// The rank and the number of ranks, in the form that `splitting.h` and
  /// loaders take.
  ShardOptions shard() const { return {process_index(), num_processes()}; }

  /// Prints the values on one line, once per machine.
  template <class... Values>
  void print(const Values&... values) const {
    if (is_local_main_process()) {
      print_line(values...);
    }
  }
  /// Like `print`, but once per run.
  template <class... Values>
  void print_once(const Values&... values) const {
    if (is_main_process()) {
      print_line(values...);
    }
  }
  void wait_for_everyone() const;

  /// Lets the main process run the block first. The other ranks wait in the
  /// constructor of the guard until the main process destroys its guard. If the
  /// main process's block throws, the other ranks get a `CommError`, so that
  /// all ranks stay in step, whether or not they catch the error.
  class ACCELERATE_API FirstGuard {
   public:
    FirstGuard(const ProcessGroup& group, bool is_first);
    ~FirstGuard() noexcept(false);
    FirstGuard(const FirstGuard&) = delete;
    FirstGuard& operator=(const FirstGuard&) = delete;

   private:
    const ProcessGroup& group_;
    bool is_first_;
    int num_exceptions_;
  };
  [[nodiscard]] FirstGuard main_process_first() const;
  /// Like `main_process_first`, but for the first process of each machine.
  [[nodiscard]] FirstGuard local_main_process_first() const;

  template <class F>
  void on_main_process(F&& f) const {
    on_process(0, std::forward<F>(f));
  }
  template <class F>
  void on_local_main_process(F&& f) const {
    if (is_local_main_process()) {
      f();
    }
  }
  template <class F>
  void on_last_process(F&& f) const {
    on_process(num_processes() - 1, std::forward<F>(f));
  }
  template <class F>
  void on_process(int process_index, F&& f) const {
    if (this->process_index() == process_index) {
      f();
    }
  }

 private:
  template <class... Values>
  static void print_line(const Values&... values) {
    std::ostringstream out;
    (out << ... << values);
    write_line(out.str());
  }
  static void write_line(const std::string& line);

  ProcessTopology topology_;
  ProcessGroup group_;
};

} // namespace accelerate
