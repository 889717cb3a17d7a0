// SPDX-License-Identifier: Apache-2.0
// The exceptions that this library throws.
//
// Every message reads `[where] What went wrong, with the values. What to do`.
// Catch `Error` for all of them; catch a subclass to tell causes apart.
#pragma once

#include <stdexcept>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// Base of every exception of this library.
class ACCELERATE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Variables, files or options that are missing, malformed or contradictory.
class ACCELERATE_API ConfigError : public Error {
 public:
  using Error::Error;
};

/// A call that breaks the contract in the header: the program has to change.
class ACCELERATE_API UsageError : public Error {
 public:
  using Error::Error;
};

/// A data file that is malformed, or a data set or collate function that
/// failed; the message names the file and line, or the samples. What such a
/// function threw is nested (`std::rethrow_if_nested`).
class ACCELERATE_API DataError : public Error {
 public:
  using Error::Error;
};

/// A request that the operating system refused.
class ACCELERATE_API SystemError : public Error {
 public:
  using Error::Error;
};

/// A collective operation that failed: a peer is gone or answered wrongly.
class ACCELERATE_API CommError : public Error {
 public:
  using Error::Error;
};

/// A collective operation or a first contact that took longer than allowed.
class ACCELERATE_API TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

/// Ranks that called one collective with values that do not fit together.
/// Thrown on every rank, so that all of them leave the operation.
class ACCELERATE_API MismatchError : public CommError {
 public:
  using CommError::CommError;
};

} // namespace accelerate
