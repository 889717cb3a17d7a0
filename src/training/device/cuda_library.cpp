// SPDX-License-Identifier: Apache-2.0
// Loads libaccelerate_cuda from this library's folder if the process has
// torch's CUDA library, so that one training library works with and without
// CUDA.
#include <dlfcn.h>

#include <filesystem>
#include <iostream>
#include <system_error>

namespace accelerate {
namespace {

/// Null if this process has not loaded it.
void* loaded_library(const char* name) {
  return dlopen(name, RTLD_NOW | RTLD_NOLOAD);
}

std::filesystem::path own_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&loaded_library), &info);
  return std::filesystem::path(info.dli_fname).parent_path();
}

/// False if there is nothing to load, or if loading fails; the latter is
/// printed, because the run would train without NCCL and our kernels.
bool load_cuda_library() {
  if (loaded_library("libtorch_cuda.so") == nullptr) {
    return false;
  }
  const auto path = own_folder() / "libaccelerate_cuda.so";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return false; // the build said so
  }
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    std::cerr << "[accelerate] Cannot load the CUDA library of this "
                 "package, so some GPU features do not work: "
              << dlerror() << ". Reinstall accelerate\n";
    return false;
  }
  return true;
}

// When this library is loaded: torch looks up kernels without knowing that they
// could be loaded.
[[maybe_unused]] const bool has_cuda_library = load_cuda_library();

} // namespace
} // namespace accelerate
