// SPDX-License-Identifier: Apache-2.0
// The cause for which a file is rejected, as a letter.
#pragma once

#include <string>

#include "safetensors/reference.h"

namespace accelerate::testing {

/// The letters of tools/make_safetensors_reference.py for the Rust library's
/// causes, which also calls an unknown dtype "invalid JSON"; 'D' for a
/// duplicate name; '.' for an accepted file.
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
