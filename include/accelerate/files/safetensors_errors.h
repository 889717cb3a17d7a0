// SPDX-License-Identifier: Apache-2.0
// Errors in safetensors files, one type per cause.
//
// Every message names the file and, if applicable, the tensor. Errors of the
// operating system (such as a missing file or a full disk) are of type
// `SystemError`.
#pragma once

#include "accelerate/error.h"
#include "accelerate/export.h"

namespace accelerate::safetensors {

/// The base class of these errors. Either the bytes are not a valid safetensors
/// file, or the tensors cannot be written as one.
class ACCELERATE_API SafetensorsError : public Error {
 public:
  using Error::Error;
};

/// A file that is shorter than the 8 bytes that contain the length of the
/// header.
class ACCELERATE_API HeaderTooSmallError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A header that is longer than `kMaxHeaderBytes`.
class ACCELERATE_API HeaderTooLargeError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A header that extends past the end of the file. Usually, the download is
/// incomplete.
class ACCELERATE_API InvalidHeaderLengthError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A header, or a name to write, that is not UTF-8.
class ACCELERATE_API InvalidUtf8Error : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A header that is not JSON, or does not have the structure of the format.
class ACCELERATE_API InvalidJsonError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A duplicate tensor, metadata key or field.
class ACCELERATE_API DuplicateNameError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// An unknown element type.
class ACCELERATE_API UnknownDtypeError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// Offsets that decrease, overlap, or leave a gap.
class ACCELERATE_API InvalidOffsetError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A shape whose number of bits overflows 64 bits, or a dimension that does not
/// fit into `std::int64_t`.
class ACCELERATE_API ShapeOverflowError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// Elements that are smaller than a byte, whose total size is not a whole
/// number of bytes.
class ACCELERATE_API MisalignedTensorError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// Data whose length does not match the shape and dtype.
class ACCELERATE_API SizeMismatchError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// Tensors that end before or after the end of the file. Usually, the download
/// is incomplete.
class ACCELERATE_API IncompleteBufferError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// A name that is not in the file.
class ACCELERATE_API TensorNotFoundError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

/// An index (`model.safetensors.index.json`) with the wrong structure, or one
/// that contradicts the files next to it.
class ACCELERATE_API InvalidIndexError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

} // namespace accelerate::safetensors
