// SPDX-License-Identifier: Apache-2.0
// The kinds of accelerators that ranks can train on, for those who bring one.
#pragma once

#include <c10/core/DeviceType.h>

#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// One kind of accelerator: what a run has to know of it and torch does not
/// say. The rest (devices, generators, streams, events, pinned memory,
/// autocast) is asked of what the kind has registered with torch.
struct ACCELERATE_API AcceleratorKind {
  c10::DeviceType type = c10::kPrivateUse1;
  /// Hugging Face's name for several processes on such devices, one of
  /// `DistributedType` in Python: "MULTI_GPU".
  std::string distributed_type = {};
  /// The backend that carries collectives between such devices: "nccl". Empty:
  /// Gloo does, through the CPU.
  std::string collective_backend = {};
  /// Whether mixed precision fp16, with its scaled loss, works there.
  bool has_fp16 = false;

  /// As torch writes it in "cuda:0".
  std::string name() const;
  /// Devices that this process can use; 0 where the hardware, the driver or
  /// torch's support is missing.
  int count() const;
};

/// Adds a row to the table of kinds. A process trains on the first kind that it
/// has devices of; rows that are added come before those that are built in, the
/// last added first. Call it before an `Accelerator` is made, from any thread.
/// Throws `UsageError` where the kind has a row already, lacks a
/// `distributed_type`, or is no device type of an accelerator.
///
///     accelerate::register_accelerator({
///         .type = c10::kPrivateUse1,
///         .distributed_type = "MULTI_NPU",
///         .collective_backend = "hccl",
///         .has_fp16 = true,
///     });
ACCELERATE_API void register_accelerator(AcceleratorKind kind);

} // namespace accelerate
