// SPDX-License-Identifier: Apache-2.0
// A locale with other numbers and letters than C.
#pragma once

#include <string>

#include "support/temp_dir.h"

namespace accelerate::testing {

/// The locale of this process during the object's lifetime: the decimal point
/// is a comma, as in German, and `i` and `I` have no single-byte other case, as
/// in Turkish. Created with Debian's localedef.
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
