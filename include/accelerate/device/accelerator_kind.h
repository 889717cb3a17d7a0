// SPDX-License-Identifier: Apache-2.0
// The table of accelerators that ranks can train on, and how to extend it.
#pragma once

#include <c10/core/DeviceType.h>

#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// Describes what torch does not know about one kind of accelerator. Everything
/// else (devices, generators, streams, events, pinned memory, autocast) comes
/// from what the vendor has registered with torch.
struct ACCELERATE_API AcceleratorKind {
  c10::DeviceType type = c10::kPrivateUse1;
  /// Hugging Face's name for several processes on such devices, such as
  /// "MULTI_GPU". It is a member of `DistributedType` in Python.
  std::string distributed_type = {};
  /// The backend of collectives between such devices, such as "nccl". If empty,
  /// Gloo is used, and tensors are copied through CPU memory.
  std::string collective_backend = {};
  /// Whether fp16 mixed precision, with loss scaling, works on these devices.
  bool has_fp16 = false;

  /// The name of the device type in torch, such as "cuda" in "cuda:0".
  std::string name() const;
  /// The number of devices that this process can use. 0 if the hardware, the
  /// driver or torch's support is missing.
  int count() const;
};

/// Adds an accelerator. A process trains on the first kind of which it has
/// devices. Added kinds take precedence over built-in kinds, and later ones
/// over earlier ones. Call it before you create an `Accelerator`, from any
/// thread. Throws `UsageError` if the kind is already registered, has no
/// `distributed_type`, or is not the device type of an accelerator.
///
///     accelerate::register_accelerator({
///         .type = c10::kPrivateUse1,
///         .distributed_type = "MULTI_NPU",
///         .collective_backend = "hccl",
///         .has_fp16 = true,
///     });
ACCELERATE_API void register_accelerator(AcceleratorKind kind);

} // namespace accelerate
