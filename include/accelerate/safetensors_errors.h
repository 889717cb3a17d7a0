// SPDX-License-Identifier: Apache-2.0
// What can be wrong with a safetensors file: one type per cause.
//
// Every message names the file and, where there is one, the tensor. What the
// operating system refuses (no such file, full disk) is a `SystemError`.
#pragma once

#include "accelerate/error.h"
#include "accelerate/export.h"

namespace accelerate::safetensors {

/// Base of all: bytes that are no safetensors file, or tensors that cannot
/// become one.
class ACCELERATE_API SafetensorsError : public Error {
 public:
  using Error::Error;
};

/// Fewer than the 8 bytes that say how long the header is.
class ACCELERATE_API HeaderTooSmallError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A header above `kMaxHeaderBytes`.
class ACCELERATE_API HeaderTooLargeError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A header that would end after the file: mostly an incomplete download.
class ACCELERATE_API InvalidHeaderLengthError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A header, or a name to be written, that is not UTF-8.
class ACCELERATE_API InvalidUtf8Error : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A header that is not JSON, or not JSON of the form that the format asks for.
class ACCELERATE_API InvalidJsonError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A tensor, a metadata key or a field that is there twice.
class ACCELERATE_API DuplicateNameError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// An element type that the format does not know.
class ACCELERATE_API UnknownDtypeError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// Offsets that run backwards, overlap, or leave a gap.
class ACCELERATE_API InvalidOffsetError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A shape whose number of bits does not fit 64 bits, or a dimension that does
/// not fit `std::int64_t`.
class ACCELERATE_API ShapeOverflowError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// Elements smaller than a byte that do not fill their last byte.
class ACCELERATE_API MisalignedTensorError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// Data whose length is not what shape and dtype say.
class ACCELERATE_API SizeMismatchError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// Tensors that end before or after the file does: mostly an incomplete
/// download.
class ACCELERATE_API IncompleteBufferError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A name that is not in the file.
class ACCELERATE_API TensorNotFoundError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// An index (`model.safetensors.index.json`) of the wrong form, or one that
/// disagrees with the files beside it.
class ACCELERATE_API InvalidIndexError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

} // namespace accelerate::safetensors
