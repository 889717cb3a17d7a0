// SPDX-License-Identifier: Apache-2.0
// Why a file is refused, as a letter.
#pragma once

#include <string>

#include "safetensors/reference.h"

namespace accelerate::testing {

/// The letters of tools/make_safetensors_reference.py for the Rust library's
/// causes, which calls an unknown dtype "invalid JSON" too; 'D' for a name that
/// is there twice; '.' for a file that is accepted.
inline char cause_of(const std::string& file) {
  using namespace safetensors;
  try {
    safetensors::parse(bytes_of(file), "x");
    return '.';
  } catch (const HeaderTooSmallError&) {
    return 'S';
  } catch (const HeaderTooLargeError&) {
    return 'L';
  } catch (const InvalidHeaderLengthError&) {
    return 'H';
  } catch (const InvalidUtf8Error&) {
    return 'U';
  } catch (const InvalidJsonError&) {
    return 'J';
  } catch (const UnknownDtypeError&) {
    return 'J';
  } catch (const DuplicateNameError&) {
    return 'D';
  } catch (const InvalidOffsetError&) {
    return 'O';
  } catch (const SizeMismatchError&) {
    return 'T';
  } catch (const IncompleteBufferError&) {
    return 'I';
  } catch (const ShapeOverflowError&) {
    return 'V';
  } catch (const MisalignedTensorError&) {
    return 'M';
  }
}

} // namespace accelerate::testing
