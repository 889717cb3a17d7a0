// SPDX-License-Identifier: Apache-2.0
// The exceptions that this library throws.
//
// Every message has the form `[where] What went wrong, with the values. What to
// do`. Catch `Error` to handle all exceptions, or a subclass to handle one
// cause.
#pragma once

#include <stdexcept>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// Base of all exceptions of this library.
class ACCELERATE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Environment variables, files or options that are missing, malformed or
/// contradictory.
class ACCELERATE_API ConfigError : public Error {
 public:
  using Error::Error;
};

/// A call that violates the contract in the header. Fix the program.
class ACCELERATE_API UsageError : public Error {
 public:
  using Error::Error;
};

/// A malformed data file, or a failure in a dataset or collate function. The
/// message names the file and line, or the samples. The exception that the
/// function threw is nested (`std::rethrow_if_nested`).
class ACCELERATE_API DataError : public Error {
 public:
  using Error::Error;
};

/// The operating system rejected a request.
class ACCELERATE_API SystemError : public Error {
 public:
  using Error::Error;
};

/// A collective operation failed: another rank has exited or sent an invalid
/// reply.
class ACCELERATE_API CommError : public Error {
 public:
  using Error::Error;
};

/// A collective operation or the connection of the ranks exceeded its time
/// limit.
class ACCELERATE_API TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

/// Ranks called a collective with values that do not match. The error is thrown
/// on every rank, so that all ranks leave the operation.
class ACCELERATE_API MismatchError : public CommError {
 public:
  using CommError::CommError;
};

} // namespace accelerate
