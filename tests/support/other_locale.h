// SPDX-License-Identifier: Apache-2.0
// A locale in which numbers and letters are not those of C.
#pragma once

#include <string>

#include "support/temp_dir.h"

namespace accelerate::testing {

/// The locale of this process as long as the object lives: a comma is the
/// decimal point, as in German, and `i` and `I` have no other case among the
/// characters of one byte, as in Turkish. It is made by Debian's localedef.
class OtherLocale {
 public:
  OtherLocale();
  ~OtherLocale();
  OtherLocale(const OtherLocale&) = delete;
  OtherLocale& operator=(const OtherLocale&) = delete;

 private:
  TempDir folder_;
};

} // namespace accelerate::testing
