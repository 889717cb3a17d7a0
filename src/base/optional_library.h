// SPDX-License-Identifier: Apache-2.0
// A library of the system that is opened when somebody asks for what it does,
// so that no other program loads it and what stands behind it: the program
// `accelerate` starts in milliseconds.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {

/// Stays open until the process ends.
class OptionalLibrary {
 public:
  /// `user` begins the message where it is missing ("[watch] A page"),
  /// `package` ends it. Throws `UsageError`.
  OptionalLibrary(std::string name, std::string user, std::string package)
      : name_(std::move(name)),
        user_(std::move(user)),
        package_(std::move(package)),
        library_(dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
      refuse();
    }
  }

  /// Throws `UsageError` where this version does not have it.
  template <class Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) {
      refuse();
    }
  }

 private:
  [[noreturn]] void refuse() const {
    throw UsageError(str_cat(
        user_,
        " needs ",
        name_,
        ", which cannot be loaded (",
        dlerror(),
        "). Install ",
        package_));
  }

  std::string name_;
  std::string user_;
  std::string package_;
  void* library_;
};

} // namespace accelerate
