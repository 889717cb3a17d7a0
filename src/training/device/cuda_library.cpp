// SPDX-License-Identifier: Apache-2.0
// If the process has loaded torch's CUDA library, loads libaccelerate_cuda from
// the folder of this library. So one training library works with and without
// CUDA.
#include <dlfcn.h>

#include <filesystem>
#include <iostream>
#include <system_error>

namespace accelerate {
namespace {

/// The handle of a library; null if this process has not loaded it.
void* loaded_library(const char* name) {
  return dlopen(name, RTLD_NOW | RTLD_NOLOAD);
}

std::filesystem::path own_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&loaded_library), &info);
  return std::filesystem::path(info.dli_fname).parent_path();
}

/// Returns false if there is nothing to load, or if loading fails. A failure is
/// printed, because the run would train without NCCL and our kernels.
bool load_cuda_library() {
  if (loaded_library("libtorch_cuda.so") == nullptr) {
    return false;
  }
  const auto path = own_folder() / "libaccelerate_cuda.so";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return false; // this build has no CUDA
  }
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    std::cerr << "[accelerate] Cannot load the CUDA library of this "
                 "package, so some GPU features do not work: "
              << dlerror() << ". Reinstall accelerate\n";
    return false;
  }
  return true;
}

// Loaded together with this library, because torch looks up kernels without
// knowing that they could be loaded later.
[[maybe_unused]] const bool has_cuda_library = load_cuda_library();

} // namespace
} // namespace accelerate
