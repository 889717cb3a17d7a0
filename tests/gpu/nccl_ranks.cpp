// SPDX-License-Identifier: Apache-2.0
#include "gpu/nccl_ranks.h"

#include <dlfcn.h>
#include <torch/cuda.h>

#include <cstdlib>
#include <stdexcept>

#include "core/base/str.h"

namespace accelerate::testing {
namespace {

constexpr const char* kLibraryVariable = "ACCELERATE_TEST_NCCL";
// As NCCL counts: 2.30.0.
constexpr int kFirstThatShares = 23000;

/// 0 if the library has no such function.
int version_of(void* library) {
  int version = 0;
  const auto get =
      reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  return get != nullptr && get(&version) == 0 ? version : 0;
}

std::string name_of(int version) {
  return str_cat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

} // namespace

NcclRanks nccl_ranks(int num_ranks) {
  const int num_gpus = static_cast<int>(torch::cuda::device_count());
  if (num_gpus == 0) {
    return {.missing = "no GPU"};
  }
  if (num_gpus >= num_ranks) {
    return {};
  }
  // With few blocks per kernel, ranks do not wait for each other to get onto
  // the GPU.
  Variables variables = {
      {"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
      {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_MAX_CTAS", "4"}};
  if (const char* file = std::getenv(kLibraryVariable)) {
    void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw std::runtime_error(str_cat(kLibraryVariable, ": ", dlerror()));
    }
    const int version = version_of(library);
    if (version < kFirstThatShares) {
      throw std::runtime_error(str_cat(
          kLibraryVariable,
          '=',
          file,
          " is NCCL ",
          name_of(version),
          ". Use 2.30 or later."));
    }
    variables["LD_PRELOAD"] = file;
    return {.variables = variables};
  }
  const int version = version_of(RTLD_DEFAULT);
  if (version < kFirstThatShares) {
    return {
        .missing = str_cat(
            num_ranks,
            " NCCL ranks need ",
            num_ranks,
            " GPUs, or NCCL 2.30 or later to share one. This machine has ",
            num_gpus,
            " and NCCL ",
            name_of(version),
            ". Set ",
            kLibraryVariable,
            " to a newer libnccl.so.2 (docs/building.md).")};
  }
  return {.variables = variables};
}

} // namespace accelerate::testing
